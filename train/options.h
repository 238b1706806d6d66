/* Options that many programs share, as table rows; and the command line they came in. */
#ifndef TERN_TRAIN_OPTIONS_H
#define TERN_TRAIN_OPTIONS_H

#include "core/buffer.h"
#include "tern/train.h"

enum { TN__OPTION_ROWS = 24 }; /* at most */

/* Writes the rows, a heading first; returns how many. */
int tn__setup_options(tn_setup *s, tn_option *rows);
int tn__run_options(tn_run_options *o, tn_option *rows);

/* command_line.c. Keeps the words of the command line, and then the values that they gave to all
 * options, as JSON (NULL: unknown), which it frees. */
void tn__line_keep(int count, char **words);
void tn__line_keep_values(char *json);

/* The command that continues this run; the caller frees. NULL if unknown: tn_options_parse did not
 * read the options, or a launcher other than `tern run` started the ranks. */
char *tn__command_to_continue(int ranks);

/* The members "command", the words without those that resume or start over, and "options", the
 * values of all. Empty if tn_options_parse did not read them. */
void tn__options_put(tn__buffer *j);

/* again.c. Puts the command of a run.json in the place of `--again FILE`; the words live on. False
 * after raising. */
bool tn__record_expand(int *argc, char ***argv);
/* For an abbreviation of --again, which comes too late. */
void tn__record_refuse(const char *text, void *to);
/* Whether the command of --again, if it was given, is done on as many ranks as in its record. False
 * after raising TN_EMISMATCH. */
bool tn__record_ranks_fit(int ranks);

#endif
