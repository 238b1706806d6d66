/* Which file is what, and the oldest format: vocab.json, an object of ids by token, and merges.txt,
 * a pair on each line, best first. */
#include "data/tokenizer/load.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/reader.h"
#include "text/text.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char OPERATION[] = "tokenizer_load";

bool tn__build_vocab(tn__build *b, const tn__json *vocab, const char *key) {
    if (!vocab || vocab->kind != TN__JSON_OBJECT) {
        return tn__fail(TN_EFORMAT, b->operation, "%s: %s should be an object of ids by token",
                        b->path, key);
    }
    const tn__json *one = tn__json_first(vocab);
    for (uint32_t i = 0; i < vocab->count; i++, one = tn__json_next(one)) {
        int64_t id = one->kind == TN__JSON_WHOLE ? one->whole : -1;
        if (!tn__build_token(b, one->key, strlen(one->key), id, TN__TOKEN_BYTES)) { return false; }
    }
    return true;
}

bool tn__build_line(tn__build *b, const char *line, size_t bytes, const char *where) {
    const char *space = memchr(line, ' ', bytes);
    size_t left = space ? (size_t)(space - line) : 0, right = space ? bytes - left - 1 : 0;
    if (!space || memchr(space + 1, ' ', right)) {
        return tn__fail(TN_EFORMAT, b->operation,
                        "%s: should be two tokens with a space between them", where);
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
        if (length == 0 || (length >= 8 && memcmp(line, "#version", 8) == 0)) { continue; }
        snprintf(where, sizeof(where), "%s:%zu", path, number);
        if (!tn__build_line(b, line, length, where)) { return false; }
    }
    return true;
}

/* The caller frees it. *begin: where its text begins, after a byte order mark. */
static char *read_whole(const char *path, size_t *bytes, size_t *begin) {
    char *text = tn__read_whole(path, bytes, OPERATION);
    *begin = text && *bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    return text;
}

/* False after raising what is wrong, and where. */
static bool parse_json(tn__json_file *f, const char *path, const char *text, size_t bytes) {
    if (tn__json_read(f, text, bytes)) { return true; }
    if (f->wrong) {
        tn__raise(TN_EFORMAT, OPERATION, "%s: %s (at byte %zu)", path, f->wrong, f->at);
    } else {
        tn__raise(TN_ENOMEM, OPERATION, "%s: no memory", path);
    }
    return false;
}

static tn_tokenizer *load_merges(const tn__json *vocab, const char *vocab_path,
                                 const char *merges_path) {
    size_t bytes, begin;
    tn__build b = {0};
    if (!merges_path) {
        tn__raise(TN_EFORMAT, OPERATION, "%s: the key model is missing", vocab_path);
        return NULL;
    }
    char *merges = read_whole(merges_path, &bytes, &begin);
    bool done = merges && tn__build_begin(&b, OPERATION, vocab_path, TN__IN_ALPHABET) &&
                tn__build_vocab(&b, vocab, "the whole") &&
                read_merges(&b, merges + begin, bytes - begin, merges_path) &&
                tn__build_pattern(&b, tn__pattern_named("gpt2"), false);
    if (done) { tn__build_mark_special(&b); }
    tn_tokenizer *t = tn__build_end(&b, done);
    free(merges);
    return t;
}

/* A vocabulary needs its merges; tokenizer.json has both. */
static tn_tokenizer *load_json(const char *path, const char *merges_path) {
    size_t bytes, begin;
    tn__json_file json = {0};
    tn_tokenizer *t = NULL;
    char *text = read_whole(path, &bytes, &begin);
    if (text && parse_json(&json, path, text + begin, bytes - begin)) {
        t = tn__is_tokenizer_json(json.values) ? tn__load_tokenizer_json(json.values, path)
                                               : load_merges(json.values, path, merges_path);
    }
    tn__json_free(&json);
    free(text);
    return t;
}

/* ---- Which file is what ---------------------------------------------------------------------- */

/* PATH with `from` at its end replaced by `to`, into out[PATH_MAX]. False: it ends otherwise, or is
 * too long. */
static bool exchange_end(char *out, const char *path, const char *from, const char *to) {
    size_t bytes = strlen(path), end = strlen(from);
    if (bytes < end || strcmp(path + bytes - end, from) != 0 ||
        bytes - end + strlen(to) >= PATH_MAX) {
        return false;
    }
    memcpy(out, path, bytes - end);
    strcpy(out + bytes - end, to);
    return true;
}

/* The file within a folder; false: there is none. */
static bool file_in(char *out, const char *folder, const char *name) {
    struct stat s;
    return snprintf(out, PATH_MAX, "%s/%s", folder, name) < PATH_MAX && stat(out, &s) == 0;
}

static tn_tokenizer *load_folder(const char *path) {
    char file[PATH_MAX], merges[PATH_MAX];
    if (file_in(file, path, "tokenizer.json")) { return load_json(file, NULL); }
    if (file_in(file, path, "vocab.json") && file_in(merges, path, "merges.txt")) {
        return load_json(file, merges);
    }
    tn__raise(TN_EIO, OPERATION, "%s has no tokenizer.json, and no vocab.json with merges.txt",
              path);
    return NULL;
}

tn_tokenizer *tn_tokenizer_load(const char *path) {
    char other[PATH_MAX];
    struct stat s;
    if (tn__pending()) { return NULL; }
    if (!path) {
        tn__raise(TN_EVALUE, OPERATION, "the path is NULL");
        return NULL;
    }
    if (stat(path, &s) == 0 && S_ISDIR(s.st_mode)) { return load_folder(path); }
    if (exchange_end(other, path, "merges.txt", "vocab.json")) { return load_json(other, path); }
    if (exchange_end(other, path, "vocab.json", "merges.txt")) { return load_json(path, other); }
    return load_json(path, NULL);
}
