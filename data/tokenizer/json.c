/* tokenizer.json of Hugging Face's `tokenizers`, as far as it describes byte-level BPE:
 *
 *     model          BPE: vocab, merges ("a b" or ["a", "b"]), ignore_merges
 *     pre_tokenizer  ByteLevel, or a Sequence of Split, Digits and, last, ByteLevel
 *     added_tokens   found verbatim, normalized ones in what the others leave; special ones
 *                    only if the caller asks
 *     post_processor TemplateProcessing, Bert's and RoBERTa's: the tokens before and after a text
 *
 * Anything unknown that would give other ids is an error that names its key. Truncation and
 * padding apply to ids that are already made, and are not read.
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
    snprintf(k.text, sizeof(k.text), "%.80s[%" PRIu32 "]", list, index);
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
    return tn__fail(TN_EFORMAT, b->operation, "%s: %s is %s (should be %s)", b->path, name,
                    tn__quote(is, strlen(is)).text, instead);
}

/* true, false, or the default if the key is missing. */
static bool read_switch(const tn__build *b, const tn__json *object, const char *parent,
                        const char *name, bool otherwise, bool *value) {
    const tn__json *member = tn__json_get(object, name);
    *value = otherwise;
    if (is_nothing(member)) { return true; }
    if (member->kind != TN__JSON_WORD) {
        return refuse_key(b, key_in(parent, name).text, member, "true or false");
    }
    *value = strcmp(member->text, "true") == 0;
    return true;
}

static bool must_be_false(const tn__build *b, const tn__json *object, const char *parent,
                          const char *name) {
    bool is;
    return read_switch(b, object, parent, name, false, &is) &&
           (!is || refuse_key(b, key_in(parent, name).text, tn__json_get(object, name), "false"));
}

/* Calls `read` with each element of a list and its number, until it returns false. */
static bool read_list(tn__build *b, const tn__json *list, const char *name,
                      bool (*read)(tn__build *b, const tn__json *one, uint32_t index)) {
    if (!list || list->kind != TN__JSON_LIST) { return refuse_key(b, name, list, "a list"); }
    const tn__json *one = tn__json_first(list);
    for (uint32_t i = 0; i < list->count; i++, one = tn__json_next(one)) {
        if (!read(b, one, i)) { return false; }
    }
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

static bool read_model(tn__build *b, const tn__json *model) {
    const tn__json *type = tn__json_get(model, "type"), *drop = tn__json_get(model, "dropout");
    if (type && !is_text(type, "BPE")) { return refuse_key(b, "model.type", type, "BPE"); }
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
    return must_be_false(b, model, "model", "byte_fallback") &&
           read_switch(b, model, "model", "ignore_merges", false, &b->t->whole) &&
           tn__build_vocab(b, tn__json_get(model, "vocab"), "model.vocab") &&
           read_list(b, tn__json_get(model, "merges"), "model.merges", read_merge);
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
    if (!read_switch(b, split, name, "invert", false, &invert)) { return false; }
    const tn__json *behavior = tn__json_get(split, "behavior");
    bool keeps_all = is_text(behavior, "Isolated") ||
                     (is_text(behavior, "Removed") && invert && tn__pattern_has_name(text->text));
    if (!keeps_all) { return refuse_key(b, key_in(name, "behavior").text, behavior, "Isolated"); }
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
        if (!read_cut(b, one, k.text, i == 0, i + 1 == all->count)) { return false; }
    }
    return true;
}

/* ---- Added tokens ---------------------------------------------------------------------------- */

static bool read_added(tn__build *b, const tn__json *token, uint32_t index) {
    const tn__json *text = tn__json_get(token, "content"), *id = tn__json_get(token, "id");
    key name = key_at("added_tokens", index);
    bool special, late;
    if (!text || text->kind != TN__JSON_TEXT || !id || id->kind != TN__JSON_WHOLE) {
        return refuse_key(b, name.text, token, "an object with id and content");
    }
    if (!must_be_false(b, token, name.text, "single_word") ||
        !must_be_false(b, token, name.text, "lstrip") ||
        !must_be_false(b, token, name.text, "rstrip") ||
        !read_switch(b, token, name.text, "special", false, &special) ||
        !read_switch(b, token, name.text, "normalized", false, &late) ||
        !tn__build_token(b, text->text, strlen(text->text), id->whole,
                         special ? TN__TOKEN_SPECIAL : TN__TOKEN_ADDED)) {
        return false;
    }
    if (late) { tn__build_late(b, text->text, strlen(text->text)); }
    return true;
}

/* ---- Around a text ----------------------------------------------------------------------------
 */

static bool put_around(const tn__build *b, const char *name, const tn__json *id, bool after) {
    tn__around *f = &b->t->around;
    int *count = after ? &f->after_count : &f->before_count;
    if (!id || id->kind != TN__JSON_WHOLE || id->whole < 0 || id->whole >= INT32_MAX) {
        return refuse_key(b, name, id, "the id of a token");
    }
    if (*count == TN__MOST_AROUND) {
        return refuse_key(b, name, id, "one of at most 8 tokens before or after a text");
    }
    (after ? f->after : f->before)[(*count)++] = (int32_t)id->whole;
    return true;
}

/* NULL for a member of nothing, too. */
static const tn__json *member_of(const tn__json *object, const char *name) {
    return object ? tn__json_get(object, name) : NULL;
}

/* "single": special tokens, by name, around the sequence A. */
static bool read_template(const tn__build *b, const tn__json *whole, const char *name) {
    const tn__json *single = tn__json_get(whole, "single"),
                   *specials = tn__json_get(whole, "special_tokens"), *one;
    key k = key_in(name, "single");
    bool after = false;
    if (!single || single->kind != TN__JSON_LIST || single->count == 0) {
        return refuse_key(b, k.text, single, "a list");
    }
    one = tn__json_first(single);
    for (uint32_t i = 0; i < single->count; i++, one = tn__json_next(one)) {
        const tn__json *sequence = tn__json_get(one, "Sequence"),
                       *special = tn__json_get(one, "SpecialToken"),
                       *id = member_of(sequence ? sequence : special, "id");
        if (sequence && is_text(id, "A") && !after) {
            after = true;
            continue;
        }
        bool named_by_text = special && id && id->kind == TN__JSON_TEXT;
        const tn__json *named =
            named_by_text ? member_of(member_of(specials, id->text), "ids") : NULL;
        if (!named || named->kind != TN__JSON_LIST) {
            return refuse_key(b, key_at(k.text, i).text, one,
                              "the sequence A, once, or one of special_tokens");
        }
        const tn__json *number = named->count ? tn__json_first(named) : NULL;
        for (uint32_t j = 0; j < named->count; j++, number = tn__json_next(number)) {
            if (!put_around(b, key_at(k.text, i).text, number, after)) { return false; }
        }
    }
    return after || refuse_key(b, k.text, single, "a list with the sequence A");
}

/* "cls" before and "sep" after a text: ["</s>", 2]. */
static bool read_ends(const tn__build *b, const tn__json *whole, const char *name) {
    const tn__json *first = tn__json_get(whole, "cls"), *last = tn__json_get(whole, "sep");
    return put_around(b, key_in(name, "cls").text, first ? tn__json_at(first, 1) : NULL, false) &&
           put_around(b, key_in(name, "sep").text, last ? tn__json_at(last, 1) : NULL, true);
}

static bool read_around(const tn__build *b, const tn__json *one, const char *name) {
    const tn__json *type = tn__json_get(one, "type");
    return is_text(type, "ByteLevel") /* says where tokens are in the text, and adds none */
           || (is_text(type, "TemplateProcessing") ? read_template(b, one, name)
               : is_text(type, "BertProcessing") || is_text(type, "RobertaProcessing")
                   ? read_ends(b, one, name)
                   : refuse_key(b, key_in(name, "type").text, type,
                                "TemplateProcessing, ByteLevel, or a Sequence of them"));
}

static bool read_processors(const tn__build *b, const tn__json *one) {
    static const char name[] = "post_processor";
    if (is_nothing(one)) { return true; }
    const tn__json *all = tn__json_get(one, "processors");
    if (!is_text(tn__json_get(one, "type"), "Sequence")) { return read_around(b, one, name); }
    if (!all || all->kind != TN__JSON_LIST) {
        return refuse_key(b, "post_processor.processors", all, "a list");
    }
    one = all->count ? tn__json_first(all) : NULL;
    for (uint32_t i = 0; i < all->count; i++, one = tn__json_next(one)) {
        if (b->t->around.before_count + b->t->around.after_count > 0 &&
            !is_text(tn__json_get(one, "type"), "ByteLevel")) {
            return refuse_key(b, key_at("post_processor.processors", i).text, one,
                              "ByteLevel behind one that adds tokens");
        }
        if (!read_around(b, one, key_at("post_processor.processors", i).text)) { return false; }
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
    const tn__json *normalizer = tn__json_get(whole, "normalizer"),
                   *added = tn__json_get(whole, "added_tokens");
    bool done = tn__build_begin(&b, "tokenizer_load", path, TN__IN_ALPHABET);
    if (done && !is_nothing(normalizer)) {
        const tn__json *type = tn__json_get(normalizer, "type");
        done = refuse_key(&b, type ? "normalizer.type" : "normalizer", type ? type : normalizer,
                          "null");
    }
    done = done && read_cuts(&b, tn__json_get(whole, "pre_tokenizer")) &&
           read_model(&b, tn__json_get(whole, "model")) &&
           (is_nothing(added) || read_list(&b, added, "added_tokens", read_added)) &&
           read_processors(&b, tn__json_get(whole, "post_processor"));
    return tn__build_end(&b, done);
}
