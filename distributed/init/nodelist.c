/* A list is entries between commas; an entry is text and brackets; a bracket is ranges of numbers
 * between commas. Nothing is expanded: an entry's number of names is the product of its brackets',
 * and a name is found by its index. */
#include "distributed/init/nodelist.h"

#include <stdio.h>
#include <string.h>

enum { DIGITS = 18, BRACKETS = 8 };

typedef struct range {
    uint64_t low, high;
    int width; /* digits, with leading zeros */
} range;

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* A character of a name. */
static bool is_text(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
}

static bool read_number(const char **at, uint64_t *number, int *digits) {
    *number = 0;
    for (*digits = 0; is_digit(**at); (*at)++) {
        if (++*digits > DIGITS) { return false; }
        *number = *number * 10 + (uint64_t)(**at - '0');
    }
    return *digits > 0;
}

/* "3" or "07-09". */
static bool read_range(const char **at, range *r) {
    int digits;
    if (!read_number(at, &r->low, &r->width)) { return false; }
    r->high = r->low;
    if (**at == '-') {
        (*at)++;
        return read_number(at, &r->high, &digits) && r->high >= r->low &&
               r->high - r->low < TN__NODES_MOST;
    }
    return true;
}

/* Reads a bracket from after its '['. With an index >= 0 it writes the number there to
 * text[DIGITS + 2]. Returns how many numbers there are; -1 if it is not a bracket. */
static int64_t read_bracket(const char **at, int64_t index, char *text) {
    int64_t count = 0;
    for (;;) {
        range r;
        if (!read_range(at, &r)) { return -1; }
        int64_t here = (int64_t)(r.high - r.low + 1);
        if (index >= count && index < count + here) {
            snprintf(text, DIGITS + 2, "%0*llu", r.width,
                     (unsigned long long)(r.low + (uint64_t)(index - count)));
        }
        count += here;
        char next = *(*at)++;
        if (count > TN__NODES_MOST || (next != ',' && next != ']')) { return -1; }
        if (next == ']') { return count; }
    }
}

/* The numbers of an entry's brackets, and where it ends. */
typedef struct entry {
    const char *begin, *end;
    int64_t counts[BRACKETS];
    int brackets;
    int64_t names;
} entry;

static bool read_entry(const char *at, entry *e) {
    *e = (entry){.begin = at, .names = 1};
    char unused[DIGITS + 2];
    while (*at && *at != ',') {
        if (*at == '[') {
            at++;
            int64_t count = e->brackets < BRACKETS ? read_bracket(&at, -1, unused) : -1;
            if (count < 0 || e->names * count > TN__NODES_MOST) { return false; }
            e->names *= count;
            e->counts[e->brackets++] = count;
        } else if (!is_text(*at++)) {
            return false;
        }
    }
    e->end = at;
    return at > e->begin;
}

int64_t tn__nodelist_count(const char *list) {
    int64_t count = 0;
    entry e;
    for (const char *at = list; at; at = e.end + 1) {
        if (!read_entry(at, &e) || (count += e.names) > TN__NODES_MOST) { return -1; }
        if (!*e.end) { return count; }
    }
    return -1;
}

static bool write_name(const entry *e, int64_t index, char *name, size_t size) {
    int64_t choice[BRACKETS] = {0};
    for (int b = e->brackets - 1; b >= 0; b--) {
        choice[b] = index % e->counts[b];
        index /= e->counts[b];
    }
    size_t used = 0;
    int bracket = 0;
    for (const char *at = e->begin; at < e->end;) {
        char text[DIGITS + 2] = {*at++};
        if (*text == '[') { read_bracket(&at, choice[bracket++], text); }
        size_t length = strlen(text);
        if (used + length + 1 > size) { return false; }
        memcpy(name + used, text, length + 1);
        used += length;
    }
    return true;
}

bool tn__nodelist_name(const char *list, int64_t index, char *name, size_t size) {
    int64_t before = 0;
    entry e;
    if (index < 0 || index >= tn__nodelist_count(list)) { return false; }
    for (const char *at = list; read_entry(at, &e); at = e.end + 1) {
        if (index < before + e.names) { return write_name(&e, index - before, name, size); }
        before += e.names;
    }
    return false;
}
