#include "data/tokenizer/cut.h"

#include "text/utf8.h"

#include <string.h>

bool tn__cut_begin(tn__cutter *c) {
    bool done = true;
    for (int i = 0; done && i < c->patterns->count; i++) {
        c->matching[i] = tn__matching_new();
        done = c->matching[i] != NULL;
    }
    return done;
}

void tn__cut_end(tn__cutter *c) {
    for (int i = 0; i < c->patterns->count; i++) {
        tn__matching_free(c->matching[i]);
    }
}

/* Cuts by pattern number `level` and those after it. */
static bool cut_by(tn__cutter *c, int level, const char *text, size_t bytes) {
    if (level == c->patterns->count) { return c->piece(c->user, text, bytes); }
    const tn__pattern *pattern = c->patterns->of[level];
    tn__matching *matching = c->matching[level];
    for (size_t at = 0; at < bytes;) {
        size_t end = tn__pattern_next(pattern, matching, text, bytes, at);
        if (end == 0 || !cut_by(c, level + 1, text + at, end - at)) { return false; }
        at = end;
    }
    return true;
}

/* The length of the valid UTF-8 that text[0 … bytes) begins with. */
static size_t valid_run(const char *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
        uint64_t eight;
        if (at + 8 <= bytes && (memcpy(&eight, text + at, 8), !(eight & 0x8080808080808080u))) {
            at += 8;
            continue;
        }
        int32_t code;
        int used = tn__utf8_decode(text + at, bytes - at, &code);
        if (used == 0) { break; }
        at += (size_t)used;
    }
    return at;
}

/* The length of the invalid bytes that text[0 … bytes) begins with. */
static size_t stray_run(const char *text, size_t bytes) {
    int32_t code;
    size_t at = 0;
    while (at < bytes && tn__utf8_decode(text + at, bytes - at, &code) == 0) {
        at++;
    }
    return at;
}

void tn__cut_whole(tn__cutter *c, size_t bytes) {
    for (int i = 0; i < c->patterns->count; i++) {
        tn__matching_begin(c->matching[i], bytes);
    }
}

bool tn__cut_part(tn__cutter *c, const char *text, size_t bytes, size_t place) {
    for (int i = 0; i < c->patterns->count; i++) {
        tn__matching_part(c->matching[i], text, place);
    }
    for (size_t at = 0; at < bytes;) {
        size_t valid = valid_run(text + at, bytes - at);
        if (valid && !cut_by(c, 0, text + at, valid)) { return false; }
        at += valid;
        size_t stray = stray_run(text + at, bytes - at);
        if (stray && !c->piece(c->user, text + at, stray)) { return false; }
        at += stray;
    }
    return true;
}
