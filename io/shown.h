/* A text from a file for a message: short, and without control sequences.
 *
 *     tn__raise(TN_EFORMAT, operation, "%s: \"%s\" is …", path, tn__show(name).text);
 */
#ifndef TERN_IO_SHOWN_H
#define TERN_IO_SHOWN_H

#include <stdio.h>

typedef struct tn__shown {
    char text[64];
} tn__shown;

static inline tn__shown tn__show(const char *text) {
    tn__shown s;
    snprintf(s.text, sizeof(s.text), "%.63s", text);
    for (char *c = s.text; *c; c++) {
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
    }
    return s;
}

#endif
