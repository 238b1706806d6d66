/* Options of torchrun that `tern run` refuses by name. */
#ifndef TERN_TOOLS_RUN_REFUSED_H
#define TERN_TOOLS_RUN_REFUSED_H

#include <argp.h>
#include <stdbool.h>

enum { MOST_REFUSED = 32 };

/* The i-th of them, hidden from --help. False: there are no more. */
bool refused_option(int i, struct argp_option *option);

/* Ends the process with the reason when `key` is one of theirs. */
bool refuse_option(int key, struct argp_state *state);

#endif
