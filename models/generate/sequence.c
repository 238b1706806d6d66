/* One generated sequence.
 *
 * A stop text may begin in one token and end in a later one. So the text is searched again from
 * where a stop text could have begun, and its end is held back from on_token while it could be the
 * beginning of one.
 */
#define _GNU_SOURCE /* memmem */
#include "models/generate/sequence.h"

#include "core/error.h"
#include "core/memory.h"
#include "data/tokenizer/bpe.h"

#include <string.h>

static const char operation[] = "generate";

static tn_status add_text(tn__sequence *s, const char *bytes, size_t count) {
    tn_generated *made = &s->made;
    int64_t wanted = (int64_t)(made->bytes + count) + 1;
    if (!tn__grow(&made->text, wanted, &s->text_capacity, 1, operation)) { return TN_ENOMEM; }
    memcpy(made->text + made->bytes, bytes, count);
    made->bytes += count;
    made->text[made->bytes] = 0;
    return TN_OK;
}

/* Notes a token for the repetition penalty. */
static void meet_token(tn__sequence *s, int32_t token) {
    if (s->met) { s->met[token] = true; }
}

tn_status tn__sequence_init(tn__sequence *s, int index, tn_prompt prompt, int64_t vocab,
                            const tn_generate_options *o) {
    *s = (tn__sequence){.index = index, .prompt = prompt};
    if (o->repetition_penalty != 1.0) {
        s->met = tn__calloc_for((size_t)vocab, sizeof(*s->met), operation);
        if (!s->met) { return TN_ENOMEM; }
    }
    if (o->tokenizer && add_text(s, "", 0) != TN_OK) { return TN_ENOMEM; }
    for (int64_t i = 0; i < prompt.count; i++) {
        meet_token(s, prompt.ids[i]);
    }
    return TN_OK;
}

void tn__sequence_finish(tn__sequence *s) {
    free(s->met);
    tn_generated_free(&s->made, 1);
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* Cuts the text before the first stop text that ends in its last `added` bytes. */
static bool cut_at_stop(tn_generated *made, size_t added, const tn_generate_options *o) {
    size_t least = made->bytes;
    for (int i = 0; i < o->stop_text_count; i++) {
        size_t length = strlen(o->stop_texts[i]);
        size_t from = made->bytes - added;
        from = from > length - 1 ? from - (length - 1) : 0;
        const char *at = memmem(made->text + from, made->bytes - from, o->stop_texts[i], length);
        if (at && (size_t)(at - made->text) < least) { least = (size_t)(at - made->text); }
    }
    bool found = least < made->bytes;
    made->bytes = least;
    made->text[least] = 0;
    return found;
}

/* How many bytes at the end could be the beginning of a stop text. */
static size_t held_back(const tn_generated *made, const tn_generate_options *o) {
    size_t most = 0;
    for (int i = 0; i < o->stop_text_count; i++) {
        size_t length = strlen(o->stop_texts[i]) - 1;
        for (length = length < made->bytes ? length : made->bytes; length > most; length--) {
            if (memcmp(made->text + made->bytes - length, o->stop_texts[i], length) == 0) {
                most = length;
            }
        }
    }
    return most;
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

static bool is_stop_token(int32_t token, const tn_generate_options *o) {
    for (int i = 0; i < o->stop_token_count; i++) {
        if (o->stop_tokens[i] == token) { return true; }
    }
    return false;
}

static tn_status end_sequence(tn__sequence *s, tn_generated_end how) {
    s->ended = true;
    s->made.end = how;
    return TN_OK;
}

/* Whether this token is the last, and the text that it adds. */
static tn_status take_token(tn__sequence *s, int32_t token, const tn_generate_options *o) {
    tn_generated *made = &s->made;
    bool may_stop = made->tokens.count > o->min_new;
    if (may_stop && is_stop_token(token, o)) { return end_sequence(s, TN_ENDED_BY_TOKEN); }
    if (o->tokenizer) {
        size_t count;
        const char *bytes = tn_tokenizer_bytes(o->tokenizer, token, &count);
        if (!bytes || add_text(s, bytes, count) != TN_OK) { return tn_error(); }
        if (may_stop && cut_at_stop(made, count, o)) { return end_sequence(s, TN_ENDED_BY_TEXT); }
    }
    return made->tokens.count == o->max_new ? end_sequence(s, TN_ENDED_BY_COUNT) : TN_OK;
}

static tn_status tell_token(tn__sequence *s, int32_t token, const tn_generate_options *o) {
    const tn_generated *made = &s->made;
    size_t certain = made->bytes - (s->ended ? 0 : held_back(made, o));
    tn_generated_token told = {.sequence = s->index,
                               .token = token,
                               .count = made->tokens.count,
                               .last = s->ended,
                               .text = made->text ? made->text + s->sent : NULL,
                               .bytes = certain - s->sent};
    s->sent = certain;
    if (!o->on_token(&told, o->user) && !s->ended) { end_sequence(s, TN_ENDED_BY_CALLER); }
    return tn_error();
}

tn_status tn__sequence_append(tn__sequence *s, int32_t token, const tn_generate_options *o) {
    meet_token(s, token);
    if (!tn__ids_append(&s->made.tokens, token, "generate") || take_token(s, token, o) != TN_OK) {
        return tn_error();
    }
    return o->on_token ? tell_token(s, token, o) : TN_OK;
}
