/* Options that many programs have, as rows of their tables; and the command line they came in. */
#ifndef TERN_TRAIN_OPTIONS_H
#define TERN_TRAIN_OPTIONS_H

#include "tern/train.h"

enum { TN__OPTION_ROWS = 16 }; /* at most */

/* Writes the rows, a heading first; returns how many. */
int tn__setup_options(tn_setup *s, tn_option *rows);
int tn__run_options(tn_run_options *o, tn_option *rows);

/* What to type to continue this run; the caller frees. NULL when that is not known: the program's
 * options were not read by tn_options_parse, or another launcher than `tern run` has started its
 * ranks. */
char *tn__command_to_continue(int ranks);

#endif
