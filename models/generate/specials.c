/* The tokens that begin and end texts, from the files of a Hugging Face folder. */
#include "core/error.h"
#include "core/folder.h"
#include "models/weights/hf.h"
#include "models/language.h"

#include <stdlib.h>
#include <string.h>

static const char operation[] = "lm_specials_of";

static bool is_among(int32_t token, const int32_t *tokens, int count) {
    for (int i = 0; i < count; i++) {
        if (tokens[i] == token) { return true; }
    }
    return false;
}

/* Adds the tokens that the key names, each once: a number, a list of numbers, or null. Of a key
 * with `most` 1 the first counts. False after raising. */
static bool add_tokens(const tn__hf_config *c, const char *key, int64_t vocab, int32_t *tokens,
                       int most, int *count) {
    const tn__json *value = tn__hf_config_has(c, key) ? tn__json_get(c->object, key) : NULL;
    bool list = value && value->kind == TN__JSON_LIST;
    const tn__json *one = list ? tn__json_first(value) : value;
    for (uint32_t i = 0; one && i < (list ? value->count : 1); i++, one = tn__json_next(one)) {
        if (one->kind != TN__JSON_WHOLE) {
            return tn__hf_config_bad(c, key, "a token or a list of them");
        }
        bool new = one->whole >= 0 && one->whole < vocab && /* -1 also means none */
                   !is_among((int32_t)one->whole, tokens, *count);
        if (new &&*count == most && most > 1) {
            return tn__fail(TN_EUNSUPPORTED, operation, "%s: \"%s\" names more than %d tokens",
                            c->path, key, most);
        }
        if (new &&*count < most) { tokens[(*count)++] = (int32_t)one->whole; }
    }
    return !tn__pending();
}

/* One of the folder's files, which may be missing. False after raising. */
static bool read_specials(const char *folder, const char *file, int64_t vocab, tn_lm_specials *s) {
    tn__hf_config c;
    int begins = s->begin >= 0;
    if (!tn__folder_has(folder, file)) { return true; }
    if (!tn__hf_config_open(&c, folder, file, operation)) { return false; }
    if (!begins) { add_tokens(&c, "bos_token_id", vocab, &s->begin, 1, &begins); }
    if (s->end_count == 0) {
        add_tokens(&c, "eos_token_id", vocab, s->ends, TN_LM_ENDS, &s->end_count);
    }
    tn__hf_config_free(&c);
    return !tn__pending();
}

/* The special token that the key names, by its text or in an object. */
static void add_named(const tn__hf_config *c, const char *key, const tn_tokenizer *tokenizer,
                      int64_t vocab, int32_t *tokens, int *count) {
    const tn__json *value = tn__json_get(c->object, key);
    if (value && value->kind == TN__JSON_OBJECT) { value = tn__json_get(value, "content"); }
    bool named = value && value->kind == TN__JSON_TEXT;
    int32_t id = named ? tn_tokenizer_special(tokenizer, value->text) : -1;
    if (id >= 0 && id < vocab) { tokens[(*count)++] = id; }
}

/* The tokens that the tokenizer has under these names. False after raising. */
static bool read_tokenizer(const char *folder, const tn_tokenizer *tokenizer, int64_t vocab,
                           tn_lm_specials *s) {
    static const char file[] = "tokenizer_config.json";
    tn__hf_config c;
    int begins = s->begin >= 0;
    if (tokenizer && tn__folder_has(folder, file)) {
        if (!tn__hf_config_open(&c, folder, file, operation)) { return false; }
        if (!begins) { add_named(&c, "bos_token", tokenizer, vocab, &s->begin, &begins); }
        if (s->end_count == 0) {
            add_named(&c, "eos_token", tokenizer, vocab, s->ends, &s->end_count);
        }
        tn__hf_config_free(&c);
    }
    int32_t end = tokenizer ? tn_tokenizer_special(tokenizer, "<|endoftext|>") : -1;
    if (s->end_count == 0 && end >= 0 && end < vocab) { s->ends[s->end_count++] = end; }
    return !tn__pending();
}

tn_status tn_lm_specials_of(void *m, const tn_tokenizer *tokenizer, const char *folder,
                            tn_lm_specials *specials) {
    tn_lm_shape shape;
    if (!specials || !folder) {
        return tn__raise(TN_EVALUE, operation, "the folder or the result is NULL");
    }
    tn_lm_specials found = {.begin = -1};
    *specials = found;
    char *at = tn__pending() ? NULL : tn__hf_model_folder(folder, operation);
    bool read = at && tn_lm_shape_of(m, &shape) == TN_OK &&
                read_specials(folder, "generation_config.json", shape.vocab, &found) &&
                read_specials(at, "config.json", shape.vocab, &found) &&
                read_tokenizer(folder, tokenizer, shape.vocab, &found);
    free(at);
    if (!read) { return tn_error(); }
    *specials = found;
    return TN_OK;
}

/* Ignores what cannot be read, but neither TN_ENOMEM nor `kept`. */
static void forget_error(tn_status kept) {
    tn_error_record why;
    if (tn_error() != TN_ENOMEM && tn_error() != kept) { tn_error_take(&why); }
}

/* A config may belong to an older model, with another vocabulary: it comes last. */
bool tn__lm_specials_to_save(void *m, const char *folder, tn_lm_specials *specials) {
    tn_lm_shape shape;
    *specials = (tn_lm_specials){.begin = -1};
    if (tn_lm_shape_of(m, &shape) != TN_OK) { return false; }
    tn__quiet(1);
    const tn_status too_many = TN_EUNSUPPORTED; /* ends that would be lost */
    tn_tokenizer *tokenizer = tn_tokenizer_load(folder);
    forget_error(TN_ENOMEM);
    read_specials(folder, "generation_config.json", shape.vocab, specials);
    forget_error(too_many);
    read_tokenizer(folder, tokenizer, shape.vocab, specials);
    forget_error(too_many);
    char *at = tn__hf_model_folder(folder, operation);
    if (at) { read_specials(at, "config.json", shape.vocab, specials); }
    forget_error(too_many);
    free(at);
    tn_tokenizer_free(tokenizer);
    tn__quiet(-1);
    return !tn__pending();
}
