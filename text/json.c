#include "text/json.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/reader.h"
#include "text/utf8.h"

#include <string.h>

enum { DEEPEST = 16, DEEPEST_OF_ANY = 512 };

typedef struct reader {
    tn__json_file *f;
    const char *begin, *at, *end;
    /* Next free byte of f->texts, which has room for all: the 0 after a string replaces its quote,
     * the 0 after a number the byte that ended it, if there was one. */
    char *free;
    uint32_t count;
    int64_t capacity;
    int depth;
    bool any; /* zeros, -0, NaN, infinities and deep nesting too */
} reader;

static bool reader_fail(reader *r, const char *wrong) {
    if (!r->f->wrong) {
        r->f->wrong = wrong;
        r->f->at = (size_t)(r->at - r->begin);
    }
    return false;
}

/* The next byte, or 0 at the end; a 0 in the text is invalid everywhere, too. */
static char peek_byte(const reader *r) {
    return r->at < r->end ? *r->at : 0;
}

static bool take_byte(reader *r, char byte) {
    bool there = peek_byte(r) == byte && r->at < r->end;
    r->at += there;
    return there;
}

static void skip_spaces(reader *r) {
    while (r->at < r->end &&
           (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')) {
        r->at++;
    }
}

static bool is_digit(char byte) {
    return byte >= '0' && byte <= '9';
}

/* Appends a new value; false: no memory. */
static bool new_value(reader *r, uint32_t *index) {
    if (!tn__grow(&r->f->values, (int64_t)r->count + 1, &r->capacity, sizeof(*r->f->values),
                  NULL)) {
        return false;
    }
    *index = r->count++;
    r->f->values[*index] = (tn__json){.values = 1};
    return true;
}

/* ---- Texts ----------------------------------------------------------------------------------- */

static bool read_hex(reader *r, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        char c = peek_byte(r);
        int digit = is_digit(c)            ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) { return reader_fail(r, "an escape needs four hexadecimal digits"); }
        *code = *code << 4 | (uint32_t)digit;
    }
    return true;
}

/* After "\u". Characters beyond 0xffff are two escapes, a high surrogate and a low one. */
static bool read_code(reader *r) {
    uint32_t code, low = 0;
    if (!read_hex(r, &code)) { return false; }
    if (code >= 0xd800 && code < 0xdc00) {
        if (!take_byte(r, '\\') || !take_byte(r, 'u') || !read_hex(r, &low) || low < 0xdc00 ||
            low > 0xdfff) {
            return reader_fail(r, "half a surrogate pair");
        }
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code <= 0xdfff) {
        return reader_fail(r, "half a surrogate pair");
    }
    if (code == 0 && !r->any) { return reader_fail(r, "a NUL character"); }
    r->free += tn__utf8_encode(code, r->free);
    return true;
}

static bool read_escape(reader *r) {
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (take_byte(r, 'u')) { return read_code(r); }
    char letter = peek_byte(r);
    const char *found = letter ? strchr(letters, letter) : NULL;
    if (!found) { return reader_fail(r, "an unknown escape"); }
    r->at++;
    *r->free++ = meant[found - letters];
    return true;
}

/* From its first quote to its last. */
static bool read_text(reader *r, const char **text, size_t *length) {
    *text = r->free;
    if (!take_byte(r, '"')) { return reader_fail(r, "a string should begin here"); }
    while (!take_byte(r, '"')) {
        if (r->at == r->end) { return reader_fail(r, "a string does not end"); }
        if (take_byte(r, '\\')) {
            if (!read_escape(r)) { return false; }
            continue;
        }
        int32_t code;
        int bytes = tn__utf8_decode(r->at, (size_t)(r->end - r->at), &code);
        if (bytes == 0 || (unsigned char)*r->at < 0x20) {
            return reader_fail(r, bytes ? "a control character" : "not UTF-8");
        }
        memcpy(r->free, r->at, (size_t)bytes);
        r->free += bytes;
        r->at += bytes;
    }
    *length = (size_t)(r->free - *text);
    *r->free++ = 0;
    return true;
}

/* ---- Numbers --------------------------------------------------------------------------------- */

static bool read_digits(reader *r) {
    const char *first = r->at;
    while (is_digit(peek_byte(r))) {
        r->at++;
    }
    return r->at > first || reader_fail(r, "a digit is missing here");
}

/* The number at [first, last), without '.' and 'e', if it fits. */
static bool whole_of(const char *first, const char *last, int64_t *whole) {
    bool negative = *first == '-';
    *whole = 0;
    for (const char *c = first + negative; c < last; c++) {
        int digit = *c - '0';
        if (__builtin_mul_overflow(*whole, 10, whole) ||
            __builtin_add_overflow(*whole, negative ? -digit : digit, whole)) {
            return false;
        }
    }
    return true;
}

static bool read_number(reader *r, tn__json *value) {
    const char *first = r->at;
    bool negative = take_byte(r, '-'), zero = peek_byte(r) == '0';
    if (!read_digits(r)) { return false; }
    if (zero && r->at - first > 1 + negative) { return reader_fail(r, "a number begins with 0"); }
    if (zero && negative && !r->any) { return reader_fail(r, "a number is -0"); }
    value->kind = zero && negative ? TN__JSON_REAL : TN__JSON_WHOLE;
    value->text = r->free;
    const char *last = r->at;
    if (take_byte(r, '.')) {
        value->kind = TN__JSON_REAL;
        if (!read_digits(r)) { return false; }
    }
    if (take_byte(r, 'e') || take_byte(r, 'E')) {
        value->kind = TN__JSON_REAL;
        if (!take_byte(r, '+')) { take_byte(r, '-'); }
        if (!read_digits(r)) { return false; }
    }
    if (value->kind == TN__JSON_WHOLE && !whole_of(first, last, &value->whole)) {
        value->kind = TN__JSON_REAL;
    }
    memcpy(r->free, first, (size_t)(r->at - first));
    r->free += r->at - first;
    *r->free++ = 0;
    return true;
}

/* ---- Values ---------------------------------------------------------------------------------- */

static bool read_word(reader *r, tn__json *value) {
    static const char *const words[] = {"null", "true", "false", "NaN", "Infinity", "-Infinity"};
    for (int i = 0; i < (r->any ? 6 : 3); i++) {
        size_t bytes = strlen(words[i]);
        if ((size_t)(r->end - r->at) >= bytes && memcmp(r->at, words[i], bytes) == 0) {
            r->at += bytes;
            value->kind = TN__JSON_WORD;
            value->text = words[i];
            return true;
        }
    }
    return reader_fail(r, "a value should begin here");
}

static bool read_value(reader *r, const char *key);

/* The members up to `close`, after the opening bracket. */
static bool read_members(reader *r, bool keys, char close, uint32_t *count) {
    skip_spaces(r);
    if (take_byte(r, close)) { return true; }
    do {
        const char *key = NULL;
        size_t ignored;
        skip_spaces(r);
        if (keys) {
            if (!read_text(r, &key, &ignored)) { return false; }
            skip_spaces(r);
            if (!take_byte(r, ':')) { return reader_fail(r, "':' is missing here"); }
        }
        if (!read_value(r, key)) { return false; }
        ++*count;
        skip_spaces(r);
    } while (take_byte(r, ','));
    return take_byte(r, close) || reader_fail(r, "',' or the closing bracket is missing here");
}

/* Into value number `index`. The array may move while members are read. */
static bool read_compound(reader *r, uint32_t index) {
    bool object = take_byte(r, '{');
    uint32_t count = 0;
    r->at += !object;
    if (++r->depth > (r->any ? DEEPEST_OF_ANY : DEEPEST)) {
        return reader_fail(r, "nested too deeply");
    }
    bool sound = read_members(r, object, object ? '}' : ']', &count);
    r->depth--;
    tn__json *value = &r->f->values[index];
    value->kind = object ? TN__JSON_OBJECT : TN__JSON_LIST;
    value->count = count;
    value->values = r->count - index;
    return sound;
}

static bool read_value(reader *r, const char *key) {
    uint32_t index;
    if (!new_value(r, &index)) { return false; }
    tn__json *value = &r->f->values[index];
    value->key = key;
    skip_spaces(r);
    char first = peek_byte(r);
    if (first == '{' || first == '[') { return read_compound(r, index); }
    if (first == '"') {
        value->kind = TN__JSON_TEXT;
        return read_text(r, &value->text, &value->bytes);
    }
    bool digits =
        is_digit(first) || (first == '-' && !(r->any && r->end - r->at > 1 && r->at[1] == 'I'));
    return digits ? read_number(r, value) : read_word(r, value);
}

static bool read_whole(tn__json_file *f, const char *text, size_t bytes, bool any) {
    *f = (tn__json_file){.texts = tn__malloc(bytes + 1)};
    reader r = {
        .f = f, .begin = text, .at = text, .end = text + bytes, .free = f->texts, .any = any};
    bool marked = bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0;
    bool sound =
        f->texts && (!marked || reader_fail(&r, "a byte order mark")) && read_value(&r, NULL);
    if (sound) {
        skip_spaces(&r);
        sound = r.at == r.end || reader_fail(&r, "nothing more should follow");
    }
    if (!sound) { tn__json_free(f); }
    return sound;
}

bool tn__json_read(tn__json_file *f, const char *text, size_t bytes) {
    return read_whole(f, text, bytes, false);
}

bool tn__json_read_any(tn__json_file *f, const char *text, size_t bytes) {
    return read_whole(f, text, bytes, true);
}

bool tn__json_open(tn__json_file *f, const char *path, size_t most, const char *operation) {
    size_t bytes;
    bool done = false;
    char *text = tn__read_whole(path, &bytes, operation);
    *f = (tn__json_file){0};
    if (text && bytes > most) {
        tn__raise(TN_EFORMAT, operation, "%s has %zu bytes (at most %zu)", path, bytes, most);
    } else if (text && !tn__json_read_any(f, text, bytes)) {
        tn__raise(f->wrong ? TN_EFORMAT : TN_ENOMEM, operation, "%s: byte %zu: %s", path, f->at,
                  f->wrong ? f->wrong : "no memory");
    } else if (text && f->values->kind != TN__JSON_OBJECT) {
        tn__raise(TN_EFORMAT, operation, "%s is not a JSON object", path);
        tn__json_free(f);
    } else {
        done = text;
    }
    free(text);
    return done;
}

void tn__json_free(tn__json_file *f) {
    free(f->values);
    free(f->texts);
    f->values = NULL;
    f->texts = NULL;
}

const tn__json *tn__json_get(const tn__json *object, const char *key) {
    if (object->kind != TN__JSON_OBJECT) { return NULL; }
    const tn__json *found = NULL, *member = tn__json_first(object);
    for (uint32_t i = 0; i < object->count; i++, member = tn__json_next(member)) {
        if (strcmp(member->key, key) == 0) { found = member; }
    }
    return found;
}

const char *tn__json_text(const tn__json *object, const char *key) {
    const tn__json *value = object && key ? tn__json_get(object, key) : NULL;
    return value && value->kind == TN__JSON_TEXT ? value->text : NULL;
}

const tn__json *tn__json_at(const tn__json *list, uint32_t index) {
    if (list->kind != TN__JSON_LIST || index >= list->count) { return NULL; }
    const tn__json *element = tn__json_first(list);
    while (index--) {
        element = tn__json_next(element);
    }
    return element;
}
