/* Optimisers apart from their arithmetic (see test_torch.py): what is stepped, what is refused,
 * state, groups, clipping, replaced fields, gradients in other buffers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/tern.h>

/* Two parameters of 4 and 2 ones. */
typedef struct model {
    tn_module base;
    tn_tensor *a, *b;
} model;

static tn_tensor *model_forward(tn_module *self, tn_tensor *x) {
    model *m = (model *)self;
    return tn_add(tn_sum_all(tn_mul(m->a, x)), tn_sum_all(m->b));
}

static void model_init(model *m, tn_dtype dtype) {
    TN_SCOPE;
    tn_module_init(m, "model", model_forward);
    tn_module_param(m, "a", &m->a, tn_ones(TN_DIMS(2, 2), dtype));
    tn_module_param(m, "b", &m->b, tn_ones(TN_DIMS(2), dtype));
}

static void set_gradients(model *m, double value) {
    TN_SCOPE;
    tn_dtype dtype = tn_dtype_of(m->a);
    tn_set_grad(m->a, tn_full(TN_DIMS(2, 2), value, dtype));
    tn_set_grad(m->b, tn_full(TN_DIMS(2), value, dtype));
}

static double first_element(const tn_tensor *t) {
    int64_t zero[TN_MAX_DIMS] = {0};
    return tn_at(t, tn_dims_from(tn_ndim(t), zero));
}

static tn_optim *make_sgd(void *m, double lr) {
    tn_sgd_options options = TN_WITH(tn_sgd, .lr = lr);
    return tn_sgd(m, options);
}

/* ---- Making ---------------------------------------------------------------------------------- */

TEST(refused_options) {
    model m;
    model_init(&m, TN_F32);
    tn_sgd_options bad_sgd[] = {
        TN_WITH(tn_sgd, .lr = -1),
        TN_WITH(tn_sgd, .momentum = NAN),
        TN_WITH(tn_sgd, .weight_decay = -0.1),
        TN_WITH(tn_sgd, .nesterov = true),
        TN_WITH(tn_sgd, .nesterov = true, .momentum = 0.9, .dampening = 0.1),
        TN_WITH(tn_sgd, .lr = INFINITY)};
    for (size_t i = 0; i < sizeof(bad_sgd) / sizeof(bad_sgd[0]); i++) {
        assert_null(tn_sgd(&m, bad_sgd[i]));
        assert_error(TN_EVALUE, "sgd: ");
    }
    tn_adam_options bad_adam[5];
    for (int i = 0; i < 5; i++) {
        bad_adam[i] = tn_adam_defaults();
    }
    bad_adam[0].lr = NAN;
    bad_adam[1].beta1 = 1.0;
    bad_adam[2].beta2 = -0.1;
    bad_adam[3].eps = -1e-8;
    bad_adam[4].weight_decay = -1;
    for (int i = 0; i < 5; i++) {
        assert_null(tn_adamw(&m, bad_adam[i]));
        assert_error(TN_EVALUE, "adamw: ");
    }
    assert_null(tn_adam(NULL, tn_adam_defaults()));
    assert_error(TN_EVALUE, "NULL");
    tn_module_requires_grad(&m, false);
    assert_null(tn_adam(&m, tn_adam_defaults()));
    assert_error(TN_EVALUE, "adam: the module has no parameter that requires a gradient");
    tn_raise(TN_EVALUE, "an earlier error");
    assert_null(tn_sgd(&m, tn_sgd_defaults()));
    assert_error(TN_EVALUE, "earlier");
    tn_module_finish(&m);
}

TEST(refused_parameters) {
    model m;
    tn_module_init(&m, "model", model_forward);
    tn_module_param(&m, "a", &m.a, tn_t(tn_ones(TN_DIMS(2, 3), TN_F32)));
    assert_null(make_sgd(&m, 0.1));
    assert_error(TN_EVALUE, "a is not contiguous");
    tn_module_finish(&m);
    tn_module_init(&m, "model", model_forward);
    tn_tensor *shared = tn_ones(TN_DIMS(2), TN_F32);
    tn_module_param(&m, "a", &m.a, shared);
    tn_module_param(&m, "b", &m.b, shared);
    assert_null(make_sgd(&m, 0.1));
    assert_error(TN_EVALUE, "a and b are the same tensor");
    assert_int_equal(tn_module_tie(&m, "b", "a"), TN_OK);
    tn_optim *opt = make_sgd(&m, 0.1);
    tn_set_grad(m.a, tn_ones(TN_DIMS(2), TN_F32));
    tn_optim_step(opt);
    assert_true(fabs(first_element(m.b) - 0.9) < 1e-6); /* stepped once */
    tn_optim_free(opt);
    tn_module_finish(&m);
}

typedef struct names {
    char text[512];
} names;

static bool add_name(const char *name, tn_tensor *t, void *user) {
    names *n = user;
    size_t used = strlen(n->text);
    snprintf(n->text + used, sizeof(n->text) - used, "%s:%s%s ", name,
             tn_dtype_name(tn_dtype_of(t)), tn_shape_text(t));
    return true;
}

static bool stop_at_once(const char *name, tn_tensor *t, void *user) {
    ++*(int *)user;
    return false;
}

TEST(state_by_name) {
    struct {
        tn_dtype dtype;
        const char *want;
    } cases[] = {
        {TN_F32, "a.step:i64[] a.exp_avg:f32[2, 2] a.exp_avg_sq:f32[2, 2] b.step:i64[] "
                 "b.exp_avg:f32[2] b.exp_avg_sq:f32[2] "},
        {TN_F64, "a.step:i64[] a.exp_avg:f64[2, 2] a.exp_avg_sq:f64[2, 2] b.step:i64[] "
                 "b.exp_avg:f64[2] b.exp_avg_sq:f64[2] "},
        {TN_BF16, "a.step:i64[] a.exp_avg:f32[2, 2] a.exp_avg_sq:f32[2, 2] a.master:f32[2, 2] "
                  "b.step:i64[] b.exp_avg:f32[2] b.exp_avg_sq:f32[2] b.master:f32[2] "},
    };
    for (int i = 0; i < 3; i++) {
        model m;
        model_init(&m, cases[i].dtype);
        tn_optim *opt = tn_adam(&m, tn_adam_defaults());
        names n = {""};
        tn_optim_each(opt, add_name, &n);
        assert_string_equal(n.text, cases[i].want);
        int calls = 0;
        tn_optim_each(opt, stop_at_once, &calls);
        assert_int_equal(calls, 1);
        assert_string_equal(tn_optim_kind(opt), "adam");
        tn_optim_free(opt);
        opt = make_sgd(&m, 0.1); /* no momentum, so no state but master copies */
        n = (names){""};
        tn_optim_each(opt, add_name, &n);
        assert_string_equal(n.text,
                            cases[i].dtype == TN_BF16 ? "a.master:f32[2, 2] b.master:f32[2] " : "");
        tn_optim_free(opt);
        tn_module_finish(&m);
    }
}

TEST(plain_tensors) {
    tn_tensor *list[] = {tn_ones(TN_DIMS(2), TN_F32), tn_ones(TN_DIMS(3), TN_F32)};
    tn_optim *opt = tn_adam(tn_parameters(list, 2), tn_adam_defaults());
    names n = {""};
    tn_optim_each(opt, add_name, &n);
    assert_non_null(strstr(n.text, "0.step:i64[] 0.exp_avg:f32[2] 0.exp_avg_sq:f32[2] 1.step"));
    tn_backward(tn_sum_all(tn_square(list[1])));
    assert_int_equal(tn_optim_step(opt), TN_OK);
    assert_true(first_element(list[0]) == 1.0 && fabs(first_element(list[1]) - 0.999) < 1e-6);
    tn_optim_zero_grad(opt);
    assert_null(tn_grad_of(list[1]));
    tn_optim_free(opt);
    assert_null(tn_adam(tn_parameters(list, 2), TN_WITH(tn_adam, .lr = NAN))); /* frees them */
    assert_error(TN_EVALUE, "adam: lr nan");
    assert_null(tn_adam(list[0], tn_adam_defaults()));
    assert_error(TN_EVALUE, "a tensor [2] instead of a module (tn_parameters(&t, 1) makes");
    list[1] = tn_relu(list[0]);
    assert_null(tn_parameters(list, 2));
    tn_error_clear();
}

/* ---- Stepping -------------------------------------------------------------------------------- */

TEST(pending_errors_stop_everything) {
    model m;
    model_init(&m, TN_F32);
    tn_optim *opt = make_sgd(&m, 0.5);
    set_gradients(&m, 1.0);
    tn_raise(TN_EVALUE, "a bad gradient");
    assert_int_equal(tn_optim_step(opt), TN_EVALUE);
    assert_true(isnan(tn_optim_clip(opt, 1.0)));
    assert_true(isnan(tn_clip_grad_norm(&m, 1.0)));
    assert_int_equal(tn_optim_split(opt, tn_match_vectors, NULL), -1);
    assert_true(first_element(m.a) == 1.0 && first_element(tn_grad_of(m.a)) == 1.0);
    assert_int_equal(tn_optim_steps(opt), 0);
    assert_error(TN_EVALUE, "a bad gradient");
    assert_int_equal(tn_optim_step(opt), TN_OK);
    assert_true(first_element(m.a) == 0.5);
    assert_int_equal(tn_optim_steps(opt), 1);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* Backward notices a step in the middle of a graph. */
TEST(steps_count_as_changes) {
    model m;
    model_init(&m, TN_F32);
    tn_optim *opt = make_sgd(&m, 0.5);
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2, 2), TN_F32), true), *y = tn_call(&m, x);
    set_gradients(&m, 1.0);
    tn_optim_step(opt);
    tn_backward(y);
    assert_error(TN_ESTATE, "changed");
    tn_optim_free(opt);
    tn_module_finish(&m);
}

TEST(gradients_elsewhere) {
    model m;
    model_init(&m, TN_F32);
    tn_optim *opt = make_sgd(&m, 1.0);
    tn_tensor *bucket = tn_zeros(TN_DIMS(6), TN_F32);
    tn_set_grad_buffer(m.b, tn_alias(bucket, 0, TN_DIMS(2)));
    tn_set_grad_buffer(m.a, tn_alias(bucket, 2, TN_DIMS(2, 2)));
    tn_backward(tn_call(&m, tn_full(TN_DIMS(2, 2), 3.0, TN_F32)));
    assert_true(tn_at(bucket, TN_DIMS(0)) == 1.0 && tn_at(bucket, TN_DIMS(5)) == 3.0);
    tn_optim_step(opt);
    assert_true(first_element(m.a) == -2.0 && first_element(m.b) == 0.0);
    tn_optim_zero_grad(opt);
    tn_optim_step(opt); /* no gradients: nothing changes */
    assert_true(first_element(m.a) == -2.0);
    tn_set_grad_buffer(m.a, NULL);
    tn_set_grad(m.a, tn_t(tn_arange(0, 4, 1, TN_F32))); /* 1-dimensional: refused by set_grad */
    tn_error_clear();
    /* not contiguous */
    tn_set_grad(m.a, tn_t(tn_reshape(tn_arange(0, 4, 1, TN_F32), TN_DIMS(2, 2))));
    tn_optim_step(opt);
    assert_true(tn_at(m.a, TN_DIMS(0, 1)) == -4.0 && tn_at(m.a, TN_DIMS(1, 0)) == -3.0);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* The field has another tensor of the same count, as in sharding, or one that does not fit. */
TEST(exchanged_fields) {
    model m;
    model_init(&m, TN_F32);
    tn_optim *opt = make_sgd(&m, 1.0);
    tn_release(m.a);
    m.a = tn_keep(tn_set_requires_grad(tn_full(TN_DIMS(4), 5.0, TN_F32), true));
    tn_set_grad(m.a, tn_ones(TN_DIMS(4), TN_F32));
    assert_int_equal(tn_optim_step(opt), TN_OK);
    assert_true(first_element(m.a) == 4.0);

    tn_tensor *right = m.a;
    m.a = tn_set_requires_grad(tn_ones(TN_DIMS(3), TN_F32), true);
    tn_optim_step(opt);
    assert_error(TN_ESTATE, "a is now f32 [3] but the optimiser was made for f32 [4]");
    m.a = right;
    tn_storage_empty(m.a);
    tn_optim_step(opt);
    assert_error(TN_ESTATE, "");
    tn_storage_refill(m.a);
    tn_module_finish(&m);
    assert_int_equal(tn_optim_step(opt), TN_ESTATE);
    assert_error(TN_ESTATE, "its module was finished");
    tn_optim_zero_grad(opt);
    assert_true(tn_optim_clip(opt, 1.0) == 0.0);
    tn_optim_free(opt);
}

/* A finished gpt frees its blocks: the optimiser must not look into them. */
TEST(module_is_gone) {
    tn_gpt_options o = tn_gpt_defaults();
    o.vocab = o.context = 5, o.layers = o.heads = 1, o.width = 4;
    tn_gpt *gpt = malloc(sizeof(*gpt));
    tn_gpt_init(gpt, o);
    tn_optim *opt = tn_adamw(gpt, tn_adamw_defaults());
    tn_module_finish(gpt);
    free(gpt);
    tn_optim_step(opt);
    assert_error(TN_ESTATE, "its module was finished");
    tn_optim_zero_grad(opt);
    assert_true(tn_optim_clip(opt, 1.0) == 0.0);
    tn_optim_free(opt);
}

/* Half precision: many small steps add up in the master copy, and weights that the program sets are
 * used. */
TEST(master_copies) {
    model m;
    model_init(&m, TN_BF16);
    tn_optim *opt = make_sgd(&m, 1e-4);
    for (int i = 0; i < 1000; i++) {
        set_gradients(&m, 1.0);
        tn_optim_step(opt);
    }
    assert_true(fabs(first_element(m.a) - 0.9) < 0.004);
    {
        TN_NO_GRAD;
        tn_fill_(m.a, 3.0);
    }
    tn_optim_step(opt);
    assert_true(first_element(m.a) == 3.0);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* Weights that were swapped for their average and back are not new: the master copy stays. */
TEST(master_copies_of_averaged) {
    model m;
    model_init(&m, TN_BF16);
    tn_optim *opt = make_sgd(&m, 1e-4);
    tn_average *ema = tn_ema(&m, 0.5);
    for (int i = 0; i < 1000; i++) {
        set_gradients(&m, 1.0);
        tn_optim_step(opt);
        tn_average_update(ema);
        TN_AVERAGED(ema);
    }
    assert_true(fabs(first_element(m.a) - 0.9) < 0.004);
    tn_average_free(ema);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* ---- Groups and learning rates --------------------------------------------------------------- */

static bool match_named(const tn_entry *entry, void *user) {
    return strcmp(entry->path, user) == 0;
}

static bool match_all(const tn_entry *entry, void *user) {
    return entry != NULL;
}

TEST(groups_of_parameters) {
    model m;
    model_init(&m, TN_F32);
    tn_sgd_options options = TN_WITH(tn_sgd, .lr = 0.1, .weight_decay = 0.5);
    tn_optim *opt = tn_sgd(&m, options);
    assert_int_equal(tn_optim_groups(opt), 1);
    tn_optim_group_options *all = tn_optim_group(opt, 0);
    assert_true(all->lr_scale == 1.0 && all->weight_decay == 0.5);
    assert_int_equal(tn_optim_split(opt, tn_match_vectors, NULL), 1);
    tn_optim_group(opt, 1)->weight_decay = 0.0;
    tn_optim_group(opt, 1)->lr_scale = 10.0;
    set_gradients(&m, 0.0);
    tn_optim_step(opt);
    assert_true(fabs(first_element(m.a) - 0.95) < 1e-6 && first_element(m.b) == 1.0); /* decayed;
                                                                                         not */
    assert_int_equal(tn_optim_split(opt, tn_match_vectors, NULL), 1); /* it was split off before */
    assert_int_equal(tn_optim_split(opt, match_named, "b"), 1);       /* these, by another name */
    assert_int_equal(tn_optim_groups(opt), 2);
    set_gradients(&m, 1.0);
    tn_optim_set_lr(opt, 0.01);
    assert_true(tn_optim_lr(opt) == 0.01);
    tn_optim_step(opt);
    assert_true(fabs(first_element(m.b) - 0.9) < 1e-6);
    assert_ptr_equal(tn_optim_group(opt, 0), all);
    tn_optim_group(opt, 2)->weight_decay = 7.0;
    assert_error(TN_EINDEX, "optim_group: group 2 of 2");
    assert_true(tn_optim_group(opt, -1)->weight_decay == 0.0); /* what was written is lost */
    assert_error(TN_EINDEX, "optim_group: group -1 of 2");
    assert_true(all->weight_decay == 0.5 && tn_optim_group(opt, 1)->weight_decay == 0.0);
    tn_optim_set_lr(opt, -1.0);
    assert_error(TN_EVALUE, "the learning rate is -1");
    assert_true(tn_optim_lr(opt) == 0.01);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* A new group gets the options of the group that its first parameter was in. */
TEST(groups_of_groups) {
    model m;
    model_init(&m, TN_F32);
    tn_optim *opt = make_sgd(&m, 0.1);
    assert_int_equal(tn_optim_split(opt, match_all, NULL), 1);
    tn_optim_group(opt, 1)->lr_scale = 10.0;
    assert_int_equal(tn_optim_split(opt, match_all, NULL), 1);
    assert_int_equal(tn_optim_split(opt, match_named, "b"), 2);
    assert_true(tn_optim_group(opt, 2)->lr_scale == 10.0);
    assert_int_equal(tn_optim_split(opt, match_named, "a"), 1); /* what is left of the group */
    assert_int_equal(tn_optim_groups(opt), 3);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* The usual line, after an error: nothing is dereferenced, and the first error stays. */
TEST(no_decay) {
    model m;
    model_init(&m, TN_F32);
    tn_adamw_options options = TN_WITH(tn_adamw, .no_decay = tn_match_vectors);
    tn_optim *opt = tn_adamw(&m, options);
    assert_int_equal(tn_optim_groups(opt), 2);
    assert_true(tn_optim_group(opt, 0)->weight_decay == 1e-2);
    assert_true(tn_optim_group(opt, 1)->weight_decay == 0.0);
    set_gradients(&m, 0.0);
    tn_optim_set_lr(opt, 1.0);
    tn_optim_step(opt);
    assert_true(fabs(first_element(m.a) - 0.99) < 1e-6 && first_element(m.b) == 1.0);
    tn_optim_free(opt);
    tn_sgd_options s =
        TN_WITH(tn_sgd, .lr = 0.1, .weight_decay = 0.5, .no_decay = tn_match_vectors);
    opt = tn_sgd(&m, s);
    assert_true(tn_optim_groups(opt) == 2 && tn_optim_group(opt, 1)->weight_decay == 0.0);
    tn_optim_free(opt);
    options.lr = NAN;
    opt = tn_adamw(&m, options);
    assert_null(opt);
    tn_optim_group(opt, tn_optim_split(opt, tn_match_vectors, NULL))->weight_decay = 0.0;
    assert_error(TN_EVALUE, "adamw: lr nan");
    tn_module_finish(&m);
}

/* A parameter that is frozen while an optimiser has it is not stepped, not even by decay or a
 * gradient that it has, and continues when unfrozen. One frozen before is never stepped. */
TEST(frozen_parameters) {
    model m;
    model_init(&m, TN_F32);
    tn_sgd_options options = TN_WITH(tn_sgd, .lr = 1.0, .weight_decay = 0.5);
    tn_optim *opt = tn_sgd(&m, options);
    assert_int_equal(tn_freeze(&m, "b"), 1);
    tn_optim *later = tn_sgd(&m, options);
    assert_int_equal(tn_unfreeze(&m, "b"), 1);
    set_gradients(&m, 0.25);
    assert_int_equal(tn_freeze(&m, "a"), 1);
    assert_null(tn_grad_of(m.a));
    assert_int_equal(tn_optim_step(opt), TN_OK);
    assert_true(first_element(m.a) == 1.0 && first_element(m.b) == 0.25); /* 1 - (0.25 + 0.5) */
    assert_int_equal(tn_unfreeze(&m, "a"), 1);
    set_gradients(&m, 0.25);
    assert_int_equal(tn_optim_step(later), TN_OK);
    assert_true(first_element(m.a) == 0.25 && first_element(m.b) == 0.25);
    tn_optim_free(later);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* ---- Clipping -------------------------------------------------------------------------------- */

TEST(clipping_scales_gradients) {
    tn_dtype dtypes[] = {TN_F32, TN_F64, TN_BF16, TN_F16};
    for (int i = 0; i < 4; i++) {
        model m;
        model_init(&m, dtypes[i]);
        tn_optim *opt = make_sgd(&m, 1.0);
        set_gradients(&m, 2.0); /* 6 of them: the norm is sqrt(24) */
        assert_true(fabs(tn_optim_clip(opt, 1.0) - sqrt(24.0)) < 1e-6);
        assert_true(first_element(tn_grad_of(m.a)) == 2.0); /* unscaled: the step scales */
        tn_optim_step(opt);
        double rounding = dtypes[i] == TN_BF16 ? 4e-3 : 1e-3, moved = 1.0 - 2.0 / sqrt(24.0);
        assert_true(fabs(first_element(m.a) - moved) < rounding);
        tn_optim_step(opt); /* a clip applies to one step */
        assert_true(fabs(first_element(m.a) - (moved - 2.0)) < 2 * rounding);

        assert_true(fabs(tn_clip_grad_norm(&m, 1.0) - sqrt(24.0)) < 1e-6);
        assert_true(fabs(first_element(tn_grad_of(m.b)) - 2.0 / sqrt(24.0)) < rounding);
        double norm = tn_clip_grad_norm(&m, 1e9);
        assert_true(fabs(norm - 1.0) < rounding);
        tn_optim_free(opt);
        tn_module_finish(&m);
    }
}

TEST(clipping_what_is_not_finite) {
    model m;
    model_init(&m, TN_F32);
    tn_optim *opt = make_sgd(&m, 1.0);
    set_gradients(&m, NAN);
    assert_true(isnan(tn_optim_clip(opt, 1.0)));
    assert_true(isnan(tn_clip_grad_norm(&m, 1.0)));
    set_gradients(&m, INFINITY);
    assert_true(isinf(tn_clip_grad_norm(&m, 1.0)));
    assert_true(isinf(first_element(tn_grad_of(m.a))));
    tn_module_zero_grad(&m);
    assert_true(tn_optim_clip(opt, 1.0) == 0.0); /* no gradients */
    assert_true(tn_clip_grad_norm(&m, 1.0) == 0.0);
    tn_optim_clip(opt, -1.0);
    assert_error(TN_EVALUE, "max_norm is -1");
    tn_clip_grad_norm(&m, NAN);
    assert_error(TN_EVALUE, "max_norm is");
    assert_inert(tn_optim_clip_later(opt, -1.0), TN_EVALUE, "max_norm is -1");
    assert_true(tn_item(tn_optim_clip_later(opt, 1.0)) == 0.0);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* Two models with the same gradients, one clipped with a norm that is read later. A second step
 * without clipping, and zero_grad, forget the factor. */
TEST(clipping_is_read_later) {
    tn_dtype dtypes[] = {TN_F32, TN_F64, TN_BF16, TN_F16};
    const double gradients[] = {2.0, 0.01, NAN, INFINITY};
    for (int i = 0; i < 4 * 4; i++) {
        TN_SCOPE;
        model m[2];
        tn_optim *opt[2];
        double norm[2];
        for (int k = 0; k < 2; k++) {
            model_init(&m[k], dtypes[i % 4]);
            opt[k] = i % 3 ? tn_adamw(&m[k], tn_adamw_defaults()) : make_sgd(&m[k], 0.3);
            set_gradients(&m[k], gradients[i / 4]);
            norm[k] = k ? tn_item(tn_optim_clip_later(opt[k], 1.0)) : tn_optim_clip(opt[k], 1.0);
            tn_optim_step(opt[k]);
            set_gradients(&m[k], isfinite(gradients[i / 4]) ? 0.5 : 0.0);
            tn_optim_step(opt[k]);
            tn_optim_clip_later(opt[k], 1e-3);
            tn_optim_zero_grad(opt[k]);
            set_gradients(&m[k], 0.5);
            tn_optim_step(opt[k]);
        }
        assert_true(norm[0] == norm[1] || (isnan(norm[0]) && isnan(norm[1])));
        for (int at = 0; at < 4; at++) {
            double a = tn_at(m[0].a, TN_DIMS(at / 2, at % 2)),
                   b = tn_at(m[1].a, TN_DIMS(at / 2, at % 2));
            assert_true(a == b || (isnan(a) && isnan(b)));
        }
        for (int k = 0; k < 2; k++) {
            tn_optim_free(opt[k]);
            tn_module_finish(&m[k]);
        }
    }
}

/* ---- Schedules, and the rest --------------------------------------------------------------------
 */

TEST(schedule_values) {
    assert_true(tn_schedule_at(tn_schedule_constant(0.5, 0), 0) == 0.5);
    assert_true(tn_schedule_at(tn_schedule_constant(0.5, 4), 0) == 0.1);
    assert_true(tn_schedule_at(tn_schedule_constant(0.5, 4), -7) == 0.1);
    assert_true(tn_schedule_at(tn_schedule_constant(0.5, 4), 4) == 0.5);
    tn_schedule cosine = tn_schedule_cosine(1.0, 0.2, 10, 20);
    assert_true(tn_schedule_at(cosine, 10) == 1.0);
    assert_true(fabs(tn_schedule_at(cosine, 15) - 0.6) < 1e-12);
    assert_true(tn_schedule_at(cosine, 20) == 0.2 && tn_schedule_at(cosine, INT64_MAX) == 0.2);
    assert_true(tn_schedule_at(tn_schedule_linear(1.0, 0.0, 10, 10), 10) == 0.0); /* all warm-up */
    assert_true(fabs(tn_schedule_at(tn_schedule_linear(1.0, 0.0, 0, 10), 3) - 0.7) < 1e-12);
    tn_schedule_linear(1.0, 0.0, 11, 10);
    assert_error(TN_EVALUE, "schedule_linear: a warm-up of 11 steps in a schedule of 10 (");
    tn_schedule_cosine(1.0, 0.0, 100, 5);
    assert_error(TN_EVALUE, "schedule_cosine: a warm-up of 100 steps in a schedule of 5 (");
}

TEST(counts_and_matches) {
    model m;
    model_init(&m, TN_F32);
    tn_optim *opt = make_sgd(&m, 1.0);
    assert_int_equal(tn_optim_split(opt, NULL, NULL), -1);
    assert_error(TN_EVALUE, "match is NULL");
    tn_optim_set_steps(opt, 12);
    tn_optim_set_steps(opt, -1);
    assert_int_equal(tn_optim_steps(opt), 12);
    assert_string_equal(tn_optim_kind(NULL), "");
    assert_true(isnan(tn_optim_lr(NULL)) && tn_optim_groups(NULL) == 0);
    assert_false(tn_match_vectors(NULL, NULL));
    tn_optim_free(opt);
    tn_module_finish(&m);
}
