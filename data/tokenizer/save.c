/* A tokenizer as Hugging Face's tokenizer.json. Tokens of the model are written in the byte
 * alphabet, added ones as they are; both are in the vocabulary, so that each keeps its id. */
#include "data/tokenizer/tokenizer.h"

#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/memory.h"
#include "data/tokenizer/byte_alphabet.h"
#include "text/json_write.h"
#include "text/utf8.h"

#include <string.h>

static const char OPERATION[] = "tokenizer_save";

typedef struct saver {
    const tn_tokenizer *t;
    tn__byte_alphabet alphabet;
    tn__pair *pairs; /* by rank */
    uint32_t pair_count;
    tn__buffer text; /* of the file that is being written */
    tn__buffer name; /* of the token that is being written */
} saver;

/* A token as the files spell it; valid until the next call. */
static const char *name_token(saver *s, int32_t id) {
    const tn__token *token = &s->t->tokens[id];
    const char *bytes = s->t->texts + token->at;
    s->name.bytes = 0;
    if (token->kind != TN__TOKEN_BYTES) { tn__buffer_add(&s->name, bytes, token->bytes); }
    for (uint32_t i = 0; token->kind == TN__TOKEN_BYTES && i < token->bytes; i++) {
        char letter[4];
        int used = tn__utf8_encode(s->alphabet.character[(unsigned char)bytes[i]], letter);
        tn__buffer_add(&s->name, letter, (size_t)used);
    }
    s->text.failed = s->text.failed || s->name.failed;
    return s->name.failed || !s->name.at ? "" : s->name.at;
}

/* ---- Pairs by rank --------------------------------------------------------------------------- */

static int compare_pairs(const void *a, const void *b) {
    const tn__pair *x = a, *y = b;
    return x->rank != y->rank   ? (x->rank > y->rank) - (x->rank < y->rank)
           : x->left != y->left ? (x->left > y->left) - (x->left < y->left)
                                : (x->right > y->right) - (x->right < y->right);
}

static bool sort_pairs(saver *s) {
    const tn__pairs *all = &s->t->pairs;
    s->pairs = tn__malloc_for(all->count * sizeof(tn__pair), s->text.operation);
    if (!s->pairs) { return false; }
    for (uint32_t i = 0; all->entries && i <= all->mask; i++) {
        if (all->entries[i].left >= 0) { s->pairs[s->pair_count++] = all->entries[i]; }
    }
    qsort(s->pairs, s->pair_count, sizeof(tn__pair), compare_pairs);
    return true;
}

/* ---- Parts of the files ---------------------------------------------------------------------- */

static void put_vocab(saver *s) {
    const char *comma = "";
    tn__buffer_text(&s->text, "{");
    for (int32_t id = 0; id < s->t->size; id++) {
        if (s->t->tokens[id].kind != TN__TOKEN_NONE) {
            tn__buffer_format(&s->text, "%s", comma);
            tn__json_put_string(&s->text, name_token(s, id));
            tn__buffer_format(&s->text, ":%d", id);
            comma = ",";
        }
    }
    tn__buffer_text(&s->text, "}");
}

static void put_merges(saver *s) {
    for (uint32_t i = 0; i < s->pair_count; i++) {
        tn__buffer_format(&s->text, i ? ",[" : "[");
        tn__json_put_string(&s->text, name_token(s, s->pairs[i].left));
        tn__buffer_text(&s->text, ",");
        tn__json_put_string(&s->text, name_token(s, s->pairs[i].right));
        tn__buffer_text(&s->text, "]");
    }
}

static void put_added(saver *s) {
    const char *comma = "";
    for (int32_t id = 0; id < s->t->size; id++) {
        tn__token_kind kind = s->t->tokens[id].kind;
        if (kind == TN__TOKEN_ADDED || kind == TN__TOKEN_SPECIAL) {
            tn__buffer_format(&s->text, "%s{\"id\":%d,\"content\":", comma, id);
            tn__json_put_string(&s->text, name_token(s, id));
            tn__buffer_format(&s->text,
                              ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                              "\"normalized\":%s,\"special\":%s}",
                              s->t->tokens[id].late ? "true" : "false",
                              kind == TN__TOKEN_SPECIAL ? "true" : "false");
            comma = ",";
        }
    }
}

static void put_byte_level(saver *s, bool cuts) {
    tn__buffer_format(&s->text,
                      "{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,\"trim_offsets\":true,"
                      "\"use_regex\":%s}",
                      s->t->prefix_space ? "true" : "false", cuts ? "true" : "false");
}

static bool cuts_as_gpt2(const tn_tokenizer *t) {
    return t->patterns.count == 1 && !tn__pattern_is_literal(t->patterns.of[0]) &&
           strcmp(tn__pattern_text(t->patterns.of[0]), tn__pattern_named("gpt2")) == 0;
}

static void put_cuts(saver *s) {
    const tn__patterns *all = &s->t->patterns;
    if (cuts_as_gpt2(s->t) || all->count == 0) {
        put_byte_level(s, all->count == 1);
        return;
    }
    tn__buffer_text(&s->text, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < all->count; i++) {
        tn__buffer_format(&s->text, "{\"type\":\"Split\",\"pattern\":{\"%s\":",
                          tn__pattern_is_literal(all->of[i]) ? "String" : "Regex");
        tn__json_put_string(&s->text, tn__pattern_text(all->of[i]));
        tn__buffer_text(&s->text, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    put_byte_level(s, false);
    tn__buffer_text(&s->text, "]}");
}

static void put_around(saver *s, const int32_t *ids, int count, const char *comma) {
    for (int i = 0; i < count; i++) {
        tn__buffer_format(&s->text, "%s{\"SpecialToken\":{\"id\":", i ? "," : comma);
        tn__json_put_string(&s->text, name_token(s, ids[i]));
        tn__buffer_text(&s->text, ",\"type_id\":0}}");
    }
}

static void put_special(saver *s, int32_t id, const char *comma) {
    tn__buffer_text(&s->text, comma);
    tn__json_put_string(&s->text, name_token(s, id));
    tn__buffer_text(&s->text, ":{\"id\":");
    tn__json_put_string(&s->text, name_token(s, id));
    tn__buffer_format(&s->text, ",\"ids\":[%d],\"tokens\":[", id);
    tn__json_put_string(&s->text, name_token(s, id));
    tn__buffer_text(&s->text, "]}");
}

/* What is put around a text; around a pair of texts nothing. */
static void put_processor(saver *s) {
    const tn__around *f = &s->t->around;
    if (f->before_count + f->after_count == 0) {
        tn__buffer_text(&s->text, "null");
        return;
    }
    tn__buffer_text(&s->text, "{\"type\":\"TemplateProcessing\",\"single\":[");
    put_around(s, f->before, f->before_count, "");
    tn__buffer_format(&s->text, "%s{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}",
                      f->before_count ? "," : "");
    put_around(s, f->after, f->after_count, ",");
    tn__buffer_text(&s->text, "],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"
                              "{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],"
                              "\"special_tokens\":{");
    for (int i = 0; i < f->before_count; i++) {
        put_special(s, f->before[i], i ? "," : "");
    }
    for (int i = 0; i < f->after_count; i++) {
        put_special(s, f->after[i], i || f->before_count ? "," : "");
    }
    tn__buffer_text(&s->text, "}}");
}

/* ---- Files ----------------------------------------------------------------------------------- */

static void put_json(saver *s) {
    tn__buffer_format(&s->text, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
                                "\"added_tokens\":[");
    put_added(s);
    tn__buffer_text(&s->text, "],\"normalizer\":null,\"pre_tokenizer\":");
    put_cuts(s);
    tn__buffer_text(&s->text, ",\"post_processor\":");
    put_processor(s);
    tn__buffer_text(&s->text, ",\"decoder\":");
    put_byte_level(s, true);
    tn__buffer_format(&s->text,
                      ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                      "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                      "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":%s,\"vocab\":",
                      s->t->whole ? "true" : "false");
    put_vocab(s);
    tn__buffer_text(&s->text, ",\"merges\":[");
    put_merges(s);
    tn__buffer_text(&s->text, "]}}\n");
}

bool tn__tokenizer_put(tn__buffer *to, const tn_tokenizer *t) {
    saver s = {
        .t = t, .alphabet = tn__byte_alphabet_make(), .text = *to, .name.operation = to->operation};
    bool done = sort_pairs(&s);
    if (done) { put_json(&s); }
    *to = s.text;
    free(s.pairs);
    tn__buffer_free(&s.name);
    return done && !to->failed;
}

static void put_config(tn__buffer *to, const tn_tokenizer *t) {
    tn__buffer_text(to, "{\"tokenizer_class\":\"PreTrainedTokenizerFast\","
                        "\"clean_up_tokenization_spaces\":false");
    if (tn_tokenizer_special(t, "<|endoftext|>") >= 0) {
        tn__buffer_text(to, ",\"bos_token\":\"<|endoftext|>\",\"eos_token\":\"<|endoftext|>\"");
    }
    tn__buffer_text(to, "}\n");
}

tn_status tn_tokenizer_save(const tn_tokenizer *t, const char *folder) {
    if (tn__pending()) { return tn_error(); }
    if (!t || !folder) {
        return tn__raise(TN_EVALUE, OPERATION, "the %s is NULL", t ? "folder" : "tokenizer");
    }
    if (!tn__tokenizer_here(t, OPERATION)) { return tn_error(); }
    tn__buffer json = {.operation = OPERATION}, config = json;
    put_config(&config, t);
    bool done = tn__tokenizer_put(&json, t) && tn__folder_make(folder, OPERATION) &&
                tn__file_write(&json, folder, "tokenizer.json", OPERATION) &&
                tn__file_write(&config, folder, "tokenizer_config.json", OPERATION);
    tn__buffer_free(&json);
    tn__buffer_free(&config);
    return done ? TN_OK : tn_error();
}
