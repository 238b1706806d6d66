#include "tools/train.h"

#include "tools/error_words.h"

#include <stdio.h>

void train_error_exit(tn_status status, const char *message) {
    char text[sizeof("tern train: ") + sizeof(((tn_error_record *)0)->message)];
    (void)status; /* its name is for programmers */
    snprintf(text, sizeof(text), "tern train: %s", error_why());
    tn_error_exit(TN_OK, text);
}
