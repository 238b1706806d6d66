/* Each optimiser's kernel against its reference, the same step made of operations: over many steps,
 * for every dtype and the options that change the arithmetic. And a program's own optimiser, which
 * has only a reference. */
#include <math.h>
#include <string.h>

#include "optim/optim.h"
#include "tests/support/test.h"

#include <tern/tern.h>

enum { STEPS = 60 };

/* A matrix, and a vector that now and then has no gradient, so that its step count differs. */
typedef struct model {
    tn_module base;
    tn_tensor *a, *b;
} model;

static tn_tensor *no_forward(tn_module *self, tn_tensor *x) {
    return x;
}

static void model_init(model *m, tn_dtype dtype) {
    TN_SCOPE;
    tn_seed(3);
    tn_module_init(&m->base, "model", no_forward);
    tn_module_param(&m->base, "a", &m->a, tn_cast(tn_randn(TN_DIMS(5, 7), TN_F64), dtype));
    tn_module_param(&m->base, "b", &m->b, tn_cast(tn_randn(TN_DIMS(13), TN_F64), dtype));
}

/* ---- Kernel and reference -------------------------------------------------------------------- */

typedef struct side {
    model m;
    tn_optim *opt;
    tn_optim_method method;
} side;

static void side_step(side *s, int step) {
    TN_SCOPE;
    tn_generator *g = tn_default_generator();
    *g = (tn_generator){.seed = 8, .stream = (uint64_t)step};
    tn_dtype dtype = tn_dtype_of(s->m.a);
    tn_set_grad(s->m.a, tn_cast(tn_randn(TN_DIMS(5, 7), TN_F64), dtype));
    tn_set_grad(s->m.b, step % 4 == 1 ? NULL : tn_cast(tn_randn(TN_DIMS(13), TN_F64), dtype));
    tn_optim_set_lr(s->opt, 0.05 / (1 + step));
    if (step % 3 == 0) { tn_optim_clip(s->opt, 2.0); }
    tn_optim_step(s->opt);
}

static bool compare_state(const char *name, tn_tensor *x, void *user) {
    TN_SCOPE;
    tn_tensor *y = NULL;
    tn_optim *reference = user;
    for (int i = 0; i < reference->item_count; i++) {
        const tn__item *item = &reference->items[i];
        size_t length = strlen(item->entry.path);
        const char *what = name + length + 1;
        if (strncmp(item->entry.path, name, length) != 0 || name[length] != '.') { continue; }
        for (int k = 0; k < TN_OPTIM_STATES; k++) {
            const char *known = reference->method->states[k];
            y = known && !strcmp(what, known) ? item->state[k] : y;
        }
        y = !strcmp(what, "step") ? item->steps : y;
        y = !strcmp(what, "master") ? item->master : y;
    }
    /* f32: each step rounds a few times, and over 60 steps that adds up */
    double bound = tn_dtype_of(x) == TN_F64 ? 1e-13 : 2e-5;
    assert_non_null(y);
    if (!tn_all_close(tn_cast(x, TN_F64), tn_cast(y, TN_F64), bound, bound)) {
        fail_msg("%s of %s is not the reference's", name, tn_optim_kind(reference));
    }
    return true;
}

typedef tn_optim *(*maker)(model *m, int variant); /* NULL: there is no such variant */

/* Counts calls of the kernel: if it never ran, the reference would be compared with itself. */
static void (*counted)(const tn_optim_call *c, tn_step *step);
static int kernel_calls;

static void count_step(const tn_optim_call *c, tn_step *step) {
    kernel_calls++;
    counted(c, step);
}

static bool compare_sides(maker make, int variant, tn_dtype dtype) {
    static side kernel, reference;
    model_init(&kernel.m, dtype);
    model_init(&reference.m, dtype);
    kernel.opt = make(&kernel.m, variant);
    reference.opt = make(&reference.m, variant);
    bool there = kernel.opt && reference.opt;
    if (there) {
        kernel.method = reference.method = *reference.opt->method;
        counted = kernel.method.step;
        kernel.method.step = count_step;
        kernel.opt->method = &kernel.method;
        kernel_calls = 0;
        reference.method.step = NULL;
        reference.opt->method = &reference.method;
    }
    for (int step = 0; there && step < STEPS; step++) {
        side_step(&kernel, step);
        side_step(&reference, step);
    }
    if (there) {
        assert_int_equal(tn_error(), TN_OK);
        assert_true(kernel_calls > 0);
        tn_optim_each(kernel.opt, compare_state, reference.opt);
        TN_SCOPE;
        double bound = dtype == TN_F64 ? 1e-13 : dtype == TN_F32 ? 2e-5 : 1e-2;
        assert_true(tn_all_close(tn_cast(kernel.m.a, TN_F64), tn_cast(reference.m.a, TN_F64), bound,
                                 bound));
        assert_true(tn_all_close(tn_cast(kernel.m.b, TN_F64), tn_cast(reference.m.b, TN_F64), bound,
                                 bound));
        if (reference.opt->items[0].master) {
            assert_true(tn_equal(reference.m.a, tn_cast(reference.opt->items[0].master, dtype)));
        }
    }
    tn_optim_free(kernel.opt);
    tn_optim_free(reference.opt);
    tn_module_finish(&kernel.m);
    tn_module_finish(&reference.m);
    return there;
}

static void compare_all(maker make, int variants) {
    static const tn_dtype dtypes[] = {TN_F64, TN_F32, TN_BF16, TN_F16};
    for (int v = 0; v < variants; v++) {
        for (int d = 0; d < 4; d++) {
            assert_true(compare_sides(make, v, dtypes[d]));
        }
    }
}

static tn_optim *make_sgd(model *m, int variant) {
    const tn_sgd_options all[] = {
        TN_WITH(tn_sgd, .lr = 0.1),
        TN_WITH(tn_sgd, .lr = 0.1, .weight_decay = 0.1),
        TN_WITH(tn_sgd, .lr = 0.1, .weight_decay = 0.1, .no_decay = tn_match_vectors),
        TN_WITH(tn_sgd, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01),
        TN_WITH(tn_sgd, .lr = 0.1, .momentum = 0.8, .dampening = 0.3),
        TN_WITH(tn_sgd, .lr = 0.1, .momentum = 0.9, .nesterov = true),
    };
    return tn_sgd(m, all[variant]);
}

TEST(sgd_agrees) {
    compare_all(make_sgd, 6);
}

static tn_optim *make_adam(model *m, int variant) {
    tn_adam_options o = tn_adam_defaults();
    o.weight_decay = variant % 2 ? 0.1 : 0.0;
    o.no_decay = variant % 3 ? tn_match_vectors : NULL;
    o.beta2 = 0.98;
    return variant < 4 ? tn_adam(m, o) : tn_adamw(m, o);
}

TEST(adam_agrees) {
    compare_all(make_adam, 8);
}

/* ---- The others ------------------------------------------------------------------------------ */

static tn_optim *make_by_rule(model *m, int variant) {
    bool more = variant % 2;
    double decay = more ? 0.05 : 0.0;
    tn_match some = variant % 4 == 1 ? tn_match_vectors : NULL;
    switch (variant / 2) {
    case 0:
        return tn_rmsprop(m, TN_WITH(tn_rmsprop, .momentum = more ? 0.8 : 0, .centered = more,
                                     .weight_decay = decay, .no_decay = some));
    case 1:
        return tn_adagrad(m, TN_WITH(tn_adagrad, .lr_decay = more ? 0.1 : 0,
                                     .initial_accumulator = more ? 0.3 : 0, .weight_decay = decay));
    case 2:
        return tn_adadelta(m, TN_WITH(tn_adadelta, .lr = 2.0, .weight_decay = decay));
    case 3:
        return tn_adamax(m, TN_WITH(tn_adamax, .weight_decay = decay));
    case 4:
        return tn_radam(m, TN_WITH(tn_radam, .beta2 = 0.9, .weight_decay = decay));
    case 5:
        return tn_lion(m, TN_WITH(tn_lion, .weight_decay = decay));
    case 6:
        return tn_adam(m, TN_WITH(tn_adam, .amsgrad = true, .weight_decay = decay));
    default:
        return tn_adamw(m, TN_WITH(tn_adamw, .amsgrad = true, .weight_decay = decay));
    }
}

TEST(rules_agree) {
    compare_all(make_by_rule, 16);
}

/* With a learning rate that suits a parabola. */
#define MAKER(kind, rate)                               \
    static tn_optim *plain_##kind(model *m) {           \
        tn_##kind##_options o = tn_##kind##_defaults(); \
        o.lr = rate;                                    \
        return tn_##kind(m, o);                         \
    }
MAKER(rmsprop, 0.02)
MAKER(adagrad, 0.2)
MAKER(adadelta, 10.0)
MAKER(adamax, 0.05)
MAKER(nadam, 0.05)
MAKER(radam, 0.1)
MAKER(asgd, 0.1)
MAKER(lion, 0.02)
MAKER(lamb, 0.05)
MAKER(adafactor, 0.1)
MAKER(muon, 0.05)

static double parabola_at(model *m, bool steps, tn_optim *opt) {
    TN_SCOPE;
    tn_tensor *loss = tn_add(tn_sum_all(tn_square(m->a)), tn_sum_all(tn_square(m->b)));
    if (steps) {
        tn_backward(loss);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    return tn_item(loss);
}

/* On any device, in every dtype; test_torch.py compares the numbers. */
TEST(every_other) {
    static tn_optim *(*const makers[])(model *) = {
        plain_rmsprop, plain_adagrad, plain_adadelta, plain_adamax,    plain_nadam, plain_radam,
        plain_asgd,    plain_lion,    plain_lamb,     plain_adafactor, plain_muon};
    static const tn_dtype dtypes[] = {TN_F64, TN_F32, TN_BF16, TN_F16};
    for (size_t i = 0; i < 4 * sizeof(makers) / sizeof(*makers); i++) {
        model m;
        model_init(&m, dtypes[i % 4]);
        tn_optim *opt = makers[i / 4](&m);
        double before = parabola_at(&m, false, opt);
        for (int step = 0; step < 20; step++) {
            parabola_at(&m, true, opt);
        }
        assert_int_equal(tn_error(), TN_OK);
        if (!(parabola_at(&m, false, opt) < 0.9 * before)) {
            fail_msg("%s does not descend", tn_optim_kind(opt));
        }
        tn_optim_free(opt);
        tn_module_finish(&m);
    }
}

/* ---- A program's own ------------------------------------------------------------------------- */

/* Lion (Chen et al. 2023, arXiv:2302.06675). */
typedef struct lion_options {
    double beta1, beta2;
} lion_options;

static void lion_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                           tn_tensor *const *state) {
    const lion_options *o = c->options;
    tn_tensor *m = state[0];
    tn_tensor *d = tn_add(tn_mul_scalar(m, o->beta1), tn_mul_scalar(g, 1.0 - o->beta1));
    tn_tensor *next = tn_add(tn_mul_scalar(m, o->beta2), tn_mul_scalar(g, 1.0 - o->beta2));
    d = tn_add(tn_sign(d), tn_mul_scalar(p, c->weight_decay));
    tn_copy_(p, tn_sub(p, tn_mul_scalar(d, c->lr)));
    tn_copy_(m, next);
}

static const tn_optim_method lion = {.name = "lion",
                                     .states = {"momentum"},
                                     .options_size = sizeof(lion_options),
                                     .reference = lion_reference};

static bool count_state(const char *name, tn_tensor *t, void *user) {
    *(int *)user += strstr(name, ".momentum") || strstr(name, ".step") || strstr(name, ".master");
    return true;
}

TEST(ones_own) {
    for (int half = 0; half < 2; half++) {
        TN_SCOPE;
        model m;
        model_init(&m, half ? TN_BF16 : TN_F64);
        tn_tensor *was = tn_copy(tn_cast(m.b, TN_F64));
        lion_options o = {0.9, 0.99};
        tn_optim *opt = tn_optim_new(&m, &lion, &o, (tn_optim_rates){0.25, 0.5, tn_match_vectors});
        o = (lion_options){0}; /* the optimiser has a copy */
        assert_string_equal(tn_optim_kind(opt), "lion");
        int states = 0;
        tn_optim_each(opt, count_state, &states);
        assert_int_equal(states, half ? 6 : 4);
        tn_set_grad(m.b, tn_full(TN_DIMS(13), 2.0, tn_dtype_of(m.b)));
        assert_int_equal(tn_optim_step(opt), TN_OK);
        assert_int_equal(tn_optim_step(opt), TN_OK);
        tn_tensor *p = half ? opt->items[1].master : m.b; /* not decayed: 2 steps of the sign */
        assert_true(tn_all_close(tn_cast(p, TN_F64), tn_add_scalar(was, -0.5), 0.0, 1e-6));
        assert_true(fabs(tn_item(tn_max(opt->items[1].state[0], TN_DIMS(), false)) - 0.0398) <
                    1e-6);
        assert_true(tn_item(opt->items[1].steps) == 2.0 && tn_item(opt->items[0].steps) == 0.0);
        tn_optim_free(opt);
        tn_module_finish(&m);
    }
}

static void bad_reference(const tn_optim_call *c, tn_tensor *p, tn_tensor *g,
                          tn_tensor *const *state) {
    tn_copy_(p, tn_add(g, tn_ones(TN_DIMS(2), tn_dtype_of(g))));
    tn_copy_(state[0], g);
}

TEST(refused_methods) {
    model m;
    model_init(&m, TN_F32);
    tn_optim_rates rates = {.lr = 1.0};
    lion_options o = {0.9, 0.99};
    assert_null(tn_optim_new(&m, NULL, &o, rates));
    assert_error(TN_EVALUE,
                 "optim_new: an optimiser needs a name, a reference step, and its options");
    assert_null(tn_optim_new(&m, &(tn_optim_method){.name = "empty"}, &o, rates));
    assert_error(TN_EVALUE, "empty: an optimiser needs");
    assert_null(tn_optim_new(&m, &lion, NULL, rates));
    assert_error(TN_EVALUE, "lion: an optimiser needs");
    assert_null(tn_optim_new(&m, &lion, &o, (tn_optim_rates){.lr = NAN}));
    assert_error(TN_EVALUE, "lion: lr nan");
    assert_null(tn_optim_new(NULL, &lion, &o, rates));
    assert_error(TN_EVALUE, "NULL");
    tn_optim_method bad = lion;
    bad.reference = bad_reference;
    tn_optim *opt = tn_optim_new(&m, &bad, &o, rates);
    double before = tn_at(m.b, TN_DIMS(0));
    tn_set_grad(m.b, tn_ones(TN_DIMS(13), TN_F32));
    assert_int_equal(tn_optim_step(opt), TN_ESHAPE);
    assert_error(TN_ESHAPE, "a is [13] but b is [2]");
    assert_true(tn_at(m.b, TN_DIMS(0)) == before); /* nothing changed */
    assert_true(tn_item(opt->items[1].steps) == 0.0);
    assert_true(tn_item(tn_sum_all(opt->items[1].state[0])) == 0.0);
    tn_optim_free(opt);
    tn_module_finish(&m);
}
