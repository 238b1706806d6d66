/* What differs between a file and the program that loads it, in words: "h.0.attn: heads was 4 but
 * is 8". Strings from the file are not trusted: they are compared unchanged, and shown without
 * control sequences.
 *
 *     tn__differences d = {.path = path, .operation = "load"};
 *     tn__differ_options(&d, "adamw", theirs, "{\"beta1\":0.9,\"eps\":1e-06}");
 *     return tn__differences_end(&d);
 */
#ifndef TERN_IO_DIFFERENCES_H
#define TERN_IO_DIFFERENCES_H

#include "core/error.h"

typedef struct tn__differences {
    const char *path, *operation; /* of the file; static text */
    const char *hint;             /* how to continue nevertheless; may be NULL */
    bool warn;                    /* log each, and raise none */
    bool quiet;                   /* … nor log them: another rank does */
    int count;
    char text[480]; /* the first of them */
} tn__differences;

/* How this thread's user continues another run nevertheless. Unless set: by tn_checkpoint. A tn_run
 * has an option. */
extern _Thread_local const char *tn__continue_hint;

void tn__differ(tn__differences *d, const char *format, ...) TN_PRINTF(2, 3);

/* Two sets of options as JSON (nn/describe.c): the file's and the program's. `where` begins each
 * difference: "adamw". False after raising: a string is none. */
bool tn__differ_options(tn__differences *d, const char *where, const char *was, const char *is);

/* Two descriptions of a model. With `weights_alone` only the options that affect results, of
 * modules and options that both have. False after raising. */
bool tn__differ_models(tn__differences *d, const char *was, const char *is, bool weights_alone);

/* Raises TN_EMISMATCH if there are differences that are errors. */
tn_status tn__differences_end(const tn__differences *d);

#endif
