/* torchrun's options that `tern run` refuses by name. */
#ifndef TERN_TOOLS_RUN_REFUSED_H
#define TERN_TOOLS_RUN_REFUSED_H

#include <tern/train.h>

enum { MOST_REFUSED = 32 };

/* Fills in their rows, at most MOST_REFUSED, hidden from --help. Using such an option ends the
 * process with the reason. */
void refused_options(tn_option *rows);

#endif
