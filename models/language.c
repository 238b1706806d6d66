/* language: what all families of language models share.
 *
 *     x = stem(tokens, positions)                     (B, T, C)
 *     x = block(x, mask, positions), …                each family's own
 *     logits = top(x)                                 (B, T, vocab)
 *
 * Stem and top are transparent modules: parameters keep the names that Hugging Face gives them.
 *
 * Read next: models/gpt.c, the first of them.
 */
#include "models/language.h"

#include "nn/cache.h"
#include "nn/call.h"
#include "nn/layer.h"
#include "ops/loss/cross_entropy.h"

#include <stdio.h>
#include <string.h>

static const tn__lm_family *const families[] = {&tn__gpt_family, &tn__llama_family};

enum { FAMILIES = sizeof(families) / sizeof(families[0]) };

const tn__lm_family *tn__lm_family_named(const char *model_type) {
    for (int i = 0; i < FAMILIES; i++) {
        if (strcmp(families[i]->model_type, model_type) == 0) { return families[i]; }
    }
    return NULL;
}

const tn__lm_family *tn__lm_family_kind(const char *kind) {
    for (int i = 0; i < FAMILIES; i++) {
        if (strcmp(families[i]->kind, kind) == 0) { return families[i]; }
    }
    return NULL;
}

const char *tn__lm_family_types(char *text, size_t size) {
    size_t at = 0;
    for (int i = 0; i < FAMILIES && at < size; i++) {
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? " or " : "",
                               families[i]->model_type);
    }
    return text;
}

const tn__lm_family *tn__lm_family_of(void *module, const char *operation) {
    const tn_module *m = tn__module_of(module, operation);
    if (!m) { return NULL; }
    const tn__lm_family *family = tn__lm_family_kind(m->kind);
    if (family && m->state == TN__MODULE_ALIVE) { return family; }
    tn__raise(TN_EVALUE, operation, "the module (%s) is not a complete language model", m->kind);
    return NULL;
}

static bool set_eps(tn_module *m, const char *path, void *user) {
    if (strcmp(m->kind, "layer_norm") == 0) { ((tn_layer_norm *)m)->eps = *(const double *)user; }
    return true;
}

void tn__norms_set_eps(void *m, double eps) {
    tn_module_each_module(m, set_eps, &eps);
}

static bool block_recomputes(tn_module *m, const char *path, void *user) {
    static const char end[] = "block";
    size_t length = strlen(m->kind), n = sizeof(end) - 1;
    if (length >= n && strcmp(m->kind + length - n, end) == 0) { tn_module_set_recompute(m, true); }
    return true;
}

void tn__lm_recompute_blocks(void *m) {
    tn_module_each_module(m, block_recomputes, NULL);
}

tn_status tn_lm_shape_of(void *m, tn_lm_shape *shape) {
    if (!shape) { return tn__raise(TN_EVALUE, "lm_shape_of", "the shape is NULL"); }
    const tn__lm_family *family = tn__lm_family_of(m, "lm_shape_of");
    *shape = family ? family->shape(m) : (tn_lm_shape){0};
    if (family) { shape->parameters = tn_module_count(m); }
    return tn_error();
}

/* `ahead`: as of tn__lm_losses, of logits that are ours; or 0. */
static tn_tensor *losses_of(void *module, tn_tensor *logits, tn_tensor *targets, tn_reduction how,
                            double ahead) {
    const tn_module *m = tn__module_of(module, "lm_loss");
    if (!m) { return tn_inert(); }
    tn_cross_entropy_options options = tn_cross_entropy_defaults();
    options.consume_logits = true;
    options.reduction = how;
    const tn__loss_rule *rule = m->lists ? &m->lists->loss : NULL;
    return rule && rule->f ? rule->f(rule->state, logits, targets, options)
                           : tn__cross_entropy_ahead(logits, targets, options, ahead);
}

tn_tensor *tn__lm_loss_of(void *module, tn_tensor *logits, tn_tensor *targets) {
    return losses_of(module, logits, targets, TN_MEAN, 0);
}

tn_tensor *tn__lm_losses(void *module, tn_tensor *tokens, tn_tensor *targets, tn_reduction how,
                         double ahead) {
    TN_SCOPE; /* the logits, which are large, are freed once their gradient is there */
    const tn_module *m = tn__module_of(module, "lm_loss");
    tn__loss_rule *rule = m && m->lists ? &m->lists->loss : &(tn__loss_rule){0};
    rule->calling = true;
    tn_tensor *logits = tn_call(module, tokens);
    rule->calling = false;
    const tn__stages_rule *stages = m && m->lists ? &m->lists->stages : &(tn__stages_rule){0};
    if (!stages->share || tn_is_inert(logits)) {
        return tn_return(losses_of(module, logits, targets, how, ahead));
    }
    tn_tensor *losses = stages->last ? losses_of(module, logits, targets, how, 0) : NULL;
    return tn_return(stages->share(stages->state, losses));
}

tn_tensor *tn_lm_loss(void *module, tn_tensor *tokens, tn_tensor *targets) {
    return tn__lm_losses(module, tokens, targets, TN_MEAN, 1.0);
}

tn_tensor *tn_lm_targets(tn_tensor *tokens, tn_tensor *lengths) {
    TN_SCOPE;
    TN_NO_GRAD;
    bool fits = tokens && tn_ndim(tokens) == 2 && tn_dtype_of(tokens) == TN_I64;
    if (!fits || (lengths && (tn_ndim(lengths) != 1 || tn_dtype_of(lengths) != TN_I64 ||
                              tn_size(lengths, 0) != tn_size(tokens, 0)))) {
        tn__raise(TN_ESHAPE, "lm_targets",
                  "tokens are %s %s and lengths %s %s, but must be i64 (B, T) and (B)",
                  tokens ? tn_dtype_name(tn_dtype_of(tokens)) : "",
                  tokens ? tn_shape_text(tokens) : "missing",
                  lengths ? tn_dtype_name(tn_dtype_of(lengths)) : "",
                  lengths ? tn_shape_text(lengths) : "missing");
        return tn_inert();
    }
    double T = (double)tn_size(tokens, 1);
    tn_device device = tn_device_of(tokens);
    tn_tensor *next = tn_to(tn_arange(1, T + 1, 1, TN_I64), device),
              *end = tn_to(tn_full(TN_DIMS(1, 1), T, TN_I64), device);
    if (lengths) { end = tn_minimum(tn_to(tn_unsqueeze(lengths, 1), device), end); }
    tn_tensor *after = tn_roll(tokens, TN_DIMS(-1), TN_DIMS(1));
    return tn_return(tn_masked_fill(after, tn_ge(next, end), -100));
}

tn_tensor *tn__lm_call(void *module, tn_tensor *tokens) {
    tn_tensor *logits = tn_call(module, tokens);
    const tn_module *m = tn__module_of(module, "lm_call");
    const tn__loss_rule *rule = m && m->lists ? &m->lists->loss : NULL;
    return rule && rule->join ? rule->join(rule->state, logits) : logits;
}

int tn_lm_parts(void *m, tn_module **parts, int most) {
    const tn__lm_family *family = tn__lm_family_of(m, "lm_parts");
    if (!family || tn__pending()) { return 0; }
    int count = family->shape(m).layers + 2;
    for (int i = 0; parts && i < count && i < most; i++) {
        parts[i] = family->part(m, i);
    }
    return count;
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

/* Whether there are tokens (B, T), and perhaps more; false after raising. */
static bool tokens_fit(const tn_module *m, tn_values in, const char *others) {
    if (in.n < 1 || in.n > 3 || !in.v[0] || tn_ndim(in.v[0]) != 2) {
        return tn__fail(
            TN_ESHAPE, m->kind,
            "the input is %s but must be one tensor of tokens (batch, positions), and may be "
            "followed by %s",
            in.n > 0 && in.v[0] ? tn_shape_text(in.v[0]) : "missing", others);
    }
    if (tn_size(in.v[0], 1) < 1) {
        return tn__fail(TN_EVALUE, m->kind, "tokens are %s: there is no position",
                        tn_shape_text(in.v[0]));
    }
    return true;
}

/* The same for a call that begins with a later part. */
static bool state_fits(const tn_module *m, tn_values in) {
    if (in.n < 1 || in.n > 3 || !in.v[0] || tn_ndim(in.v[0]) != 3 || tn_size(in.v[0], 1) < 1) {
        return tn__fail(
            TN_ESHAPE, m->kind,
            "the input is %s but must be the previous part's output (batch, positions, width)",
            in.n > 0 && in.v[0] ? tn_shape_text(in.v[0]) : "missing");
    }
    return true;
}

/* One position per token, or one per column; a later part may have a rank's share of the columns.
 * False after raising. */
static bool positions_fit(const tn_module *m, const tn_tensor *positions, const tn_tensor *tokens,
                          bool later) {
    tn_dims d = tn_shape(positions);
    int64_t B = tn_size(tokens, 0), T = tn_size(tokens, 1);
    int64_t n = d.ndim > 0 ? d.size[d.ndim - 1] : 0;
    bool columns = n == T || (later && n > 0 && n % T == 0);
    bool fit = columns && (d.ndim == 1 || (d.ndim == 2 && (d.size[0] == 1 || d.size[0] == B)));
    if (!fit) {
        tn__raise(TN_ESHAPE, m->kind,
                  "positions are %s but tokens %s (one for each token, or one for each column)",
                  tn_shape_text(positions), tn_shape_text(tokens));
    }
    return fit;
}

tn_tensor *tn__lm_positions(const tn_module *m, const tn_tensor *x, int64_t start, int64_t count,
                            int64_t context) {
    if (count > context - start) {
        tn__raise(TN_EVALUE, m->kind, "tokens are %s at position %lld but the context is %lld",
                  tn_shape_text(x), (long long)start, (long long)context);
        return tn_inert();
    }
    return tn__arange(tn_device_of(x), (double)start, (double)(start + count), 1.0, TN_I64);
}

/* The inputs of a call of the whole model. */
typedef struct inputs {
    tn_tensor *tokens; /* (B, T); or, if it begins later, the previous part's output, (B, T, C) */
    tn_tensor *positions; /* (T), (1, T) or (B, T) */
    tn_tensor *mask;      /* or NULL */
} inputs;

/* `start`: how many positions the caches hold; `later`: the call does not begin with the stem.
 * False after raising. */
static bool read_inputs(const tn_module *m, tn_values in, int64_t start, int64_t context,
                        bool later, inputs *i) {
    if (!(later ? state_fits(m, in) : tokens_fit(m, in, "positions and a mask"))) { return false; }
    *i = (inputs){in.v[0], in.n > 1 ? in.v[1] : NULL, in.n > 2 ? in.v[2] : NULL};
    if (i->positions) { return positions_fit(m, i->positions, i->tokens, later); }
    i->positions = tn__lm_positions(m, i->tokens, start, tn_size(i->tokens, 1), context);
    return !tn_is_inert(i->positions);
}

bool tn__lm_stem_inputs(const tn_module *stem, tn_values in, tn_tensor **positions) {
    if (!tokens_fit(stem, in, "positions")) { return false; }
    *positions = in.n > 1 ? in.v[1] : NULL;
    if (*positions) { return positions_fit(stem, *positions, in.v[0], false); }
    *positions = tn__lm_positions(stem, in.v[0], 0, tn_size(in.v[0], 1), INT64_MAX);
    return !tn_is_inert(*positions);
}

tn_tensor *tn__lm_top_input(const tn_module *top, tn_values in, const tn__lm_context *context) {
    if (in.n != 1 || !in.v[0] || tn_ndim(in.v[0]) != 3) {
        tn__raise(TN_ESHAPE, top->kind, "the input is %s but must be (batch, positions, width)",
                  in.n > 0 && in.v[0] ? tn_shape_text(in.v[0]) : "missing");
        return tn_inert();
    }
    bool all = !context || !context->last_only;
    return all ? in.v[0] : tn_narrow(in.v[0], 1, tn_size(in.v[0], 1) - 1, 1);
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Calls parts [first, end), all blocks, in turn. Each output is freed as soon as the next block has
 * read it. */
static tn_tensor *call_blocks(const tn__lm_family *family, tn_module *m, tn_tensor *x,
                              const inputs *i, tn__range blocks) {
    for (int k = blocks.first; k < blocks.end; k++) {
        tn_values in = {family->turns ? 3 : i->mask ? 2 : 1, {x, i->mask, i->positions}};
        tn_tensor *y = tn_call_values(family->part(m, k), in, NULL).v[0];
        if (y != x && x != i->tokens) { /* a hook may return the input, which is the caller's */
            tn_drop(x);
        }
        x = y;
    }
    return x;
}

tn_values tn__lm_forward(const tn__lm_family *family, tn_module *m, tn_values in, void *context) {
    tn_lm_shape shape = family->shape(m);
    const tn_kv_cache *cache = family->cache(m);
    int64_t start = tn__cache_start(cache);
    inputs i;
    int top = shape.layers + 1;
    tn__range range = tn__range_of(m, context, top + 1);
    if (tn__pending() || !read_inputs(m, in, start, shape.context, range.first > 0, &i)) {
        return tn__no_values();
    }
    tn_tensor *x = i.tokens;
    if (range.first == 0 && range.end > 0) {
        tn_values tokens = tn_values_of(i.tokens, i.positions);
        x = tn_call_values(family->part(m, 0), tokens, NULL).v[0];
    }
    tn__range blocks = {range.first > 1 ? range.first : 1, range.end < top ? range.end : top};
    tn_values out = tn_values_of(call_blocks(family, m, x, &i, blocks), NULL);
    if (range.end > top && range.first <= top) {
        out = tn_call_values(family->part(m, top), out, context);
    }
    if (tn__cache_open(cache) && tn_is_inert(out.v[0])) { /* some blocks are ahead of others */
        tn__cache_restore(m, start);
    }
    return out;
}
