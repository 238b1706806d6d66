/* Which file is what, and the oldest of the formats: vocab.json, an object of ids by token, and
 * merges.txt, a pair on each line, best first. */
#include "data/tokenizer_load.h"

#include "core/error.h"
#include "core/json.h"
#include "core/memory.h"
#include "core/reader.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char OPERATION[] = "tokenizer_load";

bool tn__build_vocab(tn__build *b, const tn__json *vocab, const char *key) {
    if (!vocab || vocab->kind != TN__JSON_OBJECT) {
        tn__raise(TN_EFORMAT, b->operation, "%s: %s should be an object of ids by token", b->path,
                  key);
        return false;
    }
    const tn__json *one = tn__json_first(vocab);
    for (uint32_t i = 0; i < vocab->count; i++, one = tn__json_next(one)) {
        int64_t id = one->kind == TN__JSON_WHOLE ? one->whole : -1;
        if (!tn__build_token(b, one->key, strlen(one->key), id, TN__TOKEN_BYTES)) {
            return false;
        }
    }
    return true;
}

bool tn__build_line(tn__build *b, const char *line, size_t bytes, const char *where) {
    const char *space = memchr(line, ' ', bytes);
    size_t left = space ? (size_t)(space - line) : 0, right = space ? bytes - left - 1 : 0;
    if (!space || memchr(space + 1, ' ', right)) {
        tn__raise(TN_EFORMAT, b->operation, "%s: should be two tokens with a space between them",
                  where);
        return false;
    }
    return tn__build_pair(b, line, left, space + 1, right, where);
}

static bool read_merges(tn__build *b, const char *text, size_t bytes, const char *path) {
    char where[PATH_MAX + 32];
    size_t number = 0;
    for (size_t at = 0, end; at < bytes; at = end + 1) {
        const char *line = text + at, *newline = memchr(line, '\n', bytes - at);
        end = newline ? (size_t)(newline - text) : bytes;
        size_t length = end - at;
        length -= length && line[length - 1] == '\r';
        number++;
        if (length == 0 || (length >= 8 && memcmp(line, "#version", 8) == 0)) {
            continue;
        }
        snprintf(where, sizeof(where), "%s:%zu", path, number);
        if (!tn__build_line(b, line, length, where)) {
            return false;
        }
    }
    return true;
}

char *tn__read_file(const char *path, size_t *bytes, size_t *begin) {
    char *text = tn__read_whole(path, bytes, OPERATION);
    *begin = text && *bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    return text;
}

bool tn__read_json(tn__json_file *f, const char *path, const char *text, size_t bytes) {
    if (tn__json_read(f, text, bytes)) {
        return true;
    }
    if (f->wrong) {
        tn__raise(TN_EFORMAT, OPERATION, "%s: %s (at byte %zu)", path, f->wrong, f->at);
    } else {
        tn__raise(TN_ENOMEM, OPERATION, "%s: no memory", path);
    }
    return false;
}

static tn_tokenizer *load_pair(const char *vocab_path, const char *merges_path) {
    size_t vocab_bytes = 0, merges_bytes = 0, vocab_at = 0, merges_at = 0;
    tn__json_file json = {0};
    tn__build b = {0};
    char *vocab = tn__read_file(vocab_path, &vocab_bytes, &vocab_at);
    char *merges = vocab ? tn__read_file(merges_path, &merges_bytes, &merges_at) : NULL;
    bool done = merges &&
                tn__read_json(&json, vocab_path, vocab + vocab_at, vocab_bytes - vocab_at) &&
                tn__build_begin(&b, OPERATION, vocab_path, TN__IN_ALPHABET) &&
                tn__build_vocab(&b, json.values, "the whole") &&
                read_merges(&b, merges + merges_at, merges_bytes - merges_at, merges_path) &&
                tn__build_pattern(&b, tn__pattern_named("gpt2"), false);
    if (done) {
        tn__build_mark_special(&b);
    }
    tn_tokenizer *t = tn__build_end(&b, done);
    tn__json_free(&json);
    free(merges);
    free(vocab);
    return t;
}

/* ---- Which file is what ---------------------------------------------------------------------- */

/* PATH with `from` at its end replaced by `to`, into room[PATH_MAX]. False: it has another end, or
 * is too long. */
static bool exchange_end(char *room, const char *path, const char *from, const char *to) {
    size_t bytes = strlen(path), end = strlen(from);
    if (bytes < end || strcmp(path + bytes - end, from) != 0 ||
        bytes - end + strlen(to) >= PATH_MAX) {
        return false;
    }
    memcpy(room, path, bytes - end);
    strcpy(room + bytes - end, to);
    return true;
}

static bool is_there(const char *path) {
    struct stat s;
    return stat(path, &s) == 0;
}

/* The file within a folder; false: there is none. */
static bool file_in(char *room, const char *folder, const char *name) {
    return snprintf(room, PATH_MAX, "%s/%s", folder, name) < PATH_MAX && is_there(room);
}

static tn_tokenizer *load_folder(const char *path) {
    char one[PATH_MAX], other[PATH_MAX];
    if (file_in(one, path, "vocab.json") && file_in(other, path, "merges.txt")) {
        return load_pair(one, other);
    }
    tn__raise(TN_EIO, OPERATION, "%s has no tokenizer (vocab.json and merges.txt)", path);
    return NULL;
}

tn_tokenizer *tn_tokenizer_load(const char *path) {
    char other[PATH_MAX];
    struct stat s;
    if (tn__pending()) {
        return NULL;
    }
    if (!path) {
        tn__raise(TN_EVALUE, OPERATION, "the path is NULL");
        return NULL;
    }
    if (stat(path, &s) == 0 && S_ISDIR(s.st_mode)) {
        return load_folder(path);
    }
    if (exchange_end(other, path, "vocab.json", "merges.txt")) {
        return load_pair(path, other);
    }
    if (exchange_end(other, path, "merges.txt", "vocab.json")) {
        return load_pair(other, path);
    }
    tn__raise(is_there(path) ? TN_EFORMAT : TN_EIO, OPERATION,
              is_there(path) ? "%s is no tokenizer's file" : "%s is not there", path);
    return NULL;
}
