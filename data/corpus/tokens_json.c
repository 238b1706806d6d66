#include "data/corpus/tokens_json.h"

#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "text/json.h"
#include "text/json_write.h"
#include "text/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool tn__is_token_shard(const char *name, const char *ending) {
    static const char *const splits[] = {"train_", "val_"};
    for (int i = 0; i < 2; i++) {
        size_t bytes = strlen(splits[i]);
        if (strncmp(name, splits[i], bytes) == 0) {
            const char *number = name + bytes;
            size_t digits = strspn(number, "0123456789");
            return digits >= 6 && strcmp(number + digits, ending) == 0;
        }
    }
    return false;
}

/* The members that readers need. */
static tn__tokens_state state_of(const tn__json *whole, tn__tokens_told *told) {
    const char *format = tn__json_text(whole, "format");
    const char *tokenizer = tn__json_text(whole, "tokenizer");
    const tn__json *finished = tn__json_get(whole, "finished");
    const tn__json *size = tn__json_get(whole, "vocab");
    if (!format || strcmp(format, "tern-tokens-1") != 0 || !finished ||
        finished->kind != TN__JSON_WORD) {
        return TN__TOKENS_NONE;
    }
    if (strcmp(finished->text, "true") != 0) { return TN__TOKENS_UNFINISHED; }
    if (!size || size->kind != TN__JSON_WHOLE || size->whole < 1 || size->whole > INT32_MAX) {
        return TN__TOKENS_NONE;
    }
    *told = (tn__tokens_told){.vocab = size->whole};
    snprintf(told->tokenizer, sizeof(told->tokenizer), "%s", tokenizer ? tokenizer : "");
    return TN__TOKENS_WHOLE;
}

static tn__tokens_state look_at(const char *path, tn__tokens_told *told, const char *operation) {
    tn__json_file json;
    if (access(path, F_OK) != 0) { return TN__TOKENS_NONE; }
    if (!tn__json_open(&json, path, SIZE_MAX, operation)) { return TN__TOKENS_ERROR; }
    tn__tokens_state state = state_of(json.values, told);
    tn__json_free(&json);
    if (state != TN__TOKENS_NONE) { return state; }
    tn__raise(TN_EFORMAT, operation, "%s is not what `tern tokens` writes", path);
    return TN__TOKENS_ERROR;
}

tn__tokens_state tn__tokens_look(const char *folder, tn__tokens_told *told, const char *operation) {
    char *path = tn__folder_path(folder, TN__TOKENS_JSON, operation);
    if (!path) { return TN__TOKENS_ERROR; }
    tn__tokens_state state = look_at(path, told, operation);
    free(path);
    return state;
}

tn__tokens_state tn__tokens_beside(const char *shard, tn__tokens_told *told,
                                   const char *operation) {
    const char *slash = strrchr(shard, '/');
    if (!tn__is_token_shard(slash ? slash + 1 : shard, ".bin")) { return TN__TOKENS_NONE; }
    char *folder = tn__strdup_for(slash ? shard : ".", operation);
    if (!folder) { return TN__TOKENS_ERROR; }
    if (slash) { folder[slash - shard + (slash == shard)] = 0; }
    tn__tokens_state state = tn__tokens_look(folder, told, operation);
    free(folder);
    return state;
}

bool tn__tokens_allow(const char *shard, int64_t vocab, const char *operation) {
    tn__tokens_told told = {0};
    switch (tn__tokens_beside(shard, &told, operation)) {
    case TN__TOKENS_NONE:
        return true;
    case TN__TOKENS_UNFINISHED:
        return tn__fail(
            TN_EFORMAT, operation,
            "%s is one of an unfinished set: `tern tokens` is making it, or was interrupted "
            "(run it again)",
            shard);
    case TN__TOKENS_WHOLE:
        return told.vocab <= vocab ||
               tn__fail(TN_EFORMAT, operation,
                        "%s has tokens of a vocabulary of %" PRId64 ", but %" PRId64
                        " are wanted here (" TN__TOKENS_JSON " beside it)",
                        shard, told.vocab, vocab);
    case TN__TOKENS_ERROR:
        break;
    }
    return false;
}

bool tn__tokenizer_digest(const tn_tokenizer *t, char *digits, const char *operation) {
    tn__digest *digest = tn__digest_new(operation);
    if (!digest) { return false; }
    for (int64_t id = 0; id < tn_tokenizer_size(t); id++) {
        size_t bytes;
        const char *token = tn_tokenizer_bytes(t, id, &bytes);
        uint64_t length = bytes;
        tn__digest_add(digest, &length, sizeof(length));
        tn__digest_add(digest, token, bytes);
    }
    tn__digest_text(digest, digits);
    tn__digest_free(digest);
    return true;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* A path may not be UTF-8, but JSON must be. */
static void put_path(tn__buffer *j, const char *path) {
    char *copy = tn__strdup_for(path, j->operation);
    j->failed = j->failed || !copy;
    int32_t code;
    for (char *c = copy; c && *c;) {
        int bytes = tn__utf8_decode(c, strlen(c), &code);
        *c = bytes ? *c : '?';
        c += bytes ? bytes : 1;
    }
    tn__json_put_string(j, copy ? copy : "");
    free(copy);
}

static void put_counts(tn__buffer *j, const char *name, int64_t shards, int64_t tokens) {
    tn__buffer_format(j, " \"%s\": {\"shards\": %" PRId64 ", \"tokens\": %" PRId64 "},\n", name,
                      shards, tokens);
}

bool tn__tokens_put(tn__file *f, const tn__tokens_told *told, int32_t eot, bool pairs,
                    const tn_tokens_made *made, const char *const *paths, int count) {
    tn__buffer j = {.operation = "tokens"};
    tn__buffer_text(&j, "{\"format\": \"tern-tokens-1\",\n \"finished\": true,\n");
    tn__buffer_format(&j, " \"vocab\": %" PRId64 ",\n \"eot\": %" PRId32 ",\n", told->vocab, eot);
    tn__buffer_format(&j, " \"tokenizer\": \"%s\",\n", told->tokenizer);
    tn__buffer_format(&j, " \"pairs\": %s,\n", pairs ? "true" : "false");
    tn__buffer_format(&j, " \"documents\": %" PRId64 ",\n \"tokens\": %" PRId64 ",\n",
                      made->documents, made->train + made->val);
    tn__buffer_format(&j, " \"bytes\": %" PRId64 ",\n", made->text);
    put_counts(&j, "train", made->train_shards, made->train);
    put_counts(&j, "val", made->val_shards, made->val);
    tn__buffer_format(&j, " \"files\": %" PRId64 ",\n \"sources\": [", made->files);
    for (int i = 0; i < count; i++) {
        tn__buffer_format(&j, i ? ", " : "");
        put_path(&j, paths[i]);
    }
    tn__buffer_text(&j, "]}\n");
    bool whole = !j.failed;
    if (whole) { tn__file_put(f, j.at, j.bytes); }
    tn__buffer_free(&j);
    return whole;
}
