/* What the other end of a FILE can show. */
#ifndef TERN_TRAIN_SHOW_TERMINAL_H
#define TERN_TRAIN_SHOW_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

bool tn__is_terminal(FILE *file); /* one that moves its cursor */

/* How wide a line of a terminal is: as it says, else as COLUMNS in the environment, else 80.
 * INT_MAX when `file` is no terminal. */
int tn__terminal_columns(FILE *file);

int tn__text_columns(const char *text); /* how wide a text in UTF-8 is; NULL: 0 */

/* Whether the environment's locale is UTF-8. Asked there,
 * because a program need not have called setlocale. */
bool tn__shows_utf8(void);

#endif
