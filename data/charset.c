/* A text in memory, and its characters as tokens. UTF-8 is read strictly: no overlong forms,
 * surrogates or stray bytes. */
#include "core/alive.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/reader.h"
#include "tern/data.h"
#include "text/utf8.h"

#include <string.h>

enum { CODE_POINTS = 0x110000 };

typedef struct character {
    uint32_t code;
    char text[5]; /* UTF-8 and a 0 */
} character;

struct tn_charset {
    tn__alive alive;
    int size;
    character of[]; /* by code point, ascending */
};

char *tn_text_read(const char *path, size_t *bytes) {
    size_t ignored;
    return tn__read_whole(path, bytes ? bytes : &ignored, "text_read");
}

void tn_text_free(char *text) {
    free(text);
}

/* Reads the next character of text[*at … bytes) and steps over it; -1 after raising TN_EFORMAT. */
static int32_t next_code(const char *text, size_t bytes, size_t *at, const char *operation) {
    int32_t code;
    int used = tn__utf8_decode(text + *at, bytes - *at, &code);
    if (!used) {
        tn__raise(TN_EFORMAT, operation, "the byte 0x%02x at %zu is not UTF-8",
                  (unsigned char)text[*at], *at);
        return -1;
    }
    *at += (size_t)used;
    return code;
}

static bool mark_codes(const char *text, size_t bytes, uint8_t *seen, int *count) {
    for (size_t at = 0; at < bytes;) {
        int32_t code = next_code(text, bytes, &at, "charset");
        if (code < 0) { return false; }
        *count += !seen[code];
        seen[code] = 1;
    }
    return true;
}

TN__ALIVE_LIST(charsets, "character set");

static tn_charset *charset_of(const uint8_t *seen, int count) {
    tn_charset *c = tn__malloc_for(sizeof(*c) + (size_t)count * sizeof(character), "charset");
    if (!c) { return NULL; }
    tn__alive_begin(&charsets, c);
    c->size = 0;
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        if (seen[code]) {
            character *one = &c->of[c->size++];
            one->code = code;
            one->text[tn__utf8_encode(code, one->text)] = 0;
        }
    }
    return c;
}

tn_charset *tn_charset_from_text(const char *text, size_t bytes) {
    if (!text || bytes == 0) {
        tn__raise(TN_EVALUE, "charset", "the text is empty");
        return NULL;
    }
    uint8_t *seen = tn__calloc_for(CODE_POINTS, 1, "charset");
    if (!seen) { return NULL; }
    int count = 0;
    tn_charset *c = mark_codes(text, bytes, seen, &count) ? charset_of(seen, count) : NULL;
    free(seen);
    return c;
}

void tn_charset_free(tn_charset *c) {
    if (c && tn__alive_end(&charsets, c, "charset_free")) { free(c); }
}

int tn_charset_size(const tn_charset *c) {
    return c ? c->size : 0;
}

static int token_of(const tn_charset *c, uint32_t code) {
    int low = 0, high = c->size - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (c->of[middle].code < code) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return c->of[low].code == code ? low : -1;
}

int64_t tn_charset_encode(const tn_charset *c, const char *text, size_t bytes, int32_t *out) {
    if (!c || (bytes && !(text && out))) {
        tn__raise(TN_EVALUE, "charset_encode", "an argument is NULL");
        return -1;
    }
    int64_t count = 0;
    for (size_t at = 0; at < bytes;) {
        size_t start = at;
        int32_t code = next_code(text, bytes, &at, "charset_encode");
        if (code < 0) { return -1; }
        int token = token_of(c, (uint32_t)code);
        if (token < 0) {
            tn__raise(TN_EVALUE, "charset_encode",
                      "the character U+%04X at byte %zu is not one of the set's %d", (unsigned)code,
                      start, c->size);
            return -1;
        }
        out[count++] = token;
    }
    return count;
}

const char *tn_charset_text(const tn_charset *c, int64_t token) {
    if (!c || token < 0 || token >= c->size) {
        tn__raise(TN_EINDEX, "charset_text", "token %lld, but the set has %d", (long long)token,
                  tn_charset_size(c));
        return "";
    }
    return c->of[token].text;
}
