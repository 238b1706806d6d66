/* A command must not replace what it reads. */
#ifndef TERN_TOOLS_INPUTS_H
#define TERN_TOOLS_INPUTS_H

#include <stdbool.h>
#include <tern/core.h>

typedef bool names_test(const char *name);

/* TN_EVALUE if what the command would replace is one of its inputs or, in a folder, a file that is
 * `read` (NULL: all are), under any name or link. The command replaces `output` itself (`replaced`
 * NULL), or these names in the folder `output`. None of them need exist. */
tn_status check_outputs(const char *const *inputs, int count, names_test *read, const char *output,
                        names_test *replaced);

#endif
