/* Text cut into pieces: at bytes that belong to no character, then by patterns. */
#ifndef TERN_DATA_TOKENIZER_CUT_H
#define TERN_DATA_TOKENIZER_CUT_H

#include "data/tokenizer/pattern.h"

enum { TN__MOST_PATTERNS = 8 };

/* Patterns, each of which cuts the pieces of the one before it. */
typedef struct tn__patterns {
    tn__pattern *of[TN__MOST_PATTERNS];
    int count;
} tn__patterns;

typedef struct tn__cutter {
    const tn__patterns *patterns;
    tn__matching *matching[TN__MOST_PATTERNS];
    /* Called with each piece, in order; it returns false to stop. */
    bool (*piece)(void *user, const char *text, size_t bytes);
    void *user;
} tn__cutter;

/* With patterns, piece and user filled in. False after raising; call tn__cut_end in any case. */
bool tn__cut_begin(tn__cutter *c);
void tn__cut_end(tn__cutter *c);

/* Call before the parts of a text of this many bytes. */
void tn__cut_whole(tn__cutter *c, size_t bytes);

/* Cuts a part, which begins `place` bytes into the text. False if `piece` returned false, or after
 * raising. */
bool tn__cut_part(tn__cutter *c, const char *text, size_t bytes, size_t place);

#endif
