#include "train/deepspeed/json_keys.h"

#include "core/plain_text.h"
#include "text/plain_numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct reader {
    tn__keys *k;
    char *settings;
    char path[256]; /* of the value being read */
} reader;

/* ---- Messages -------------------------------------------------------------------------------- */

/* A quote from a file, or part of a message: short, and without control sequences. */
typedef struct quote {
    char text[160];
} quote;

static quote quote_of(const char *from) {
    quote q;
    snprintf(q.text, sizeof(q.text), "%.80s", from);
    q.text[tn__plain_text(q.text, q.text, strlen(q.text), false)] = 0;
    return q;
}

static quote value_quote(const tn__json *value) {
    quote q = {""};
    switch (value->kind) {
    case TN__JSON_LIST:
        return quote_of("a list");
    case TN__JSON_OBJECT:
        return quote_of("an object");
    case TN__JSON_TEXT:
        snprintf(q.text, sizeof(q.text), "\"%.120s\"", quote_of(value->text).text);
        return q;
    default:
        return quote_of(value->text);
    }
}

/* "from 0 to 3", ">= 0" */
static quote range_quote(const tn__key *key) {
    quote q;
    if (key->most < INFINITY) {
        const char *below = key->kind == TN__KEY_PAIR ? "below " : "";
        snprintf(q.text, sizeof(q.text), " from %.15g to %s%.15g", key->least, below, key->most);
    } else {
        snprintf(q.text, sizeof(q.text), " >= %.15g", key->least);
    }
    return q;
}

static quote words_quote(const char *const *words) {
    quote q = {""};
    size_t used = 0;
    for (int i = 0; words[i] && used < sizeof(q.text); i++) {
        const char *before = i == 0 ? "" : words[i + 1] ? ", " : " or ";
        used +=
            (size_t)snprintf(q.text + used, sizeof(q.text) - used, "%s\"%s\"", before, words[i]);
    }
    return q;
}

/* Describes what should have been there. */
static quote wanted_quote(const tn__key *key) {
    static const char *const of_kind[] = {
        [TN__KEY_SWITCH] = "true or false", [TN__KEY_COUNT] = "a whole number",
        [TN__KEY_NUMBER] = "a number",      [TN__KEY_PAIR] = "a list of two numbers",
        [TN__KEY_SECTION] = "an object",    [TN__KEY_VARIANT] = "an object"};
    if (key->kind == TN__KEY_CHOICE) {
        return words_quote(key->words);
    }
    bool ranged =
        key->kind == TN__KEY_COUNT || key->kind == TN__KEY_NUMBER || key->kind == TN__KEY_PAIR;
    quote q, range = ranged ? range_quote(key) : (quote){""};
    snprintf(q.text, sizeof(q.text), "%s%.80s", of_kind[key->kind], range.text);
    return q;
}

/* False after raising. */
static bool refuse_value(const reader *r, const tn__json *value, const char *wanted) {
    tn__raise(TN_EVALUE, r->k->operation, "%s: %s is %s (should be %s)", r->k->file, r->path,
              value_quote(value).text, wanted);
    return false;
}

static bool refuse_unsupported(const reader *r, const tn__json *value, const char *supported) {
    tn__raise(TN_EUNSUPPORTED, r->k->operation, "%s: %s is %s, and only %s is supported",
              r->k->file, r->path, value_quote(value).text, supported);
    return false;
}

/* How many letters must be inserted, deleted or replaced to turn one into the other (Levenshtein
 * 1966); only the first 63 letters count. */
static int edit_distance(const char *a, const char *b) {
    enum { MOST = 63 };
    int rows = (int)strnlen(a, MOST), columns = (int)strnlen(b, MOST), line[MOST + 1];
    for (int j = 0; j <= columns; j++) {
        line[j] = j;
    }
    for (int i = 1; i <= rows; i++) {
        int diagonal = line[0];
        line[0] = i;
        for (int j = 1; j <= columns; j++) {
            int exchanged = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = line[j];
            int moved = 1 + (line[j] < line[j - 1] ? line[j] : line[j - 1]);
            line[j] = exchanged < moved ? exchanged : moved;
        }
    }
    return line[columns];
}

/* Names the nearest key, unless even that is too far. */
static bool refuse_unknown(const reader *r, const char *name, const tn__key *keys) {
    const char *nearest = NULL;
    int least = (int)strnlen(name, 60) / 2 + 1;
    for (const tn__key *key = keys; key->name; key++) {
        int distance = edit_distance(name, key->name);
        if (distance < least) {
            least = distance;
            nearest = key->name;
        }
    }
    tn__raise(TN_EVALUE, r->k->operation, "%s: unknown key %s%s%s%s", r->k->file, r->path,
              nearest ? " (did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?)" : "");
    return false;
}

/* ---- Values ---------------------------------------------------------------------------------- */

static bool is_word(const tn__json *value, const char *word) {
    return value->kind == TN__JSON_WORD && strcmp(value->text, word) == 0;
}

static bool is_number(const tn__json *value) {
    return value->kind == TN__JSON_WHOLE || value->kind == TN__JSON_REAL;
}

/* False: not a number, or out of the key's range. */
static bool number_of(const tn__json *value, const tn__key *key, double *number) {
    *number = is_number(value) ? strtod(value->text, NULL) : NAN;
    return isfinite(*number) && *number >= key->least && *number <= key->most;
}

static bool read_switch(reader *r, const tn__key *key, const tn__json *value) {
    bool on = is_word(value, "true");
    *(bool *)(r->settings + key->at) = on;
    return on || is_word(value, "false") || refuse_value(r, value, wanted_quote(key).text);
}

static bool read_count(reader *r, const tn__key *key, const tn__json *value) {
    double number;
    *(int64_t *)(r->settings + key->at) = value->whole;
    return (value->kind == TN__JSON_WHOLE && number_of(value, key, &number)) ||
           refuse_value(r, value, wanted_quote(key).text);
}

static bool read_number(reader *r, const tn__key *key, const tn__json *value) {
    return number_of(value, key, (double *)(r->settings + key->at)) ||
           refuse_value(r, value, wanted_quote(key).text);
}

static bool read_pair(reader *r, const tn__key *key, const tn__json *value) {
    double *pair = (double *)(r->settings + key->at);
    for (uint32_t i = 0; i < 2; i++) {
        const tn__json *element = tn__json_at(value, i);
        if (!element || value->count != 2) {
            return refuse_value(r, value, wanted_quote(key).text);
        }
        if (!number_of(element, key, &pair[i]) || pair[i] == key->most) {
            return refuse_value(r, element, wanted_quote(key).text);
        }
    }
    return true;
}

static bool read_choice(reader *r, const tn__key *key, const tn__json *value) {
    for (int i = 0; value->kind == TN__JSON_TEXT && key->words[i]; i++) {
        if (strcasecmp(value->text, key->words[i]) == 0) {
            *(int *)(r->settings + key->at) = i;
            return true;
        }
    }
    return refuse_value(r, value, words_quote(key->words).text);
}

static bool read_off(reader *r, const tn__json *value) {
    const tn__json *enabled = tn__json_get(value, "enabled");
    return is_word(enabled ? enabled : value, "false") || refuse_unsupported(r, value, "false");
}

static bool read_fixed(reader *r, const tn__key *key, const tn__json *value) {
    bool same = is_number(value) ? strtod(value->text, NULL) == strtod(key->fixed, NULL)
                                 : value->text && strcmp(value->text, key->fixed) == 0;
    return same || refuse_unsupported(r, value, key->fixed);
}

static bool note_idle(const reader *r) {
    char *idle = r->k->idle;
    size_t used = strlen(idle);
    snprintf(idle + used, sizeof(r->k->idle) - used, "%s%s", used ? ", " : "", r->path);
    return true;
}

/* ---- Objects --------------------------------------------------------------------------------- */

static bool read_object(reader *r, const tn__json *object, const tn__key *keys);

static bool read_variant(reader *r, const tn__key *key, const tn__json *value) {
    tn__key keys[] = {
        {.name = "type", .kind = TN__KEY_CHOICE, .at = key->at, .words = key->words},
        {.name = "params", .kind = TN__KEY_SECTION},
        {.name = "legacy_fusion", .kind = TN__KEY_IDLE},
        {.name = NULL},
    };
    const tn__json *type = tn__json_get(value, "type");
    size_t length = strlen(r->path);
    snprintf(r->path + length, sizeof(r->path) - length, ".type");
    if (!type) {
        tn__raise(TN_EVALUE, r->k->operation, "%s: %s is missing", r->k->file, r->path);
        return false;
    }
    if (!read_choice(r, &keys[0], type)) {
        return false;
    }
    r->path[length] = 0;
    keys[1].keys = key->variants[*(const int *)(r->settings + key->at)];
    return read_object(r, value, keys);
}

static bool read_value(reader *r, const tn__key *key, const tn__json *value) {
    if (key->kind == TN__KEY_IDLE || is_word(value, "null")) {
        return key->kind != TN__KEY_IDLE || note_idle(r);
    }
    if (value->kind == TN__JSON_TEXT && strcmp(value->text, "auto") == 0) {
        return refuse_value(r, value, "an actual value: \"auto\" is not filled in here");
    }
    switch (key->kind) {
    case TN__KEY_SWITCH:
        return read_switch(r, key, value);
    case TN__KEY_COUNT:
        return read_count(r, key, value);
    case TN__KEY_NUMBER:
        return read_number(r, key, value);
    case TN__KEY_PAIR:
        return read_pair(r, key, value);
    case TN__KEY_CHOICE:
        return read_choice(r, key, value);
    case TN__KEY_OFF:
        return read_off(r, value);
    case TN__KEY_FIXED:
        return read_fixed(r, key, value);
    default:
        break;
    }
    if (value->kind != TN__JSON_OBJECT) {
        return refuse_value(r, value, wanted_quote(key).text);
    }
    return key->kind == TN__KEY_VARIANT ? read_variant(r, key, value)
                                        : read_object(r, value, key->keys);
}

static const tn__key *key_named(const tn__key *keys, const char *name) {
    while (keys->name && strcmp(keys->name, name) != 0 &&
           !(keys->other && strcmp(keys->other, name) == 0)) {
        keys++;
    }
    return keys->name ? keys : NULL;
}

/* Whether this is the first member with the key, under either name. */
static bool is_first(const tn__json *object, const tn__json *member, const tn__key *keys,
                     const tn__key *key) {
    const tn__json *before = tn__json_first(object);
    while (before != member && key_named(keys, before->key) != key) {
        before = tn__json_next(before);
    }
    return before == member;
}

static bool read_object(reader *r, const tn__json *object, const tn__key *keys) {
    size_t length = strlen(r->path);
    const tn__json *member = tn__json_first(object);
    for (uint32_t i = 0; i < object->count; i++, member = tn__json_next(member)) {
        const tn__key *key = key_named(keys, member->key);
        snprintf(r->path + length, sizeof(r->path) - length, "%s%s", length ? "." : "",
                 quote_of(member->key).text);
        if (!key) {
            return refuse_unknown(r, member->key, keys);
        }
        if (!is_first(object, member, keys, key)) {
            tn__raise(TN_EVALUE, r->k->operation, "%s: %s occurs twice", r->k->file, r->path);
            return false;
        }
        if (!read_value(r, key, member)) {
            return false;
        }
    }
    r->path[length] = 0;
    return true;
}

bool tn__keys_read(tn__keys *k, const char *text, size_t bytes, const tn__key *keys,
                   void *settings) {
    tn__json_file json;
    if (!tn__json_read_any(&json, text, bytes)) {
        tn__raise(json.wrong ? TN_EFORMAT : TN_ENOMEM, k->operation, "%s: %s (byte %zu)", k->file,
                  json.wrong ? json.wrong : "no memory to read it", json.at);
        return false;
    }
    reader r = {.k = k, .settings = settings};
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    bool object = json.values->kind == TN__JSON_OBJECT;
    if (!object) {
        tn__raise(TN_EVALUE, k->operation, "%s: the top level is %s (should be an object)", k->file,
                  value_quote(json.values).text);
    }
    bool done = object && read_object(&r, json.values, keys);
    tn__plain_numbers_end(numbers);
    tn__json_free(&json);
    return done;
}
