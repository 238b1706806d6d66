/* Where a long text may be cut so that the tokens of the parts are those of the whole: where the
 * patterns of GPT-2's tokenizer and of later ones always cut too. */
#ifndef TERN_DATA_CORPUS_CUT_H
#define TERN_DATA_CORPUS_CUT_H

#include <stddef.h>

/* The last such place in text[0 … bytes), at most `most` bytes in; 0: there is none. Some
 * tokenizers put a space in front of a text that has none, so a line's beginning is the second
 * choice. */
size_t tn__last_cut(const char *text, size_t bytes, size_t most);

#endif
