/* Attention of a model that is split over ranks: this rank has some of the heads, or another
 * function replaces the attention. */
#include "nn/module.h"
#include "tests/support/test.h"

#include <tern/tern.h>

enum { B = 2, T = 5, WIDTH = 12, HEADS = 4 };

/* Rows, or columns, [first, first + n) of each of `pieces` pieces of the matrix. */
static tn_tensor *some_of(tn_tensor *whole, int dim, int pieces, int64_t first, int64_t n) {
    tn_tensor *of[3];
    int64_t piece = tn_size(whole, dim) / pieces;
    for (int i = 0; i < pieces; i++) {
        of[i] = tn_narrow(whole, dim, i * piece + first, n);
    }
    return tn_cat(of, pieces, dim);
}

static void set_weight(tn_tensor **field, tn_tensor *t) {
    tn_tensor *old = *field;
    *field = tn_keep(tn_set_requires_grad(tn_copy(tn_detach(t)), true));
    tn_release(old);
}

static tn_self_attention_options bare_options(void) {
    return TN_WITH(tn_self_attention, .heads = HEADS, .bias = false, .dtype = TN_F64);
}

/* Makes m with heads [first, first + n) of `whole`. */
static void take_heads(tn_self_attention *m, const tn_self_attention *whole, int first, int n) {
    int64_t D = WIDTH / HEADS;
    tn_self_attention_init(m, WIDTH, bare_options());
    set_weight(&m->c_attn.weight, some_of(whole->c_attn.weight, 0, 3, first * D, n * D));
    set_weight(&m->c_proj.weight, some_of(whole->c_proj.weight, 1, 1, first * D, n * D));
}

/* Ranks with 1 and 3 of 4 heads add up to what one with all of them computes. The option `heads` is
 * 4 on each, since it describes the whole model. */
TEST(heads_that_are_here) {
    for (int cached = 0; cached < 2; cached++) {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_self_attention whole, some, others;
        tn_self_attention_init(&whole, WIDTH, bare_options());
        take_heads(&some, &whole, 0, 1);
        take_heads(&others, &whole, 1, 3);
        assert_int_equal(some.heads, HEADS);
        void *all[] = {&whole, &some, &others};
        for (int i = 0; cached && i < 3; i++) {
            tn_attention_cache_options cache = {.batch = B, .length = 2 * T};
            assert_int_equal(tn_cache_begin(all[i], cache), TN_OK);
        }
        for (int call = 0; call < 2; call++) {
            tn_tensor *x = tn_randn(TN_DIMS(B, T, WIDTH), TN_F64);
            tn_tensor *sum = tn_add(tn_call(&some, x), tn_call(&others, x));
            assert_true(tn_all_close(sum, tn_call(&whole, x), 1e-12, 1e-12));
        }
        for (int i = 0; i < 3; i++) {
            tn_module_finish(all[i]);
        }
    }
}

/* ---- A replaced attention -------------------------------------------------------------------- */

static tn_tensor *note_and_attend(void *state, tn_tensor *q, tn_tensor *k, tn_tensor *v,
                                  tn_tensor *mask, tn_attention_options options) {
    int64_t *sizes = state;
    sizes[0]++;
    sizes[1] = tn_size(q, 1);
    sizes[2] = tn_size(k, 1);
    sizes[3] = tn_size(q, 2);
    sizes[4] = options.causal;
    assert_int_equal(tn_ndim(v), 4);
    return tn_attention(q, k, v, mask, options);
}

static void check_rule(void *m, int64_t heads, int64_t kv_heads) {
    TN_SCOPE;
    tn_module *module = m;
    tn_tensor *x = tn_set_requires_grad(tn_randn(TN_DIMS(B, T, WIDTH), TN_F64), true);
    tn_tensor *want = tn_call(m, x);
    tn_backward(tn_sum_all(tn_square(want)));
    tn_tensor *dx = tn_copy(tn_grad_of(x));
    tn_zero_grad(x);
    int64_t sizes[5] = {0};
    module->lists->attend = (tn__attend_rule){note_and_attend, sizes};
    tn_tensor *got = tn_call(m, x);
    assert_true(sizes[0] == 1 && sizes[1] == heads && sizes[2] == kv_heads && sizes[3] == T);
    assert_int_equal(sizes[4], 1);
    assert_true(tn_all_close(got, want, 1e-12, 1e-12));
    tn_backward(tn_sum_all(tn_square(got)));
    assert_true(tn_all_close(tn_grad_of(x), dx, 1e-12, 1e-12));
    module->lists->attend = (tn__attend_rule){NULL, NULL};
    assert_true(tn_equal(tn_call(m, x), want));
    assert_int_equal(sizes[0], 1);
}

TEST(another_attention) {
    tn_self_attention one;
    tn_self_attention_init(&one, WIDTH, bare_options());
    check_rule(&one, HEADS, HEADS);
    tn_module_finish(&one);
    tn_grouped_attention two;
    tn_grouped_attention_init(
        &two, WIDTH, TN_WITH(tn_grouped_attention, .heads = 2, .kv_heads = 1, .dtype = TN_F64));
    check_rule(&two, 2, 1);
    tn_module_finish(&two);
}
