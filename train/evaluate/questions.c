/* Questions with endings to choose from, read from JSON lines (questions.h). Lines are not
 * trusted; errors name their number. */
#include "train/evaluate/questions.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/reader.h"
#include "text/json.h"

#include <stdlib.h>
#include <string.h>

static const char operation[] = "evaluate_choices";

typedef struct reading {
    tn__questions *q;
    const tn_tokenizer *tokenizer;
    int64_t context;
    const char *path;
    int64_t line;
} reading;

/* Always false. */
static bool refuse_line(const reading *r, const char *what) {
    return tn__fail(TN_EFORMAT, operation, "%s:%lld: %s", r->path, (long long)r->line, what);
}

/* ---- One line -------------------------------------------------------------------------------- */

/* Appends the tokens of a text. False after raising. */
static bool encode_text(const reading *r, const char *text, size_t bytes, tn__ids_part *part) {
    part->at = r->q->ids.count;
    bool done = tn_tokenizer_encode(r->tokenizer, text, bytes, false, &r->q->ids) == TN_OK;
    part->count = r->q->ids.count - part->at;
    return done;
}

/* Appends the tokens of an ending with a space before it. */
static bool encode_ending(const reading *r, const tn__json *value, tn__ids_part *part) {
    if (*value->text == ' ') { return encode_text(r, value->text, value->bytes, part); }
    char *spaced = tn__malloc_for(value->bytes + 1, operation);
    if (!spaced) { return false; }
    spaced[0] = ' ';
    memcpy(spaced + 1, value->text, value->bytes);
    bool done = encode_text(r, spaced, value->bytes + 1, part);
    free(spaced);
    return done;
}

static int64_t count_characters(const tn__json *value) {
    int64_t count = 0;
    for (size_t i = 0; i < value->bytes; i++) {
        count += ((unsigned char)value->text[i] & 0xc0) != 0x80; /* begins a character */
    }
    return count;
}

static bool add_ending(const reading *r, const tn__json *value) {
    tn__questions *q = r->q;
    if (value->kind != TN__JSON_TEXT || value->bytes == 0) {
        return refuse_line(r, "an ending is not a string, or is empty");
    }
    if (!tn__grow(&q->endings, q->ending_count + 1, &q->ending_capacity, sizeof(*q->endings),
                  operation)) {
        return false;
    }
    tn__question_ending e = {.characters = count_characters(value), .question = q->count};
    if (!encode_ending(r, value, &e.ids)) { return false; }
    if (e.ids.count < 1 || e.ids.count > r->context) {
        return tn__fail(
            TN_EFORMAT, operation,
            "%s:%lld: an ending has %lld tokens but must have from 1 to the context, %lld", r->path,
            (long long)r->line, (long long)e.ids.count, (long long)r->context);
    }
    q->endings[q->ending_count++] = e;
    return true;
}

/* The index of an ending: 3 or "3"; -1: neither, or out of range. */
static int64_t read_label(const tn__json *value, int64_t endings) {
    int64_t label = -1;
    if (value && value->kind == TN__JSON_WHOLE) {
        label = value->whole;
    } else if (value && value->kind == TN__JSON_TEXT && *value->text) {
        char *end;
        long long number = strtoll(value->text, &end, 10);
        label = *end || *value->text < '0' || *value->text > '9' ? -1 : (int64_t)number;
    }
    return label < endings ? label : -1;
}

static bool add_question(const reading *r, const tn__json *line) {
    tn__questions *q = r->q;
    const tn__json *prompt = tn__json_get(line, "ctx"), *endings = tn__json_get(line, "endings");
    if (!prompt || prompt->kind != TN__JSON_TEXT) {
        return refuse_line(r, "there is no string \"ctx\"");
    }
    if (!endings || endings->kind != TN__JSON_LIST || endings->count < 2) {
        return refuse_line(r, "there is no list \"endings\" of at least two strings");
    }
    if (!tn__grow(&q->list, q->count + 1, &q->capacity, sizeof(*q->list), operation)) {
        return false;
    }
    tn__question added = {.first = q->ending_count,
                          .count = endings->count,
                          .label = read_label(tn__json_get(line, "label"), endings->count)};
    if (added.label < 0) {
        return refuse_line(r, "\"label\" must be the number of an ending, from 0");
    }
    if (!encode_text(r, prompt->text, prompt->bytes, &added.prompt)) { return false; }
    if (added.prompt.count < 1) {
        return refuse_line(r, "\"ctx\" has no tokens, so an ending's first token would follow "
                              "nothing");
    }
    for (const tn__json *at = tn__json_first(endings); q->ending_count < added.first + added.count;
         at = tn__json_next(at)) {
        if (!add_ending(r, at)) { return false; }
    }
    q->list[q->count++] = added;
    return true;
}

static bool read_line(const reading *r, const char *text, size_t bytes) {
    tn__json_file json;
    if (strspn(text, " \t\r") >= bytes) { return true; }
    if (!tn__json_read_any(&json, text, bytes)) {
        if (!json.wrong) {
            tn__raise(TN_ENOMEM, operation, "%s: no memory for a line", r->path);
        } else {
            tn__raise(TN_EFORMAT, operation, "%s:%lld: byte %zu of the line: %s", r->path,
                      (long long)r->line, json.at + 1, json.wrong);
        }
        return false;
    }
    bool done =
        json.values[0].kind == TN__JSON_OBJECT
            ? add_question(r, &json.values[0])
            : refuse_line(r, "a line must be an object with \"ctx\", \"endings\" and \"label\"");
    tn__json_free(&json);
    return done;
}

/* ---- The file -------------------------------------------------------------------------------- */

tn_status tn__questions_read(tn__questions *q, const char *path, const tn_tokenizer *tokenizer,
                             int64_t context) {
    size_t bytes;
    char *text = tn__read_whole(path, &bytes, operation);
    if (!text) { return tn_error(); }
    reading r = {.q = q, .tokenizer = tokenizer, .context = context, .path = path, .line = 1};
    bool sound = true;
    for (const char *at = text, *all = text + bytes; sound && at < all; r.line++) {
        const char *end = memchr(at, '\n', (size_t)(all - at));
        end = end ? end : all;
        sound = read_line(&r, at, (size_t)(end - at));
        at = end + 1;
    }
    if (sound && q->count == 0) {
        tn__raise(TN_EFORMAT, operation, "%s: no questions in it", path);
    }
    free(text);
    return tn_error();
}

void tn__questions_free(tn__questions *q) {
    tn_ids_free(&q->ids);
    free(q->list);
    free(q->endings);
    *q = (tn__questions){0};
}
