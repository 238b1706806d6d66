/* Each allocation of a small program (building, hooks, recompute, training, generation) fails once.
 * Each time there is one clear error, nothing crashes or leaks, and the next run works. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/no_memory.h"

#include <tern/tern.h>

typedef struct net {
    tn_module base;
    tn_linear in;
    tn_block block;
    tn_sequential tail;
    tn_dropout drop;
    tn_rms_norm norm;
    tn_tensor *mean, *cache, *mask;
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *n = (net *)self;
    return tn_call(&n->tail, tn_call(&n->block, tn_call(&n->in, tn_sub(x, n->mean))));
}

static void net_init(net *n) {
    TN_SCOPE;
    tn_module_init(n, "net", net_forward);
    tn_block_options options = TN_WITH(tn_block, .heads = 2);
    tn_linear_init(&n->in, 3, 4, tn_linear_defaults());
    tn_block_init(&n->block, 4, options);
    tn_sequential_init(&n->tail);
    tn_dropout_init(&n->drop, 0.1);
    tn_rms_norm_init(&n->norm, 4, tn_norm_defaults());
    tn_sequential_add(&n->tail, &n->drop);
    tn_sequential_add(&n->tail, &n->norm);
    tn_module_add(n, "in", &n->in);
    tn_module_add(n, "block", &n->block);
    tn_module_add(n, "tail", &n->tail);
    tn_module_buffer(n, "mean", &n->mean, tn_zeros(TN_DIMS(3), TN_F32));
    tn_module_scratch(n, "cache", &n->cache, NULL);
    tn_module_set_recompute(&n->block, true);
}

static tn_values scale_input(tn_module *m, tn_values in, void *user) {
    in.v[0] = tn_mul_scalar(in.v[0], 1.0);
    return in;
}

static void backward_after(tn_module *m, tn_values in_grads, void *user) {
    ++*(int *)user;
}

static void train_net(void) {
    TN_SCOPE;
    net n;
    int count = 0;
    net_init(&n);
    tn_module_hook(
        &n.block,
        (tn_module_hooks){.before = scale_input, .backward_after = backward_after, .user = &count});
    tn_adamw_options options = TN_WITH(tn_adamw, .no_decay = tn_match_vectors);
    tn_optim *opt = tn_adamw(&n, options);
    tn_tensor *x = tn_randn(TN_DIMS(2, 3, 3), TN_F32);
    for (int step = 0; step < 2; step++) {
        TN_SCOPE;
        tn_backward(tn_mean_all(tn_square(tn_call(&n, x))));
        tn_optim_clip(opt, 1.0);
        tn_clip_grad_norm(&n, 1.0);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    tn_optim_free(opt);
    tn_module_finish(&n);
}

static void tie_and_read(void) {
    TN_SCOPE;
    tn_linear a, b;
    tn_sequential s;
    tn_linear_init(&a, 2, 2, TN_WITH(tn_linear, .dtype = TN_BF16, .bias = false));
    tn_linear_init(&b, 2, 2, TN_WITH(tn_linear, .dtype = TN_BF16, .bias = false));
    tn_sequential_init(&s);
    tn_sequential_add(&s, &a);
    tn_sequential_add(&s, &b);
    tn_module_tie(&s, "1.weight", "0.weight");
    tn_module_count(&s);
    tn_optim *opt = tn_sgd(&s, TN_WITH(tn_sgd, .momentum = 0.9));
    tn_optim_free(opt);
    tn_module_finish(&s);
}

static void build_and_make(void) {
    TN_SCOPE;
    net n;
    {
        TN_DEFER_INIT;
        net_init(&n);
        tn_module_param(&n, "mask", &n.mask, tn_mul_scalar(tn_ones(TN_DIMS(3), TN_F32), 2.0));
    }
    tn_module_set_precision(&n, TN_WITH(tn_precision, .param = TN_BF16));
    tn_module_materialize(&n);
    tn_module_finish(&n);
}

static void undo_pairs(void) {
    TN_SCOPE;
    void *f[2] = {tn_linear_new(3, 3), tn_linear_new(3, 3)};
    void *g[2] = {tn_linear_new(3, 3), tn_dropout_new(0.1)};
    tn_reversible *m = tn_reversible_new(f, g, 2);
    tn_tensor *x = tn_set_requires_grad(tn_randn(TN_DIMS(2, 3), TN_BF16), true);
    tn_module_set_precision(m, tn_precision_defaults());
    tn_backward(tn_sum_all(tn_call_values(m, TN_VALUES(x, x), NULL).v[1]));
    tn_module_free(m);
}

static void cut_and_measure(void) {
    TN_SCOPE;
    tn_linear m;
    tn_linear_init(&m, 3, 4, tn_linear_defaults());
    tn_tensor *part = tn_ones(TN_DIMS(5), TN_F32);
    tn_layout layout = {TN_DIMS(4, 3), -1, 1, 0, 1, 2, 5};
    tn_module_set_part(&m, "weight", part, layout, NULL);
    tn_set_grad(part, tn_ones(TN_DIMS(5), TN_F32));
    tn_clip_grad_norm(&m, 1.0);
    tn_module_finish(&m);
}

static void quantize_and_call(void) {
    TN_SCOPE;
    net n;
    net_init(&n);
    if (tn_quantize(&n) != TN_OK && n.in.weight && !tn_is_inert(n.in.weight)) {
        assert_int_equal(tn_dtype_of(n.in.weight), TN_F32); /* unchanged */
    }
    tn_call(&n, tn_randn(TN_DIMS(2, 3, 3), TN_F32));
    tn_module_finish(&n);
}

static void use_transformer(void) {
    TN_SCOPE;
    tn_transformer_options o = TN_WITH(tn_transformer, .hidden = 8);
    tn_transformer *m = tn_transformer_new_with(4, 2, 1, 1, o);
    tn_tensor *x = tn_randn(TN_DIMS(2, 3, 4), TN_F32);
    if (m) { tn_backward(tn_sum_all(TN_CALL(m, x, x, NULL, tn_causal_mask(3)))); }
    tn_module_free(m);
    tn_tensor *t = tn_ones(TN_DIMS(4, 2), TN_F32);
    tn_init_orthogonal(t, 1.0);
}

PLAIN_TEST(transformer_without_memory) {
    every_allocation(use_transformer);
}

PLAIN_TEST(training_without_memory) {
    every_allocation(train_net);
}

PLAIN_TEST(ties_without_memory) {
    every_allocation(tie_and_read);
}

PLAIN_TEST(deferred_without_memory) {
    every_allocation(build_and_make);
}

PLAIN_TEST(quantized_without_memory) {
    every_allocation(quantize_and_call);
}

PLAIN_TEST(reversible_without_memory) {
    every_allocation(undo_pairs);
}

PLAIN_TEST(parts_without_memory) {
    every_allocation(cut_and_measure);
}
