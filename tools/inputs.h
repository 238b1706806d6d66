/* What a command reads is not what it replaces. */
#ifndef TERN_TOOLS_INPUTS_H
#define TERN_TOOLS_INPUTS_H

#include <stdbool.h>
#include <tern/core.h>

typedef bool names_test(const char *name);

/* TN_EVALUE where what the command would replace is one of its inputs or, in an input that is a
 * folder, a file that is read (NULL: all are), by whatever name or link. Replaced is `output`
 * itself (NULL), or these names in the folder `output`. Nothing of all this need be there. */
tn_status check_outputs(const char *const *inputs, int count, names_test *read, const char *output,
                        names_test *replaced);

#endif
