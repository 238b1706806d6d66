/* tokenizer.json of Hugging Face's `tokenizers`, as far as it describes byte-level BPE:
 *
 *     model          BPE: vocab, merges ("a b" or ["a", "b"]), ignore_merges
 *     pre_tokenizer  ByteLevel, or a Sequence of Split, Digits and, last, ByteLevel
 *     added_tokens   found verbatim, normalized ones in what the others leave; special ones
 *                    only if the caller asks
 *
 * Anything unknown that would give other ids is an error that names its key. The post processor,
 * truncation and padding apply to ids that are already made, and are not read.
 */
#include "data/tokenizer/load.h"

#include "core/error.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef struct key {
    char text[96];
} key;

/* "parent.name" */
static key key_in(const char *parent, const char *name) {
    key k;
    snprintf(k.text, sizeof(k.text), "%.64s.%.24s", parent, name);
    return k;
}

/* "list[index]" */
static key key_at(const char *list, uint32_t index) {
    key k;
    snprintf(k.text, sizeof(k.text), "%s[%" PRIu32 "]", list, index);
    return k;
}

static bool is_nothing(const tn__json *value) {
    return !value || (value->kind == TN__JSON_WORD && strcmp(value->text, "null") == 0);
}

static bool is_text(const tn__json *value, const char *text) {
    return value && value->kind == TN__JSON_TEXT && strcmp(value->text, text) == 0;
}

/* 0, 0.0 */
static bool is_zero(const tn__json *value) {
    return (value->kind == TN__JSON_WHOLE && value->whole == 0) ||
           (value->kind == TN__JSON_REAL && strspn(value->text, "0.") == strlen(value->text));
}

/* Raises that a key has a value that is not supported. */
static bool refuse_key(const tn__build *b, const char *name, const tn__json *value,
                       const char *instead) {
    const char *is = !value                           ? "missing"
                     : value->kind == TN__JSON_OBJECT ? "an object"
                     : value->kind == TN__JSON_LIST   ? "a list"
                                                      : value->text;
    tn__raise(TN_EFORMAT, b->operation, "%s: %s is %s (should be %s)", b->path, name,
              tn__quote(is, strlen(is)).text, instead);
    return false;
}

/* true, false, or the default if the key is missing. */
static bool read_switch(const tn__build *b, const tn__json *object, const char *parent,
                        const char *name, bool otherwise, bool *value) {
    const tn__json *member = tn__json_get(object, name);
    *value = otherwise;
    if (is_nothing(member)) {
        return true;
    }
    if (member->kind != TN__JSON_WORD) {
        return refuse_key(b, key_in(parent, name).text, member, "true or false");
    }
    *value = strcmp(member->text, "true") == 0;
    return true;
}

/* ---- The model ------------------------------------------------------------------------------- */

static bool read_merge(tn__build *b, const tn__json *merge, uint32_t index) {
    char where[PATH_MAX + 64];
    snprintf(where, sizeof(where), "%s: model.merges[%" PRIu32 "]", b->path, index);
    if (merge->kind == TN__JSON_TEXT) {
        return tn__build_line(b, merge->text, strlen(merge->text), where);
    }
    const tn__json *left = tn__json_at(merge, 0), *right = tn__json_at(merge, 1);
    if (!right || merge->count != 2 || left->kind != TN__JSON_TEXT ||
        right->kind != TN__JSON_TEXT) {
        return refuse_key(b, key_at("model.merges", index).text, merge,
                          "\"a b\" or [\"a\", \"b\"]");
    }
    return tn__build_pair(b, left->text, strlen(left->text), right->text, strlen(right->text),
                          where);
}

static bool read_merges(tn__build *b, const tn__json *merges) {
    if (!merges || merges->kind != TN__JSON_LIST) {
        return refuse_key(b, "model.merges", merges, "a list");
    }
    const tn__json *merge = tn__json_first(merges);
    for (uint32_t i = 0; i < merges->count; i++, merge = tn__json_next(merge)) {
        if (!read_merge(b, merge, i)) {
            return false;
        }
    }
    return true;
}

static bool read_model(tn__build *b, const tn__json *model) {
    const tn__json *type = tn__json_get(model, "type"), *drop = tn__json_get(model, "dropout");
    bool fallback;
    if (type && !is_text(type, "BPE")) {
        return refuse_key(b, "model.type", type, "BPE");
    }
    if (!is_nothing(drop) && !is_zero(drop)) {
        return refuse_key(b, "model.dropout", drop, "null");
    }
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const tn__json *affix = tn__json_get(model, affixes[i]);
        if (!is_nothing(affix) && !is_text(affix, "")) {
            return refuse_key(b, key_in("model", affixes[i]).text, affix, "null");
        }
    }
    if (!read_switch(b, model, "model", "byte_fallback", false, &fallback) ||
        !read_switch(b, model, "model", "ignore_merges", false, &b->t->whole)) {
        return false;
    }
    if (fallback) {
        return refuse_key(b, "model.byte_fallback", tn__json_get(model, "byte_fallback"), "false");
    }
    return tn__build_vocab(b, tn__json_get(model, "vocab"), "model.vocab") &&
           read_merges(b, tn__json_get(model, "merges"));
}

/* ---- Cutting --------------------------------------------------------------------------------- */

/* Matches are pieces, and so is what is between them. "Removed" with "invert" drops what is
 * between: the same if nothing ever is, as with the named patterns. */
static bool read_split(tn__build *b, const tn__json *split, const char *name) {
    const tn__json *pattern = tn__json_get(split, "pattern");
    const tn__json *text = pattern ? tn__json_get(pattern, "Regex") : NULL;
    bool literal = pattern && !text, invert;
    text = literal ? tn__json_get(pattern, "String") : text;
    if (!text || text->kind != TN__JSON_TEXT) {
        return refuse_key(b, key_in(name, "pattern").text, pattern,
                          "{\"Regex\": …} or {\"String\": …}");
    }
    if (!read_switch(b, split, name, "invert", false, &invert)) {
        return false;
    }
    const tn__json *behavior = tn__json_get(split, "behavior");
    bool keeps_all = is_text(behavior, "Isolated") ||
                     (is_text(behavior, "Removed") && invert && tn__pattern_has_name(text->text));
    if (!keeps_all) {
        return refuse_key(b, key_in(name, "behavior").text, behavior, "Isolated");
    }
    return tn__build_pattern(b, text->text, literal);
}

static bool read_digits(tn__build *b, const tn__json *digits, const char *name) {
    bool each;
    return read_switch(b, digits, name, "individual_digits", false, &each) &&
           tn__build_pattern(b, each ? "\\p{N}" : "\\p{N}+", false);
}

/* The last of the cuts, which also says that tokens are made of bytes. */
static bool read_byte_level(tn__build *b, const tn__json *level, const char *name, bool alone) {
    bool cuts;
    if (!read_switch(b, level, name, "add_prefix_space", true, &b->t->prefix_space) ||
        !read_switch(b, level, name, "use_regex", true, &cuts)) {
        return false;
    }
    if (b->t->prefix_space && !alone) {
        return refuse_key(b, key_in(name, "add_prefix_space").text,
                          tn__json_get(level, "add_prefix_space"), "false after another cut");
    }
    return !cuts || tn__build_pattern(b, tn__pattern_named("gpt2"), false);
}

static bool read_cut(tn__build *b, const tn__json *cut, const char *name, bool first, bool last) {
    const tn__json *type = tn__json_get(cut, "type");
    if (last) {
        return is_text(type, "ByteLevel")
                   ? read_byte_level(b, cut, name, first)
                   : refuse_key(b, key_in(name, "type").text, type, "ByteLevel");
    }
    return is_text(type, "Split") ? read_split(b, cut, name)
           : is_text(type, "Digits")
               ? read_digits(b, cut, name)
               : refuse_key(b, key_in(name, "type").text, type, "Split or Digits before ByteLevel");
}

static bool read_cuts(tn__build *b, const tn__json *cut) {
    static const char name[] = "pre_tokenizer";
    if (is_nothing(cut) || cut->kind != TN__JSON_OBJECT) {
        return refuse_key(b, name, cut, "ByteLevel, or a Sequence that ends with it");
    }
    if (!is_text(tn__json_get(cut, "type"), "Sequence")) {
        return read_cut(b, cut, name, true, true);
    }
    const tn__json *all = tn__json_get(cut, "pretokenizers"),
                   *one = all ? tn__json_first(all) : NULL;
    if (!all || all->kind != TN__JSON_LIST || all->count == 0) {
        return refuse_key(b, "pre_tokenizer.pretokenizers", all, "a list that ends with ByteLevel");
    }
    for (uint32_t i = 0; i < all->count; i++, one = tn__json_next(one)) {
        key k = key_at("pre_tokenizer.pretokenizers", i);
        if (!read_cut(b, one, k.text, i == 0, i + 1 == all->count)) {
            return false;
        }
    }
    return true;
}

/* ---- Added tokens ---------------------------------------------------------------------------- */

static bool read_added(tn__build *b, const tn__json *token, uint32_t index) {
    static const char *const strange[] = {"single_word", "lstrip", "rstrip"};
    const tn__json *text = tn__json_get(token, "content"), *id = tn__json_get(token, "id");
    key name = key_at("added_tokens", index);
    bool special, late, is_set;
    if (!text || text->kind != TN__JSON_TEXT || !id || id->kind != TN__JSON_WHOLE) {
        return refuse_key(b, name.text, token, "an object with id and content");
    }
    for (int i = 0; i < 3; i++) {
        if (!read_switch(b, token, name.text, strange[i], false, &is_set)) {
            return false;
        }
        if (is_set) {
            return refuse_key(b, key_in(name.text, strange[i]).text,
                              tn__json_get(token, strange[i]), "false");
        }
    }
    if (!read_switch(b, token, name.text, "special", false, &special) ||
        !read_switch(b, token, name.text, "normalized", false, &late) ||
        !tn__build_token(b, text->text, strlen(text->text), id->whole,
                         special ? TN__TOKEN_SPECIAL : TN__TOKEN_ADDED)) {
        return false;
    }
    if (late) {
        tn__build_late(b, text->text, strlen(text->text));
    }
    return true;
}

static bool read_all_added(tn__build *b, const tn__json *tokens) {
    if (is_nothing(tokens)) {
        return true;
    }
    if (tokens->kind != TN__JSON_LIST) {
        return refuse_key(b, "added_tokens", tokens, "a list");
    }
    const tn__json *token = tn__json_first(tokens);
    for (uint32_t i = 0; i < tokens->count; i++, token = tn__json_next(token)) {
        if (!read_added(b, token, i)) {
            return false;
        }
    }
    return true;
}

/* ---- The file -------------------------------------------------------------------------------- */

bool tn__is_tokenizer_json(const tn__json *whole) {
    const tn__json *model = tn__json_get(whole, "model");
    return model && model->kind == TN__JSON_OBJECT;
}

tn_tokenizer *tn__load_tokenizer_json(const tn__json *whole, const char *path) {
    tn__build b = {0};
    const tn__json *normalizer = tn__json_get(whole, "normalizer");
    bool done = tn__build_begin(&b, "tokenizer_load", path, TN__IN_ALPHABET);
    if (done && !is_nothing(normalizer)) {
        const tn__json *type = tn__json_get(normalizer, "type");
        done = refuse_key(&b, type ? "normalizer.type" : "normalizer", type ? type : normalizer,
                          "null");
    }
    done = done && read_cuts(&b, tn__json_get(whole, "pre_tokenizer")) &&
           read_model(&b, tn__json_get(whole, "model")) &&
           read_all_added(&b, tn__json_get(whole, "added_tokens"));
    return tn__build_end(&b, done);
}
