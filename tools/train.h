/* `tern train`: the main function of examples/11_gpt2.c, which is compiled under this name. */
#ifndef TERN_TOOLS_TRAIN_H
#define TERN_TOOLS_TRAIN_H

#include <tern/core.h>

int train_main(int argc, char **argv);

/* What the example has instead of tn_error_exit: names the command, since the lines of the example
 * mean nothing to the command's user. */
void train_error_exit(tn_status status, const char *message);

#endif
