/* What every family of language models promises: shape, positions, masks, caches. Each test runs
 * for each family. */
#include <math.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

#include "models/language.h"

enum { VOCAB = 13, CONTEXT = 12, LAYERS = 3, T = 7 };

/* ---- Families -------------------------------------------------------------------------------- */

typedef union any_model {
    tn_module base;
    tn_gpt gpt;
    tn_llama llama;
} any_model;

static void init_gpt(any_model *m) {
    tn_gpt_options o =
        TN_WITH(tn_gpt, .vocab = VOCAB, .context = CONTEXT, .layers = LAYERS, .heads = 2,
                .width = 16, .bias = true, .dtype = TN_F64, .activation = TN_ACT_GELU);
    tn_gpt_init(&m->gpt, o);
}

static void init_llama(any_model *m) {
    tn_llama_options o =
        TN_WITH(tn_llama, .vocab = VOCAB, .context = CONTEXT, .layers = LAYERS, .heads = 4,
                .kv_heads = 2, .width = 16, .hidden = 24, .rotary.theta = 100.0,
                .rotary.factor = 2.0, .rotary.original_context = 16, .dtype = TN_F64);
    tn_llama_init(&m->llama, o);
}

static const struct family {
    const char *kind;
    const char *attention; /* in the middle layer */
    void (*init)(any_model *m);
    tn_lm_shape shape;
} families[] = {
    {"gpt", "h.1.attn", init_gpt, {VOCAB, CONTEXT, LAYERS, 2, 2, 16, 0}},
    {"llama", "layers.1.self_attn", init_llama, {VOCAB, CONTEXT, LAYERS, 4, 2, 16, 0}},
};

/* The models, one after another, with weights so large that mistakes show. */
typedef struct models {
    any_model m;
    const struct family *family;
    int next;
} models;

static bool widen_entry(const tn_entry *entry, void *user) {
    if (tn_ndim(*entry->field) == 2) { tn_mul_scalar_(*entry->field, 20.0); }
    return true;
}

static bool next_model(models *all) {
    if (all->next > 0) { tn_module_finish(&all->m); }
    if (all->next == (int)(sizeof(families) / sizeof(families[0]))) { return false; }
    all->family = &families[all->next++];
    all->family->init(&all->m);
    TN_NO_GRAD;
    tn_module_each(&all->m, (tn_walk){0}, widen_entry, NULL);
    return true;
}

static tn_tensor *call_model(void *m, tn_tensor *tokens, tn_tensor *positions, tn_tensor *mask) {
    return tn_call_values(m, (tn_values){3, {tokens, positions, mask}}, NULL).v[0];
}

static bool is_close(tn_tensor *a, tn_tensor *b) {
    return tn_all_close(a, b, 1e-10, 1e-10);
}

/* ---- Shape ----------------------------------------------------------------------------------- */

TEST(shapes_of_families) {
    for (models all = {0}; next_model(&all);) {
        tn_lm_shape got, want = all.family->shape;
        want.parameters = tn_module_count(&all.m);
        assert_int_equal(tn_lm_shape_of(&all.m, &got), TN_OK);
        assert_memory_equal(&got, &want, sizeof(got));
    }
    tn_linear linear;
    tn_linear_init(&linear, 1, 1, tn_linear_defaults());
    tn_lm_shape none = {.vocab = 5};
    tn_lm_shape_of(&linear, &none);
    assert_error(TN_EVALUE, "the module (linear) is not a complete language model");
    assert_int_equal(none.vocab, 0);
    tn_lm_shape_of(&linear, NULL);
    assert_error(TN_EVALUE, "the shape is NULL");
    tn_module_finish(&linear);
}

/* ---- Parts ----------------------------------------------------------------------------------- */

enum { PARTS = LAYERS + 2 };

static tn_tensor *call_parts(tn_module *const *parts, tn_tensor *tokens) {
    tn_tensor *x = tokens;
    for (int i = 0; i < PARTS; i++) {
        x = tn_call(parts[i], x);
    }
    return x;
}

static bool copy_gradient(const tn_entry *entry, void *user) {
    tn_tensor ***next = user;
    *(*next)++ = tn_copy(tn_grad_of(*entry->field));
    return true;
}

static bool compare_gradient(const tn_entry *entry, void *user) {
    tn_tensor ***next = user;
    assert_true(tn_equal(tn_grad_of(*entry->field), *(*next)++));
    return true;
}

/* Calling the parts by hand gives the bits of a call of the model, forward and backward. */
TEST(parts_by_hand) {
    for (models all = {0}; next_model(&all);) {
        TN_SCOPE;
        tn_module *parts[PARTS];
        assert_int_equal(tn_lm_parts(&all.m, NULL, 0), PARTS);
        assert_int_equal(tn_lm_parts(&all.m, parts, PARTS), PARTS);
        tn_tensor *tokens = tn_randint(0, VOCAB, TN_DIMS(2, T), TN_I64);
        tn_tensor *weights = tn_randn(TN_DIMS(2, T, VOCAB), TN_F64), *grads[64], **next = grads;
        tn_tensor *want = tn_call(&all.m, tokens);
        tn_backward_from(&want, &weights, 1, false);
        tn_module_each(&all.m, (tn_walk){0}, copy_gradient, &next);
        assert_true(next - grads > PARTS);
        tn_module_zero_grad(&all.m);
        tn_tensor *got = call_parts(parts, tokens);
        assert_true(tn_equal(got, want));
        tn_backward_from(&got, &weights, 1, false);
        next = grads;
        tn_module_each(&all.m, (tn_walk){0}, compare_gradient, &next);

        tn_module *one[2] = {NULL, NULL};
        assert_int_equal(tn_lm_parts(&all.m, one, 1), PARTS);
        assert_ptr_equal(one[0], parts[0]);
        assert_null(one[1]);
        assert_inert(tn_call(parts[0], want), TN_ESHAPE, "must be one tensor of tokens");
        assert_inert(tn_call(parts[PARTS - 1], tokens), TN_ESHAPE, "(batch, positions, width)");
    }
    tn_linear linear;
    tn_linear_init(&linear, 1, 1, tn_linear_defaults());
    assert_int_equal(tn_lm_parts(&linear, NULL, 0), 0);
    assert_error(TN_EVALUE, "is not a complete language model");
    tn_module_finish(&linear);
}

static tn_values count_positions(tn_module *m, tn_values in, void *user) {
    if (in.n == 3 && in.v[2]) { /* a block that takes positions */
        ++*(int *)user;
    }
    return in;
}

/* A stem and a block that are called by hand use the positions they are given. */
TEST(parts_with_positions) {
    for (models all = {0}; next_model(&all);) {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_module *parts[PARTS];
        tn_lm_parts(&all.m, parts, PARTS);
        tn_tensor *tokens = tn_randint(0, VOCAB, TN_DIMS(1, T), TN_I64);
        tn_tensor *places = tn_arange(0, T, 1, TN_I64);
        tn_copy_(tn_narrow(places, 0, 3, 1), tn_full(TN_DIMS(1), 9, TN_I64));
        int asked = 0;
        tn_module_hook(parts[1], (tn_module_hooks){.before = count_positions, .user = &asked});
        tn_tensor *want = call_model(&all.m, tokens, places, NULL);
        tn_tensor *x = tn_call_values(parts[0], tn_values_of(tokens, places), NULL).v[0];
        for (int i = 1; i <= LAYERS; i++) {
            x = tn_call_values(parts[i], (tn_values){3, {x, NULL, places}}, NULL).v[0];
        }
        assert_true(tn_equal(tn_call(parts[PARTS - 1], x), want));
        assert_false(is_close(call_parts(parts, tokens), want));
        assert_int_equal(asked, strcmp(all.family->kind, "gpt") == 0 ? 1 : 2);
    }
}

/* ---- Ranges of parts ------------------------------------------------------------------------- */

static tn_tensor *call_range(void *m, tn_tensor *x, tn_tensor *positions, int first, int end) {
    tn__lm_context c = {.range = {first, end}};
    return tn_call_values(m, tn_values_of(x, positions), &c).v[0];
}

/* A call of some parts and one of the rest give the bits of one call, forward and backward. */
TEST(ranges_of_parts) {
    for (models all = {0}; next_model(&all);) {
        for (int cut = 0; cut <= PARTS; cut++) {
            TN_SCOPE;
            tn_tensor *tokens = tn_randint(0, VOCAB, TN_DIMS(2, T), TN_I64);
            tn_tensor *places = tn_rsub_scalar(tn_arange(0, T, 1, TN_I64), T - 1);
            tn_tensor *weights = tn_randn(TN_DIMS(2, T, VOCAB), TN_F64), *grads[64], **next = grads;
            tn_tensor *want = call_model(&all.m, tokens, places, NULL);
            tn_backward_from(&want, &weights, 1, false);
            tn_module_each(&all.m, (tn_walk){0}, copy_gradient, &next);
            tn_module_zero_grad(&all.m);
            tn_tensor *x = cut > 0 ? call_range(&all.m, tokens, places, 0, cut) : tokens;
            tn_tensor *got = cut < PARTS ? call_range(&all.m, x, places, cut, 0) : x;
            assert_true(tn_equal(got, want));
            tn_backward_from(&got, &weights, 1, false);
            next = grads;
            tn_module_each(&all.m, (tn_walk){0}, compare_gradient, &next);
            tn_module_zero_grad(&all.m);
        }
        TN_SCOPE;
        tn_tensor *tokens = tn_zeros(TN_DIMS(2, T), TN_I64),
                  *x = tn_zeros(TN_DIMS(2, T, 16), TN_F64);
        assert_inert(call_range(&all.m, tokens, NULL, 1, 2), TN_ESHAPE,
                     "must be the previous part's output");
        assert_inert(call_range(&all.m, x, NULL, 0, 2), TN_ESHAPE, "one tensor of tokens");
        assert_inert(call_range(&all.m, tokens, NULL, 0, PARTS + 1), TN_EINDEX, "of 5");
        assert_inert(call_range(&all.m, x, tn_zeros(TN_DIMS(3), TN_I64), 1, 3), TN_ESHAPE,
                     "positions are [3]");
    }
}

/* ---- The loss -------------------------------------------------------------------------------- */

typedef struct halved {
    const tn__loss_rule *rule; /* of the model */
    int calls;
} halved;

static tn_tensor *halved_loss(void *state, tn_tensor *logits, tn_tensor *targets,
                              tn_cross_entropy_options options) {
    halved *h = state;
    h->calls++;
    assert_false(h->rule->calling); /* only while the model runs */
    return tn_mul_scalar(tn_cross_entropy_with(logits, targets, options), 0.5);
}

TEST(another_loss) {
    for (models all = {0}; next_model(&all);) {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *tokens = tn_randint(0, VOCAB, TN_DIMS(2, T), TN_I64);
        double usual = tn_item(tn_lm_loss(&all.m, tokens, tokens));
        assert_true(tn_item(tn__lm_loss_of(&all.m, tn_call(&all.m, tokens), tokens)) == usual);
        halved state_of = {.rule = &all.m.base.lists->loss};
        all.m.base.lists->loss = (tn__loss_rule){.f = halved_loss, .state = &state_of};
        assert_float_equal(tn_item(tn_lm_loss(&all.m, tokens, tokens)), usual / 2, 1e-12 * usual);
        assert_int_equal(state_of.calls, 1);
    }
}

/* ---- Positions ------------------------------------------------------------------------------- */

TEST(positions_as_inputs) {
    for (models all = {0}; next_model(&all);) {
        TN_SCOPE;
        tn_tensor *tokens = tn_randint(0, VOCAB, TN_DIMS(2, T), TN_I64);
        tn_tensor *want = tn_call(&all.m, tokens), *usual = tn_arange(0, T, 1, TN_I64);
        assert_true(tn_equal(call_model(&all.m, tokens, usual, NULL), want));
        tn_tensor *narrow = tn_cast(usual, TN_I32), *row = tn_unsqueeze(usual, 0);
        assert_true(tn_equal(call_model(&all.m, tokens, narrow, NULL), want));
        assert_true(tn_equal(call_model(&all.m, tokens, row, NULL), want));
        tn_tensor *each = tn_contiguous(tn_expand(row, TN_DIMS(2, T)));
        assert_true(tn_equal(call_model(&all.m, tokens, each, NULL), want));
        tn_tensor *wrong = tn_rsub_scalar(usual, T - 1); /* backwards */
        assert_false(is_close(call_model(&all.m, tokens, wrong, NULL), want));
    }
}

TEST(refused_inputs) {
    for (models all = {0}; next_model(&all);) {
        TN_SCOPE;
        tn_tensor *tokens = tn_zeros(TN_DIMS(2, T), TN_I64);
        assert_inert(call_model(&all.m, tokens, tn_zeros(TN_DIMS(T + 1), TN_I64), NULL), TN_ESHAPE,
                     "positions are [8] but tokens [2, 7]");
        assert_inert(call_model(&all.m, tokens, tn_zeros(TN_DIMS(3, T), TN_I64), NULL), TN_ESHAPE,
                     "positions are [3, 7]");
        assert_inert(call_model(&all.m, tokens, tn_zeros(TN_DIMS(T), TN_F32), NULL), TN_EDTYPE,
                     "f32");
        assert_inert(call_model(&all.m, tokens, NULL, tn_ones(TN_DIMS(2, 1, 1, 3), TN_BOOL)),
                     TN_ESHAPE, "mask is [2, 1, 1, 3]");
        assert_inert(call_model(&all.m, NULL, NULL, NULL), TN_ESHAPE, "the input is missing");
        assert_inert(tn_call(&all.m, tn_zeros(TN_DIMS(2, 0), TN_I64)), TN_EVALUE,
                     "there is no position");
        assert_inert(tn_call(&all.m, tn_zeros(TN_DIMS(2, CONTEXT + 1), TN_I64)), TN_EVALUE,
                     "tokens are [2, 13] at position 0 but the context is 12");
        assert_inert(tn_call(&all.m, tn_full(TN_DIMS(1, 1), VOCAB, TN_I64)), TN_EINDEX, "13");
    }
}

/* ---- Caches ---------------------------------------------------------------------------------- */

static tn_attention_cache_options cache_for(int64_t batch, int64_t length) {
    return (tn_attention_cache_options){.batch = batch, .length = length};
}

TEST(pieces_of_every_length) {
    for (models all = {0}; next_model(&all);) {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *tokens = tn_randint(0, VOCAB, TN_DIMS(2, T), TN_I64);
        tn_tensor *whole = tn_call(&all.m, tokens);
        for (int64_t length = 1; length <= T; length++) {
            assert_int_equal(tn_cache_begin(&all.m, cache_for(2, CONTEXT)), TN_OK);
            for (int64_t at = 0; at < T; at += length) {
                int64_t n = at + length < T ? length : T - at;
                tn_tensor *got = tn_call(&all.m, tn_narrow(tokens, 1, at, n));
                assert_true(is_close(got, tn_narrow(whole, 1, at, n)));
            }
            assert_int_equal(tn_cache_rewind(&all.m, 3), TN_OK);
            assert_true(is_close(tn_call(&all.m, tn_narrow(tokens, 1, 3, T - 3)),
                                 tn_narrow(whole, 1, 3, T - 3)));
        }
        assert_inert(tn_call(&all.m, tn_zeros(TN_DIMS(2, CONTEXT - T + 1), TN_I64)), TN_EVALUE,
                     "at position 7 but the context is 12");
        tn_cache_end(&all.m);
        assert_true(tn_equal(tn_call(&all.m, tokens), whole));
    }
}

static tn_values third_of(tn_module *m, tn_values in, void *user) {
    return tn_values_of(tn_narrow(in.v[0], 2, 0, 3), NULL);
}

/* A call that fails in the middle leaves the caches of all layers where they were. */
TEST(failure_between_layers) {
    for (models all = {0}; next_model(&all);) {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *tokens = tn_randint(0, VOCAB, TN_DIMS(1, T), TN_I64);
        tn_tensor *whole = tn_call(&all.m, tokens);
        tn_cache_begin(&all.m, cache_for(1, CONTEXT));
        tn_call(&all.m, tn_narrow(tokens, 1, 0, 4));
        tn_module *attention = tn_module_child(&all.m, all.family->attention);
        tn_hook hook = tn_module_hook(attention, (tn_module_hooks){.before = third_of});
        assert_inert(tn_call(&all.m, tn_narrow(tokens, 1, 4, 3)), TN_ESHAPE, "[1, 3, 3]");
        tn_module_unhook(attention, hook);
        assert_true(
            is_close(tn_call(&all.m, tn_narrow(tokens, 1, 4, 3)), tn_narrow(whole, 1, 4, 3)));
    }
}

/* ---- Padding on the left --------------------------------------------------------------------- */

enum { SEQUENCES = 3, LONGEST = 5, MORE = 3 };
static const int64_t lengths[SEQUENCES] = {2, 5, 3};

/* (SEQUENCES, count): column - padding, from column `start` on; the padding itself is at 0. */
static tn_tensor *padded_positions(int64_t start, int64_t count) {
    int64_t p[SEQUENCES * (LONGEST + MORE)];
    for (int i = 0; i < SEQUENCES; i++) {
        for (int64_t k = 0; k < count; k++) {
            int64_t at = start + k - (LONGEST - lengths[i]);
            p[i * count + k] = at > 0 ? at : 0;
        }
    }
    return tn_from_data(p, TN_DIMS(SEQUENCES, count), TN_I64);
}

/* (SEQUENCES, 1, 1, count): the padding is not seen. */
static tn_tensor *padding_mask(int64_t count) {
    bool seen[SEQUENCES * (LONGEST + MORE)];
    for (int i = 0; i < SEQUENCES; i++) {
        for (int64_t k = 0; k < count; k++) {
            seen[i * count + k] = k >= LONGEST - lengths[i];
        }
    }
    return tn_from_data(seen, TN_DIMS(SEQUENCES, 1, 1, count), TN_BOOL);
}

/* Each sequence alone has the same logits as in the batch, in its last `count` columns. */
static void expect_sequences(void *m, tn_tensor *tokens, tn_tensor *logits, int64_t count) {
    int64_t columns = tn_size(tokens, 1);
    for (int i = 0; i < SEQUENCES; i++) {
        int64_t padding = LONGEST - lengths[i], first = columns - count;
        first = first > padding ? first : padding;
        tn_tensor *alone = tn_narrow(tn_narrow(tokens, 0, i, 1), 1, padding, columns - padding);
        tn_tensor *want = tn_narrow(tn_call(m, alone), 1, first - padding, columns - first);
        tn_tensor *got =
            tn_narrow(tn_narrow(logits, 0, i, 1), 1, first - (columns - count), columns - first);
        assert_true(is_close(got, want));
    }
}

TEST(padding_on_the_left) {
    for (models all = {0}; next_model(&all);) {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *tokens = tn_randint(0, VOCAB, TN_DIMS(SEQUENCES, LONGEST + MORE), TN_I64);
        tn_tensor *prompt = tn_narrow(tokens, 1, 0, LONGEST);
        tn_tensor *whole =
            call_model(&all.m, prompt, padded_positions(0, LONGEST), padding_mask(LONGEST));
        expect_sequences(&all.m, prompt, whole, LONGEST);

        tn_cache_begin(&all.m, cache_for(SEQUENCES, LONGEST + MORE));
        tn_tensor *cached =
            call_model(&all.m, prompt, padded_positions(0, LONGEST), padding_mask(LONGEST));
        assert_true(is_close(cached, whole));
        tn_tensor *last[MORE];
        for (int64_t i = 0; i < MORE; i++) {
            last[i] = call_model(&all.m, tn_narrow(tokens, 1, LONGEST + i, 1),
                                 padded_positions(LONGEST + i, 1), padding_mask(LONGEST + i + 1));
        }
        tn_cache_end(&all.m);
        expect_sequences(&all.m, tokens, tn_cat(last, MORE, 1), MORE);
    }
}

/* Each place predicts the next token; none beyond a row's end. Padding changes no loss. */
TEST(targets_of_rows) {
    static const int64_t rows[] = {3, 4, 5, 6, 7, 8, 9, 9, 1, 9, 9, 9}, ends[] = {4, 2, 1};
    static const int64_t whole[] = {4, 5, 6, -100, 8, 9, 9, -100, 9, 9, 9, -100};
    static const int64_t parts[] = {4, 5, 6, -100, 8, -100, -100, -100, -100, -100, -100, -100};
    tn_tensor *tokens = TN_FROM(rows, TN_DIMS(3, 4), TN_I64),
              *counts = TN_FROM(ends, TN_DIMS(3), TN_I64);
    assert_true(tn_equal(tn_lm_targets(tokens, NULL), TN_FROM(whole, TN_DIMS(3, 4), TN_I64)));
    assert_true(tn_equal(tn_lm_targets(tokens, counts), TN_FROM(parts, TN_DIMS(3, 4), TN_I64)));
    assert_true(tn_is_inert(tn_lm_targets(tokens, tokens)));
    assert_error(TN_ESHAPE, "lengths i64 [3, 4]");

    any_model m;
    init_llama(&m);
    tn_tensor *targets = tn_lm_targets(tokens, counts);
    double padded = tn_item(tn_lm_loss(&m, tokens, targets));
    tn_tensor *one = tn_narrow(tokens, 0, 0, 1),
              *two = tn_narrow(tn_narrow(tokens, 0, 1, 1), 1, 0, 2);
    double first = tn_item(tn_lm_loss(&m, one, tn_lm_targets(one, NULL))),
           second = tn_item(tn_lm_loss(&m, two, tn_lm_targets(two, NULL)));
    assert_true(fabs(padded - (3 * first + second) / 4) < 1e-12);
    tn_module_finish(&m);
}

/* The gradient of one parameter after a backward of the loss times `factor`. `by_hand`: of logits
 * that the test makes; else tn_lm_loss, told to expect `ahead`. */
static tn_tensor *loss_gradient(tn_gpt *gpt, tn_tensor *x, tn_tensor *y, bool by_hand,
                                double factor, double ahead) {
    tn_module_zero_grad(gpt);
    tn_tensor *loss = by_hand ? tn_cross_entropy(tn_call(gpt, x), y, TN_MEAN)
                              : tn__lm_losses(gpt, x, y, TN_MEAN, ahead);
    tn_backward(factor == 1 ? loss : tn_mul_scalar(loss, factor));
    return tn_copy(tn_grad_of(gpt->stem.wte.weight));
}

/* The loss writes its gradient over the logits in the forward where it may: the same as by hand. To
 * the bit for the factor that was expected; one more rounding of the logits' gradient for others.
 */
TEST(loss_expects_a_gradient) {
    tn_gpt gpt;
    tn_gpt_init(&gpt,
                TN_WITH(tn_gpt, .vocab = 37, .context = T, .layers = 1, .heads = 2, .width = 16));
    tn_tensor *x = tn_randint(0, 37, TN_DIMS(3, T), TN_I64),
              *y = tn_copy(tn_randint(0, 37, TN_DIMS(3, T), TN_I64));
    tn_fill_(tn_narrow(y, 0, 1, 1), -100);
    for (int low = 0; low < 2; low++) {
        if (low) { tn_module_set_precision(&gpt, tn_precision_defaults()); }
        double near = low ? 0x1p-7 : 1e-6;
        tn_tensor *one = loss_gradient(&gpt, x, y, true, 1, 0),
                  *third = loss_gradient(&gpt, x, y, true, 1.0 / 3, 0);
        assert_true(tn_equal(loss_gradient(&gpt, x, y, false, 1, 1), one));
        assert_true(tn_equal(loss_gradient(&gpt, x, y, false, 1.0 / 3, 1.0 / 3), third));
        double most = tn_item(tn_max(tn_abs(third), TN_DIMS(0, 1), false));
        tn_tensor *other = loss_gradient(&gpt, x, y, false, 1.0 / 3, 1);
        assert_true(tn_all_close(other, third, near, near * most));
        assert_true(
            tn_all_close(loss_gradient(&gpt, x, y, false, 1.0 / 3, 64), third, near, near * most));
    }
    tn_module_finish(&gpt);
}

/* Where the gradient has replaced the logits nothing is left to differentiate again. */
TEST(loss_once_on_device) {
    tn_gpt gpt;
    tn_gpt_init(&gpt,
                TN_WITH(tn_gpt, .vocab = 37, .context = T, .layers = 1, .heads = 2, .width = 16));
    tn_tensor *x = tn_randint(0, 37, TN_DIMS(3, T), TN_I64), *grad = NULL, *w = gpt.stem.wte.weight;
    tn_tensor *loss = tn_lm_loss(&gpt, x, x);
    tn_status status =
        tn_grad(&loss, NULL, 1, &w, 1, &grad, TN_WITH(tn_grad, .create_graph = true));
    if (tn_default_device().kind == TN_CPU) {
        assert_int_equal(status, TN_OK);
    } else {
        assert_error(TN_EUNSUPPORTED, "tn_lm_loss has replaced the logits by their gradient");
    }
    tn_module_finish(&gpt);
}

static tn_values keep_output(tn_module *m, tn_values in, tn_values out, void *user) {
    *(tn_tensor **)user = tn_keep(out.v[0]);
    return out;
}

/* Logits that a hook has kept stay as they are until a backward. */
TEST(kept_logits_stay) {
    tn_gpt gpt;
    tn_gpt_init(&gpt,
                TN_WITH(tn_gpt, .vocab = 37, .context = T, .layers = 1, .heads = 2, .width = 16));
    tn_tensor *x = tn_randint(0, 37, TN_DIMS(3, T), TN_I64), *kept = NULL;
    tn_tensor *logits = tn_call(&gpt, x);
    tn_module_hook(&gpt, (tn_module_hooks){.after = keep_output, .user = &kept});
    tn_lm_loss(&gpt, x, x);
    assert_true(tn_equal(tn_detach(kept), tn_detach(logits)));
    tn_release(kept);
    tn_module_finish(&gpt);
}
