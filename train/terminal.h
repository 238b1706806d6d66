/* What the other end of a FILE can show. */
#ifndef TERN_TRAIN_TERMINAL_H
#define TERN_TRAIN_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

bool tn__is_terminal(FILE *file);     /* one that moves its cursor */
int tn__terminal_columns(FILE *file); /* 80 when it does not say */

/* Whether the environment's locale is UTF-8. Asked there, because a program need not have called
 * setlocale. */
bool tn__shows_utf8(void);

#endif
