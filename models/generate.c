/* Text from a gpt, one token at a time.
 *
 * Each step gives the model the tokens that its caches have not seen: the whole prompt first, then
 * one. Positions are learned and absolute, so a full context cannot slide: it begins again with its
 * newer half, which is read once more.
 */
#include "core/memory.h"
#include "models/language.h"
#include "nn/module.h"

#include <math.h>
#include <string.h>

/* The tokens of the context, and how many of them the caches have seen. */
typedef struct window {
    int64_t *tokens;
    int64_t count, seen, room;
} window;

/* The logits of the next token, as doubles. */
static tn_status next_logits(tn_gpt *m, window *w, double *logits) {
    TN_SCOPE;
    tn_tensor *tokens =
        tn_to(tn_from_data(w->tokens + w->seen, TN_DIMS(1, w->count - w->seen), TN_I64),
              tn_device_of(m->wte.weight));
    tn__lm_context context = {.last_only = true};
    tn_values out = tn_call_values(m, tn_values_of(tokens, NULL), &context);
    w->seen = w->count;
    if (!tn__pending() && tn_count(out.v[0]) != m->options.vocab) { /* a hook may have changed it */
        return tn__raise(TN_ESHAPE, "gpt_generate", "the logits are %s but the vocabulary is %lld",
                         tn_shape_text(out.v[0]), (long long)m->options.vocab);
    }
    return tn_copy_out(tn_cast(out.v[0], TN_F64), logits);
}

/* Appends a token; a full window keeps its newer half, which the caches then have to see again. */
static tn_status push_token(tn_gpt *m, window *w, int64_t token) {
    if (w->count == w->room) {
        w->count = w->room / 2;
        memmove(w->tokens, w->tokens + w->room - w->count, (size_t)w->count * sizeof(*w->tokens));
        w->seen = 0;
        if (tn_cache_rewind(m, 0) != TN_OK) {
            return tn_error();
        }
    }
    w->tokens[w->count++] = token;
    return TN_OK;
}

/* The k-th largest of n numbers (k >= 1), by counting: n is a vocabulary, k small. `scratch` holds
 * k. */
static double kth_largest(const double *x, int64_t n, int k, double *scratch) {
    int held = 0;
    for (int64_t i = 0; i < n; i++) { /* scratch: the largest so far, in descending order */
        if (held == k && !(x[i] > scratch[k - 1])) {
            continue;
        }
        int at = held < k ? held++ : k - 1;
        for (; at > 0 && scratch[at - 1] < x[i]; at--) {
            scratch[at] = scratch[at - 1];
        }
        scratch[at] = x[i];
    }
    return scratch[held - 1];
}

static int64_t largest_index(const double *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

/* Draws from softmax(logits / temperature) among the top_k. Overwrites logits. */
static int64_t draw_token(double *logits, int64_t n, double temperature, int top_k, double *scratch,
                          tn_generator *g) {
    double most = logits[largest_index(logits, n)],
           least = top_k > 0 ? kth_largest(logits, n, top_k, scratch) : -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        logits[i] = logits[i] >= least ? exp((logits[i] - most) / temperature) : 0.0;
        sum += logits[i];
    }
    double u = tn_random_uniform(g) * sum;
    int64_t last = 0;
    for (int64_t i = 0; i < n; i++) {
        if (logits[i] > 0.0) {
            last = i;
            u -= logits[i];
            if (u < 0.0) {
                return i;
            }
        }
    }
    return last; /* rounding: u was the whole sum */
}

static tn_status check_logits(const double *logits, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY) {
            return tn__raise(TN_EVALUE, "gpt_generate", "the logit of token %lld is %g",
                             (long long)i, logits[i]);
        }
    }
    return TN_OK;
}

static tn_status generate_tokens(tn_gpt *m, window *w, int64_t count, double temperature, int top_k,
                                 tn_generator *g, double *logits, int64_t *out) {
    int64_t vocab = m->options.vocab;
    for (int64_t i = 0; i < count; i++) {
        if (next_logits(m, w, logits) != TN_OK || check_logits(logits, vocab) != TN_OK) {
            return tn_error();
        }
        out[i] = temperature == 0.0
                     ? largest_index(logits, vocab)
                     : draw_token(logits, vocab, temperature, top_k, logits + vocab, g);
        if (i + 1 < count && push_token(m, w, out[i]) != TN_OK) {
            return tn_error();
        }
    }
    return TN_OK;
}

static bool arguments_fit(tn_gpt *m, const int64_t *tokens, int64_t n, int64_t count,
                          double temperature, int top_k, const int64_t *out) {
    if (!tn__module_of(m, "gpt_generate") || tn__pending()) {
        return false;
    }
    if (m->base.state == TN__MODULE_BROKEN || strcmp(m->base.kind, "gpt") != 0) {
        tn__raise(TN_EVALUE, "gpt_generate", "the module (%s) is not a complete gpt", m->base.kind);
        return false;
    }
    if (!tokens || n < 1 || count < 0 || (count > 0 && !out)) {
        tn__raise(
            TN_EVALUE, "gpt_generate",
            "%lld tokens to begin with and %lld to come (at least 1; not negative, with room)",
            tokens ? (long long)n : 0, (long long)count);
        return false;
    }
    if (!(temperature >= 0.0 && temperature < INFINITY) || top_k < 0) {
        tn__raise(TN_EVALUE, "gpt_generate",
                  "temperature is %g and top_k %d (neither may be negative)", temperature, top_k);
        return false;
    }
    return true;
}

tn_status tn_gpt_generate(tn_gpt *m, const int64_t *tokens, int64_t n, int64_t count,
                          double temperature, int top_k, tn_generator *g, int64_t *out) {
    if (!arguments_fit(m, tokens, n, count, temperature, top_k, out)) {
        return tn_error();
    }
    int64_t vocab = m->options.vocab, context = m->options.context;
    int k = top_k < vocab ? top_k : 0;
    window w = {.count = n < context ? n : context, .room = context};
    w.tokens = tn__malloc((size_t)context * sizeof(*w.tokens));
    double *logits = tn__malloc((size_t)(vocab + k) * sizeof(*logits));
    tn_status status = TN_ENOMEM;
    if (!w.tokens || !logits) {
        tn__raise(status, "gpt_generate", "no memory for %lld logits", (long long)vocab);
    } else {
        TN_NO_GRAD;
        memcpy(w.tokens, tokens + n - w.count, (size_t)w.count * sizeof(*w.tokens));
        status = tn_cache_begin(m, (tn_attention_cache_options){.batch = 1, .length = context});
        if (status == TN_OK) {
            status = generate_tokens(m, &w, count, temperature, k, g ? g : tn_default_generator(),
                                     logits, out);
        }
        tn_cache_end(m);
    }
    free(w.tokens);
    free(logits);
    return status;
}
