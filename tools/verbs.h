/* The verbs of `tern`: each is a main function of its own. */
#ifndef TERN_TOOLS_VERBS_H
#define TERN_TOOLS_VERBS_H

#include <tern/core.h>

int run_main(int argc, char **argv);
int tokenizer_main(int argc, char **argv);
int tokens_main(int argc, char **argv);
int train_main(int argc, char **argv); /* of examples/11_gpt2.c, compiled under this name */
int eval_main(int argc, char **argv);
int generate_main(int argc, char **argv);
int convert_main(int argc, char **argv);
int plan_main(int argc, char **argv);
int info_main(int argc, char **argv);

/* The guard's (run_guard.c): `tern _guard PIPE MARKER`. */
int guard_main(int argc, char **argv);

/* What the example has instead of tn_error_exit: names the command, since the lines of the example
 * mean nothing to the command's user. */
void train_error_exit(tn_status status, const char *message);

#endif
