/* What identifies a dataset, as checkpoints store it. */
#ifndef TERN_TESTS_SUPPORT_DATASET_TEXT_H
#define TERN_TESTS_SUPPORT_DATASET_TEXT_H

#include "data/identity.h"

#include <stdio.h>
#include <stdlib.h>

enum { DATASET_TEXT = 1024 };

/* To text[DATASET_TEXT]; false after raising. */
static inline bool dataset_text(tn_dataset *d, char *text) {
    tn__buffer j = {.operation = "test"};
    tn__members m = tn__members_begin(&j);
    bool done = tn__dataset_put(&m, d, "test");
    tn__members_end(&m);
    snprintf(text, DATASET_TEXT, "%s", done && !j.failed ? j.at : "");
    tn__buffer_free(&j);
    return *text != 0;
}

#endif
