/* Cutting text into pieces by a regular expression (PCRE2, with its JIT compiler where the
 * processor and the system allow one). */
#ifndef TERN_DATA_TOKENIZER_PATTERN_H
#define TERN_DATA_TOKENIZER_PATTERN_H

#include "tern/core.h"

typedef struct tn__pattern tn__pattern; /* does not change once made: any number of threads */

/* "gpt2", "cl100k", "llama3" (the same), "o200k": their expressions; NULL: no such name. */
const char *tn__pattern_named(const char *name);
bool tn__pattern_has_name(const char *text); /* whether it is one of these expressions */

/* From an expression, or from a text to find verbatim. NULL after raising TN_EFORMAT, which says
 * `where` it is and what is wrong, or TN_ENOMEM. */
tn__pattern *tn__pattern_new(const char *text, bool literal, const char *operation,
                             const char *where);
void tn__pattern_free(tn__pattern *p);
const char *tn__pattern_text(const tn__pattern *p);
bool tn__pattern_is_literal(const tn__pattern *p);

/* What else matching needs; used by one thread at a time. NULL after raising TN_ENOMEM. */
typedef struct tn__matching tn__matching;
tn__matching *tn__matching_new(void);
void tn__matching_free(tn__matching *m);

/* Call before the pieces of a text of this many bytes: together they may take a number of steps, in
 * proportion to its length, that no sound expression needs. */
void tn__matching_begin(tn__matching *m, size_t bytes);
/* Call before the pieces of a part of it, which begins `at` bytes into the text. */
void tn__matching_part(tn__matching *m, const char *part, size_t at);

/* The end of the piece that begins at `at` < bytes: matches are pieces, and so is what is between
 * them. The text is UTF-8. 0 after raising TN_EFORMAT (the expression takes too many steps) or
 * TN_ENOMEM. */
size_t tn__pattern_next(const tn__pattern *p, tn__matching *m, const char *text, size_t bytes,
                        size_t at);

#endif
