/* What the other end of a FILE can show. */
#ifndef TERN_TRAIN_SHOW_TERMINAL_H
#define TERN_TRAIN_SHOW_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>
#include <tern/core.h>

/* One that moves its cursor; stderr is one, too, if `tern run` shows its progress line. */
TN_API bool tn__is_terminal(FILE *file);

/* The width of a terminal's line: from the terminal, else from COLUMNS in the environment, else 80;
 * from TERN_PROGRESS for `tern run`. INT_MAX if `file` is not a terminal. */
TN_API int tn__terminal_columns(FILE *file);

int tn__text_columns(const char *text); /* the width of UTF-8 text; NULL: 0 */

/* Whether the environment's locale is UTF-8. Read from there because a program need not have called
 * setlocale. */
bool tn__shows_utf8(void);

#endif
