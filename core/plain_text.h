/* Text for people: what others wrote, without what a terminal would take for a command.
 *
 * A name in a file, a peer's report or a program's line may hold anything. On a terminal escape
 * sequences move the cursor, rename the window, fill the clipboard; a \b hides what is before it.
 * So whatever quotes others passes through here on its way to a person. UTF-8 stays as it is. */
#ifndef TERN_CORE_PLAIN_TEXT_H
#define TERN_CORE_PLAIN_TEXT_H

#include "tern/core.h"

/* Writes `from` to `to`, which may be the same and needs no more bytes; returns how many it wrote.
 * Sequences that begin with ESC [ are dropped: colours, the cursor. Every other control character
 * but the tab becomes '?': C0 (the newline too: give it lines), DEL, and C1 as UTF-8 or as a single
 * byte. */
TN_API size_t tn__plain_text(char *to, const char *from, size_t length);

/* A text from a file, short and plain enough for a message. */
typedef struct tn__quoted {
    char text[64];
} tn__quoted;
TN_API tn__quoted tn__quote(const char *text, size_t bytes);
TN_API tn__quoted tn__show(const char *text); /* the same of a string */

/* tn__plain_text in place, line by line, for a string. */
TN_API void tn__plain_lines(char *text);

#endif
