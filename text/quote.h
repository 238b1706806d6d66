/* Command lines as a person types them. */
#ifndef TERN_TEXT_QUOTE_H
#define TERN_TEXT_QUOTE_H

#include "tern/core.h"

/* `count` words, quoted for a shell, with spaces between; the caller frees. NULL when there is no
 * memory; nothing is raised. */
TN_API char *tn__shell_line(char *const *words, int count);

#endif
