/* A list is entries between commas; an entry is text and brackets; a bracket is ranges of numbers
 * between commas. The first name has the first number of each bracket. */
#include "distributed/init/nodelist.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DIGITS = 18 };

static const char digits[] = "0123456789", text[] = "0123456789-_.abcdefghijklmnopqrstuvwxyz"
                                                    "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

static bool read_number(const char **at, uint64_t *number) {
    size_t length = strspn(*at, digits);
    *number = strtoull(*at, NULL, 10);
    *at += length;
    return length > 0 && length <= MOST_DIGITS;
}

/* Reads a bracket, "3]" or "07-09,12]", from after its '['. */
static bool read_bracket(const char **at, bool *several) {
    for (;;) {
        uint64_t low, high;
        if (!read_number(at, &low)) { return false; }
        high = low;
        if (**at == '-') {
            (*at)++;
            if (!read_number(at, &high) || high < low) { return false; }
        }
        char next = *(*at)++;
        *several |= high > low || next == ',';
        if (next != ',') { return next == ']'; }
    }
}

bool tn__nodelist_first(const char *list, char *name, size_t size, bool *several) {
    const char *at = list, *entry = list;
    size_t used = 0;
    *several = false;
    while (at) {
        if (!*at || *at == ',') {
            bool ends = !*at;
            if (at == entry) { return false; }
            if (entry == list) { name[used] = 0; }
            if (ends) { return true; }
            *several = true;
            entry = ++at;
            continue;
        }
        const char *piece = at;
        size_t length = strspn(at, text);
        at += length;
        if (*piece == '[') {
            piece = ++at;
            length = strspn(at, digits);
            if (!read_bracket(&at, several)) { return false; }
        }
        if (length == 0) { return false; }
        if (entry == list) {
            if (used + length >= size) { return false; }
            memcpy(name + used, piece, length);
            used += length;
        }
    }
    return false;
}
