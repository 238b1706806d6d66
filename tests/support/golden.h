/* What functions say when they refuse, held to a file that a person reads. It has two lines for
 * each: the call, and the status with the message. A better wording changes no test:
 * `TERN_ACCEPT=1 ./run test NAME` writes the file anew, and the diff is reviewed. */
#ifndef TERN_TESTS_SUPPORT_GOLDEN_H
#define TERN_TESTS_SUPPORT_GOLDEN_H

#include "tests/support/test.h"

/* The call, whose text this is, is refused: its result is inert, and the pending error, which this
 * clears, is one that the file has for it. path: from the root of the sources. Returns the message,
 * without the place of the call; valid until the next. */
const char *golden_refused(const char *path, const char *call, tn_tensor *result, const char *file,
                           int line);

#endif
