/* Text from a language model, one token at a time, for several prompts at once.
 *
 * The running sequences are the rows of a batch. Their keys and values are in slots that all rows
 * share: shorter ones are padded on the left, where a mask hides the padding, and positions count
 * from each row's own beginning.
 *
 *     slot   0  1  2  3  4 | 5  6
 *     row 0  .  .  T  h  e | y  …       prompts first, in one call; then a token of each row
 *     row 1  N  o  w     i | s  …
 *
 * A finished sequence leaves: the last row takes its place. When the slots are full, all rows begin
 * again in fresh caches; those that fill the context keep only their newer half.
 *
 * Read next: models/generate/sequence.c (text and stopping), models/generate/sample.c (the next
 * token).
 */
#include "core/memory.h"
#include "models/language.h"
#include "models/generate/sample.h"
#include "models/generate/sequence.h"
#include "nn/cache.h"
#include "nn/module.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char operation[] = "generate";

typedef struct batch {
    void *model;
    const tn_generate_options *o;
    tn_device device;
    int64_t vocab, context;
    int64_t choices;         /* tokens that may be chosen: those that the tokenizer also knows */
    tn__sequence *sequences; /* [n] */
    tn__sequence **rows;     /* [running] */
    int64_t running;
    int64_t slots, used;      /* of the caches */
    tn_tensor *mask;          /* (running, 1, 1, slots), a reference; NULL: no row is padded */
    int32_t *tokens, *places; /* [running]: of the next call */
    float *logits;            /* [running * vocab] */
    tn__candidates candidates;
    /* On a device usually only the largest logits of each row are read: */
    int64_t picks;         /* this many; 0: all, into `logits` */
    int64_t *picked;       /* [running * picks] tokens, the most likely first … */
    float *picked_logits;  /* … and their logits */
    tn_tensor *all_logits; /* with picks, a reference: (running, vocab), f32, bf16 or f16 */
} batch;

/* ---- The model ------------------------------------------------------------------------------- */

static int64_t window_of(const tn__sequence *s) {
    return tn__sequence_length(s) - s->begin;
}

enum { MOST_PICKS = 256 };

/* How many logits of a row determine its next token: 0: all may. Of those that equal the last of
 * top_k, which bf16 often has, all are candidates, so more are read than k. */
static int64_t picks_of(const batch *b) {
    const tn_generate_options *o = b->o;
    bool all = b->device.kind == TN_CPU || o->repetition_penalty != 1.0;
    for (int64_t r = 0; r < b->running && o->stop_token_count > 0; r++) {
        all = all || b->rows[r]->made.tokens.count < o->min_new;
    }
    bool samples = o->temperature > 0.0;
    if (all || (samples && (o->top_k == 0 || o->top_k > MOST_PICKS))) { return 0; }
    int64_t picks = samples ? 2 * o->top_k + 16 : 1;
    return picks > MOST_PICKS || picks > b->choices ? 0 : picks;
}

/* Copies what the next tokens depend on to the host. */
static tn_status read_logits(batch *b, tn_tensor *logits) {
    tn_release(b->all_logits);
    b->all_logits = NULL;
    b->picks = picks_of(b);
    if (b->picks == 0) { return tn_copy_out(tn_cast(logits, TN_F32), b->logits); }
    tn_tensor *rows = tn_reshape(logits, TN_DIMS(b->running, b->vocab)), *index;
    rows = tn_dtype_of(rows) == TN_F64 ? tn_cast(rows, TN_F32) : rows;
    tn_tensor *known = tn_narrow(rows, 1, 0, b->choices);
    if (b->picks == 1) {
        index = tn_argmax(known, 1, true);
    } else {
        tn_topk(known, b->picks, 1, true, &index);
    }
    tn_tensor *values = tn_to(tn_gather(known, 1, index), tn_cpu());
    if (!tn__pending()) { b->all_logits = tn_keep(rows); }
    tn_copy_out(tn_cast(values, TN_F32), b->picked_logits);
    return tn_copy_out(index, b->picked);
}

/* Logits of each row's last position, for choose_token. tokens and places: (running, T). */
static tn_status call_model(batch *b, const int32_t *tokens, const int32_t *places, int64_t T) {
    tn_dims dims = TN_DIMS(b->running, T);
    tn_values in = {.n = 1, .v = {tn_to(tn_from_data(tokens, dims, TN_I32), b->device)}};
    if (b->mask) {
        in.n = 3;
        in.v[1] = tn_to(tn_from_data(places, dims, TN_I32), b->device);
        in.v[2] = tn_narrow(b->mask, 3, 0, b->used + T);
    }
    tn__lm_context context = {.last_only = true};
    tn_tensor *logits = tn_call_values(b->model, in, &context).v[0];
    if (!tn__pending() && tn_count(logits) != b->running * b->vocab) { /* a hook may change them */
        return tn__raise(TN_ESHAPE, operation,
                         "the logits are %s for %lld sequences and a vocabulary of %lld",
                         tn_shape_text(logits), (long long)b->running, (long long)b->vocab);
    }
    b->used += T;
    return tn__pending() ? tn_error() : read_logits(b, logits);
}

/* ---- Windows: the part of each sequence that the caches hold --------------------------------- */

/* True where a slot holds a token; NULL if there is no padding. `longest`: slots of the prompts. */
static tn_status make_mask(batch *b, int64_t longest) {
    TN_SCOPE;
    tn_release(b->mask);
    b->mask = NULL;
    bool *seen = NULL, padded = false;
    for (int64_t r = 0; r < b->running; r++) {
        padded = padded || longest > window_of(b->rows[r]);
    }
    if (!padded) { return TN_OK; }
    seen = tn__malloc_for((size_t)(b->running * b->slots), operation);
    if (!seen) { return TN_ENOMEM; }
    for (int64_t r = 0; r < b->running; r++) {
        for (int64_t i = 0; i < b->slots; i++) {
            seen[r * b->slots + i] = i >= longest - window_of(b->rows[r]);
        }
    }
    tn_dims dims = TN_DIMS(b->running, 1, 1, b->slots);
    tn_tensor *mask = tn_to(tn_from_data(seen, dims, TN_BOOL), b->device);
    b->mask = tn_is_inert(mask) ? NULL : tn_keep(mask);
    free(seen);
    return tn_error();
}

/* Runs the model on every row's window, at most `longest` tokens. */
static tn_status read_windows(batch *b, int64_t longest) {
    size_t count = (size_t)(b->running * longest);
    int32_t *tokens = tn__calloc_for(count, 2 * sizeof(*tokens), operation);
    if (!tokens) { return TN_ENOMEM; }
    int32_t *places = tokens + count;
    for (int64_t r = 0; r < b->running; r++) {
        const tn__sequence *s = b->rows[r];
        int64_t window = window_of(s), end = (r + 1) * longest;
        for (int64_t i = 0; i < window; i++) {
            tokens[end - window + i] = tn__sequence_token(s, s->begin + i);
            places[end - window + i] = (int32_t)i;
        }
    }
    tn_status status = call_model(b, tokens, places, longest);
    free(tokens);
    return status;
}

/* Begins fresh caches for everything still to come, within the context. */
static tn_status begin_windows(batch *b) {
    TN_SCOPE;
    int64_t longest = 0, left = 0;
    for (int64_t r = 0; r < b->running; r++) {
        tn__sequence *s = b->rows[r];
        int64_t made = s->made.tokens.count, window = window_of(s);
        /* a new prompt keeps its last part; later the newer half continues */
        if (window > b->context) {
            s->begin += window - (made > 0 ? b->context / 2 + 1 : b->context);
            window = window_of(s);
        }
        longest = window > longest ? window : longest;
        left = b->o->max_new - made > left ? b->o->max_new - made : left;
    }
    b->used = 0;
    b->slots = left < b->context - longest ? longest + left : b->context;
    tn_attention_cache_options cache = {.batch = b->running, .length = b->slots};
    if (tn_cache_begin(b->model, cache) != TN_OK || make_mask(b, longest) != TN_OK) {
        return tn_error();
    }
    return read_windows(b, longest);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Removes row r from the batch; the last one takes its place. */
static void drop_row(batch *b, int64_t r) {
    TN_SCOPE;
    int64_t last = --b->running;
    b->rows[r] = b->rows[last];
    if (last == 0) { return; }
    tn__cache_drop_row(b->model, r);
    if (b->mask) {
        if (r != last) { tn_copy_(tn_narrow(b->mask, 0, r, 1), tn_narrow(b->mask, 0, last, 1)); }
        tn_tensor *rest = tn_keep(tn_narrow(b->mask, 0, 0, last));
        tn_release(b->mask);
        b->mask = rest;
    }
}

/* Logits for the token after the last one of each row. */
static tn_status next_logits(batch *b) {
    if (b->used == b->slots) { return begin_windows(b); }
    TN_SCOPE;
    for (int64_t r = 0; r < b->running; r++) {
        const tn__sequence *s = b->rows[r];
        int64_t last = tn__sequence_length(s) - 1;
        b->tokens[r] = tn__sequence_token(s, last);
        b->places[r] = (int32_t)(last - s->begin);
    }
    return call_model(b, b->tokens, b->places, 1);
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

static tn_status refuse_logits(const batch *b, const tn__sequence *s, const float *logits) {
    for (int64_t i = 0; i < b->choices; i++) {
        if (!(logits[i] < INFINITY)) {
            return tn__raise(TN_EVALUE, operation,
                             "the logit of token %lld is %g (sequence %d, after %lld tokens)",
                             (long long)i, (double)logits[i], s->index,
                             (long long)tn__sequence_length(s));
        }
    }
    return tn__raise(TN_EVALUE, operation, "no token is possible in sequence %d after %lld tokens",
                     s->index, (long long)tn__sequence_length(s));
}

/* Whether the picked logits determine row r's token: valid ones, among them all that equal the last
 * of top_k. */
static bool picks_suffice(const batch *b, int64_t r) {
    if (b->picks == 0) { return false; }
    const float *logits = b->picked_logits + r * b->picks;
    bool ends = b->picks == 1 || logits[b->picks - 1] < logits[b->o->top_k - 1];
    return ends && logits[0] < INFINITY && logits[0] > -INFINITY;
}

static double draw_for(const batch *b, const tn__sequence *s) {
    const tn_generate_options *o = b->o;
    tn_generator g = {o->seed, o->first + (uint64_t)s->index, (uint64_t)tn__sequence_length(s)};
    return tn_random_uniform(&g);
}

static int32_t choose_picked(batch *b, const tn__sequence *s, int64_t r) {
    const tn_generate_options *o = b->o;
    const int64_t *tokens = b->picked + r * b->picks;
    if (b->picks == 1) { return (int32_t)tokens[0]; }
    tn__sampling how = {o->temperature, o->top_k, o->top_p};
    tn__sample_picked(b->picked_logits + r * b->picks, tokens, b->picks, how, &b->candidates);
    return (int32_t)tn__sample_draw(&b->candidates, draw_for(b, s));
}

/* The next token of s, which is row r. Changes the logits. */
static tn_status choose_token(batch *b, const tn__sequence *s, int64_t r, int32_t *token) {
    const tn_generate_options *o = b->o;
    float *logits = b->logits + r * b->vocab;
    if (picks_suffice(b, r)) {
        *token = choose_picked(b, s, r);
        return TN_OK;
    }
    if (b->all_logits) {
        TN_SCOPE;
        tn_tensor *row = tn_narrow(b->all_logits, 0, r, 1);
        if (tn_copy_out(tn_cast(row, TN_F32), logits) != TN_OK) { return tn_error(); }
    }
    if (s->met) { tn__sample_penalize(logits, s->met, b->vocab, o->repetition_penalty); }
    for (int i = 0; i < o->stop_token_count && s->made.tokens.count < o->min_new; i++) {
        logits[o->stop_tokens[i]] = -INFINITY;
    }
    int64_t best = tn__sample_best(logits, b->choices);
    if (best < 0) { return refuse_logits(b, s, logits); }
    *token = (int32_t)best;
    if (o->temperature > 0.0) {
        tn__sampling how = {o->temperature, o->top_k, o->top_p};
        tn__sample_candidates(logits, b->choices, how, &b->candidates);
        *token = (int32_t)tn__sample_draw(&b->candidates, draw_for(b, s));
    }
    return TN_OK;
}

/* Adds one token to each row. Then finished rows leave, last to first, so that a row that takes
 * another's place has been checked. */
static tn_status add_tokens(batch *b) {
    for (int64_t r = 0; r < b->running; r++) {
        tn__sequence *s = b->rows[r];
        int32_t token = 0;
        if (choose_token(b, s, r, &token) != TN_OK ||
            tn__sequence_append(s, token, b->o) != TN_OK) {
            return tn_error();
        }
    }
    for (int64_t r = b->running - 1; r >= 0; r--) {
        if (b->rows[r]->ended) { drop_row(b, r); }
    }
    return tn_error();
}

static tn_status run_batch(batch *b) {
    if (b->running == 0 || b->o->max_new == 0) { return TN_OK; }
    tn_status status = begin_windows(b);
    while (status == TN_OK && (status = add_tokens(b)) == TN_OK && b->running > 0) {
        status = next_logits(b);
    }
    return status;
}

/* ---- Arguments ------------------------------------------------------------------------------- */

static bool in_domain(const tn_generate_options *o) {
    const char *wrong = TN__BEYOND({"max_new", o->max_new, 0, 0}, {"min_new", o->min_new, 0, 0},
                                   {"top_k", o->top_k, 0, 0});
    if (wrong) {
        tn__raise(TN_EVALUE, operation, "%s", wrong);
    } else if (!(o->temperature >= 0.0 && o->temperature < INFINITY)) {
        tn__raise(TN_EVALUE, operation, "temperature is %g (at least 0, and finite)",
                  o->temperature);
    } else if (!(o->top_p >= 0.0 && o->top_p <= 1.0)) {
        tn__raise(TN_EVALUE, operation, "top_p is %g (0 to 1)", o->top_p);
    } else if (!(o->repetition_penalty > 0.0 && o->repetition_penalty < INFINITY)) {
        tn__raise(TN_EVALUE, operation, "repetition_penalty is %g (above 0, and finite)",
                  o->repetition_penalty);
    }
    return !tn__pending();
}

static bool tokens_fit(const int32_t *tokens, int64_t count, int64_t vocab, const char *what) {
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= vocab) {
            return tn__fail(TN_EINDEX, operation, "%s: token %lld is %d but the vocabulary is %lld",
                            what, (long long)i, tokens[i], (long long)vocab);
        }
    }
    return true;
}

static bool stops_fit(const tn_generate_options *o, int64_t vocab) {
    if (o->stop_token_count < 0 || (o->stop_token_count > 0 && !o->stop_tokens) ||
        o->stop_text_count < 0 || (o->stop_text_count > 0 && !o->stop_texts)) {
        return tn__fail(TN_EVALUE, operation, "%d stop tokens at %p and %d stop texts at %p",
                        o->stop_token_count, (const void *)o->stop_tokens, o->stop_text_count,
                        (const void *)o->stop_texts);
    }
    if (o->stop_text_count > 0 && !o->tokenizer) {
        return tn__fail(TN_EVALUE, operation, "stop texts need a tokenizer");
    }
    for (int i = 0; i < o->stop_text_count; i++) {
        if (!o->stop_texts[i] || !*o->stop_texts[i]) {
            return tn__fail(TN_EVALUE, operation, "stop text %d is empty", i);
        }
    }
    return tokens_fit(o->stop_tokens, o->stop_token_count, vocab, "stop_tokens");
}

static bool prompts_fit(const tn_prompt *prompts, int n, int64_t vocab) {
    for (int i = 0; i < n; i++) {
        char what[32];
        snprintf(what, sizeof(what), "prompt %d", i);
        if (!prompts[i].ids || prompts[i].count < 1) {
            return tn__fail(TN_EVALUE, operation,
                            "%s has no tokens (begin with the one that ends documents)", what);
        }
        if (!tokens_fit(prompts[i].ids, prompts[i].count, vocab, what)) { return false; }
    }
    return true;
}

/* ---- Beginning and end ----------------------------------------------------------------------- */

static bool take_device(const tn_entry *entry, void *user) {
    *(tn_device *)user = tn_device_of(*entry->field);
    return false;
}

static tn_status open_batch(batch *b, const tn_prompt *prompts, int n) {
    size_t rows = (size_t)n;
    b->sequences = tn__calloc_for(rows, sizeof(*b->sequences), operation);
    b->rows = tn__calloc_for(rows, sizeof(*b->rows), operation);
    b->tokens = tn__calloc_for(rows, sizeof(*b->tokens), operation);
    b->places = tn__calloc_for(rows, sizeof(*b->places), operation);
    b->logits = tn__malloc_for(rows * (size_t)b->vocab * sizeof(*b->logits), operation);
    if (b->device.kind != TN_CPU) {
        b->picked = tn__malloc_for(rows * MOST_PICKS * sizeof(*b->picked), operation);
        b->picked_logits = tn__malloc_for(rows * MOST_PICKS * sizeof(*b->picked_logits), operation);
    }
    bool picks = b->device.kind == TN_CPU || (b->picked && b->picked_logits);
    if (!b->sequences || !b->rows || !b->tokens || !b->places || !b->logits || !picks ||
        tn__candidates_init(&b->candidates, b->choices) != TN_OK) {
        return TN_ENOMEM;
    }
    for (int i = 0; i < n; i++) {
        tn__sequence *s = &b->sequences[i];
        b->rows[b->running++] = s;
        if (tn__sequence_init(s, i, prompts[i], b->vocab, b->o) != TN_OK) { return tn_error(); }
    }
    return TN_OK;
}

static void close_batch(batch *b, int n) {
    for (int i = 0; b->sequences && i < n; i++) {
        tn__sequence_finish(&b->sequences[i]);
    }
    tn_release(b->mask);
    tn_release(b->all_logits);
    tn__candidates_finish(&b->candidates);
    free(b->sequences);
    free(b->rows);
    free(b->tokens);
    free(b->places);
    free(b->logits);
    free(b->picked);
    free(b->picked_logits);
}

tn_generate_options tn_generate_defaults(void) {
    return (tn_generate_options){.max_new = 100,
                                 .temperature = 1.0,
                                 .top_p = 1.0,
                                 .repetition_penalty = 1.0,
                                 .from_defaults = true};
}

tn_status tn_generate(void *m, const tn_prompt *prompts, int n, tn_generate_options options,
                      tn_generated *out) {
    if (out && n > 0) { memset(out, 0, (size_t)n * sizeof(*out)); }
    tn_lm_shape shape;
    if (!tn__options_made(options.from_defaults, operation, "tn_generate") ||
        !tn__lm_family_of(m, operation) || tn_lm_shape_of(m, &shape) != TN_OK) {
        return tn_error();
    }
    if (n < 0 || (n > 0 && (!prompts || !out))) {
        return tn__raise(TN_EVALUE, operation, "%d prompts at %p, and results at %p", n,
                         (const void *)prompts, (void *)out);
    }
    if (!in_domain(&options) || !stops_fit(&options, shape.vocab) ||
        !prompts_fit(prompts, n, shape.vocab)) {
        return tn_error();
    }
    TN_NO_GRAD;
    batch b = {.model = m, .o = &options, .vocab = shape.vocab, .context = shape.context};
    int64_t known = options.tokenizer ? tn_tokenizer_size(options.tokenizer) : b.vocab;
    b.choices = known < b.vocab ? known : b.vocab;
    tn_module_each(m, (tn_walk){0}, take_device, &b.device);
    if (open_batch(&b, prompts, n) == TN_OK && run_batch(&b) == TN_OK) {
        for (int i = 0; i < n; i++) {
            out[i] = b.sequences[i].made;
            b.sequences[i].made = (tn_generated){0};
        }
    }
    tn_cache_end(m);
    close_batch(&b, n);
    return tn_error();
}

void tn_generated_free(tn_generated *out, int n) {
    for (int i = 0; out && i < n; i++) {
        tn_ids_free(&out[i].tokens);
        free(out[i].text);
        out[i] = (tn_generated){0};
    }
}
