#include "tools/why.h"

#include <string.h>
#include <tern/core.h>

/* "place: operation: what is wrong" */
const char *error_why(void) {
    const char *why = tn_error_message();
    for (int i = 0; i < 2; i++) {
        const char *end = strstr(why, ": ");
        why = end ? end + 2 : why;
    }
    return why;
}
