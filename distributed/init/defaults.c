/* The defaults of tn_dist_init's options. */
#include "distributed/group/group.h"

#include <stdlib.h>
#include <string.h>

tn_dist_options tn_dist_defaults(void) {
    const char *timeout = getenv("TERN_TIMEOUT"), *checked = getenv("TERN_CHECKED");
    const char *interface = getenv("TERN_INTERFACE");
    double seconds = timeout ? strtod(timeout, NULL) : 0;
    return (tn_dist_options){.init = "env://",
                             .rank = -1,
                             .ranks = -1,
                             .interface = interface && *interface ? interface : NULL,
                             .timeout = seconds > 0 && seconds <= TN__TIMEOUT_MOST ? seconds : 600,
                             .checked = checked && strcmp(checked, "1") == 0,
                             .signals = true,
                             .threads = true,
                             .from_defaults = true};
}
