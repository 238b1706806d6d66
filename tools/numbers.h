/* Numbers in a command's arguments. What is none, or out of range, ends the process with a message
 * that says what is wanted, as argp_error does. */
#ifndef TERN_TOOLS_NUMBERS_H
#define TERN_TOOLS_NUMBERS_H

#include <argp.h>
#include <stdint.h>

/* `text` of the option --name. INT64_MAX and INFINITY as `most`: there is no limit. */
int64_t argument_whole(struct argp_state *state, const char *name, const char *text, int64_t least,
                       int64_t most);
double argument_real(struct argp_state *state, const char *name, const char *text, double least,
                     double most);

#endif
