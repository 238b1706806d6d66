/* Modules built without elements: the same bits as when built at once, whole and in parts, and what
 * happens when they are read too early. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <tern/tern.h>

/* In place of a sharding strategy: makes only elements [start, start + length). */
#include "nn/defer.h"

/* ---- A module that initialises in every way -------------------------------------------------- */

enum { EVERY = 16 };

typedef struct every {
    tn_module base;
    tn_tensor *p[EVERY];
} every;

static tn_tensor *every_forward(tn_module *self, tn_tensor *x) {
    return x;
}

static void every_init(every *m, tn_dtype dtype) {
    TN_SCOPE;
    TN_NO_GRAD;
    memset(m, 0, sizeof(*m));
    tn_module_init(m, "every", every_forward);
    tn_dims dims = TN_DIMS(7, 5, 3);
    tn_tensor *t[EVERY];
    for (int i = 0; i < 7; i++) {
        t[i] = tn_empty(dims, dtype);
    }
    tn_init_uniform(t[0], -0.5, 2);
    tn_init_normal(t[1], 1, 3);
    tn_init_constant(t[2], 0.75);
    tn_init_xavier_uniform(t[3], 1.5);
    tn_init_xavier_normal(t[4], 1.5);
    tn_init_kaiming_uniform(t[5], 0.1);
    tn_init_kaiming_normal(t[6], 0.1);
    t[7] = tn_zeros(dims, dtype);
    t[8] = tn_ones(dims, dtype);
    t[9] = tn_full(dims, -3.25, dtype);
    t[10] = tn_rand(dims, dtype);
    t[11] = tn_randn(dims, dtype);
    /* operations on the elements afterwards */
    t[12] = tn_clamp_(tn_add_scalar_(tn_mul_scalar_(tn_randn(dims, dtype), 0.3), -0.1), -0.4, 0.2);
    t[13] = tn_normal_(tn_fill_(tn_rand(dims, dtype), 7), 0, 0.02, NULL); /* the last one counts */
    t[14] = tn_copy_(tn_empty(dims, dtype), tn_randn(dims, dtype));
    t[15] = tn_mul_scalar(tn_randn(dims, dtype), 0.02); /* a new tensor: made at once */
    for (int i = 0; i < EVERY; i++) {
        char name[8];
        snprintf(name, sizeof(name), "p%d", i);
        tn_module_param(m, name, &m->p[i], t[i]);
    }
    assert_int_equal(tn_error(), TN_OK);
}

static void same_elements(tn_tensor *a, tn_tensor *b) {
    TN_SCOPE;
    assert_true(tn_equal(tn_to(tn_detach(a), tn_cpu()), tn_to(tn_detach(b), tn_cpu())));
}

/* Two generators are at the same position. */
static void same_place(tn_generator a, tn_generator b) {
    assert_true(a.seed == b.seed && a.stream == b.stream && a.call == b.call);
}

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16, TN_F64};

TEST(all_ways_of_initialising) {
    for (int k = 0; k < 4; k++) {
        every whole, later;
        tn_seed(11);
        every_init(&whole, dtypes[k]);
        tn_generator after = *tn_default_generator();
        tn_seed(11);
        {
            TN_DEFER_INIT;
            every_init(&later, dtypes[k]);
        }
        same_place(*tn_default_generator(), after);
        for (int i = 0; i < EVERY; i++) {
            assert_int_equal(tn_storage_is_empty(later.p[i]), i != 15);
            assert_true(tn_requires_grad(later.p[i]) && tn_dtype_of(later.p[i]) == dtypes[k]);
        }
        tn_seed(12); /* what is drawn in between does not matter */
        assert_int_equal(tn_module_materialize(&later), TN_OK);
        same_place(*tn_default_generator(), (tn_generator){.seed = 12});
        for (int i = 0; i < EVERY; i++) {
            same_elements(later.p[i], whole.p[i]);
        }
        assert_int_equal(tn_module_materialize(&later), TN_OK); /* nothing is left to do */
        same_elements(later.p[1], whole.p[1]);
        tn_module_finish(&whole);
        tn_module_finish(&later);
    }
}

/* ---- Parts ----------------------------------------------------------------------------------- */

/* [start, start + length) of each parameter, against the whole. */
static void same_part(const every *later, const every *whole, int64_t start, int64_t length) {
    TN_SCOPE;
    TN_NO_GRAD;
    for (int i = 0; i < EVERY - 1; i++) {
        tn_tensor *flat = tn_reshape(tn_detach(whole->p[i]), TN_DIMS(tn_count(whole->p[i])));
        tn_tensor *around = tn_zeros(TN_DIMS(length + 2), tn_dtype_of(flat));
        tn_tensor *out = tn_alias(around, 1, TN_DIMS(length));
        assert_int_equal(tn__draw_part(later->p[i], start, length, out), TN_OK);
        same_elements(out, tn_narrow(flat, 0, start, length));
        tn_tensor *cpu = tn_to(around, tn_cpu()); /* nothing was written next to it */
        assert_true(tn_at(cpu, TN_DIMS(0)) == 0 && tn_at(cpu, TN_DIMS(length + 1)) == 0);
    }
}

TEST(parts_are_slices) {
    enum { N = 7 * 5 * 3 };
    for (int k = 0; k < 4; k++) {
        every whole, later;
        tn_seed(11);
        every_init(&whole, dtypes[k]);
        tn_seed(11);
        {
            TN_DEFER_INIT;
            every_init(&later, dtypes[k]);
        }
        for (int64_t start = 0; start < 10; start++) { /* every alignment to groups of four draws */
            for (int64_t length = 0; length < 10; length++) {
                same_part(&later, &whole, start, length);
            }
        }
        same_part(&later, &whole, 0, N);
        same_part(&later, &whole, 3, N - 3);
        same_part(&later, &whole, 51, N - 51);
        same_part(&later, &whole, N, 0);
        assert_true(tn_storage_is_empty(later.p[0])); /* the whole is still not made */
        tn_module_finish(&whole);
        tn_module_finish(&later);
    }
    every m;
    {
        TN_DEFER_INIT;
        every_init(&m, TN_F32);
    }
    tn_tensor *out = tn_zeros(TN_DIMS(4), TN_F32);
    assert_int_equal(tn__draw_part(m.p[0], N - 3, 4, out), TN_EVALUE);
    assert_error(TN_EVALUE, "4 elements from 102 on");
    tn_module_finish(&m);
}

/* ---- Models ---------------------------------------------------------------------------------- */

static tn_gpt_options small_options(void) {
    tn_gpt_options o =
        TN_WITH(tn_gpt, .vocab = 301, .context = 32, .layers = 3, .heads = 4, .width = 64);
    return o;
}

static void gpt_later(tn_gpt *m, tn_gpt_options o) {
    TN_DEFER_INIT;
    tn_gpt_init(m, o);
}

/* The other model of a walk over two. */
static bool same_as_other(const tn_entry *entry, void *user) {
    same_elements(*entry->field, tn_module_get(user, entry->path));
    return tn_error() == TN_OK;
}

static void assert_same_model(void *m, void *other) {
    tn_module_each(m, (tn_walk){.buffers = true}, same_as_other, other);
    assert_int_equal(tn_error(), TN_OK);
}

/* Elements of each parameter of a model that has none, in pieces as three ranks would take them. */
static bool same_pieces(const tn_entry *entry, void *user) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *whole = tn_detach(tn_module_get(user, entry->path));
    int64_t n = tn_count(whole), cuts[] = {0, n / 3 + 1, n - n / 4, n};
    for (int i = 0; i < 3; i++) {
        tn_tensor *out = tn_zeros(TN_DIMS(cuts[i + 1] - cuts[i]), tn_dtype_of(whole));
        assert_int_equal(tn__draw_part(*entry->field, cuts[i], tn_count(out), out), TN_OK);
        same_elements(out, tn_narrow(tn_reshape(whole, TN_DIMS(n)), 0, cuts[i], tn_count(out)));
    }
    return true;
}

TEST(gpt_as_built_at_once) {
    tn_gpt whole, later;
    tn_seed(3);
    tn_gpt_init(&whole, small_options());
    tn_generator after = *tn_default_generator();
    tn_seed(3);
    gpt_later(&later, small_options());
    same_place(*tn_default_generator(), after);
    assert_int_equal(tn_module_count(&later), tn_module_count(&whole));
    tn_module_each(&later, (tn_walk){0}, same_pieces, &whole);
    assert_int_equal(tn_module_materialize(&later), TN_OK);
    assert_same_model(&later, &whole);
    tn_tensor *tokens = tn_randint(0, 301, TN_DIMS(2, 8), TN_I64);
    same_elements(tn_call(&later, tokens), tn_call(&whole, tokens));
    tn_module_finish(&whole);
    tn_module_finish(&later);
}

/* GPT-2 1.5B, 6 GB of f32, is built without allocating its elements. */
TEST(no_memory_while_building) {
    tn_gpt_options o = TN_WITH(tn_gpt, .layers = 48, .heads = 25, .width = 1600);
    tn_device device = tn_default_device();
    int64_t before = tn_device_memory(device).allocated;
    tn_device_memory_reset_peak(device);
    tn_gpt gpt;
    gpt_later(&gpt, o);
    assert_true(tn_module_count(&gpt) > 1500000000);
    assert_true(tn_device_memory(device).peak - before < 1 << 20);
    assert_int_equal(tn_device_memory(device).allocated, before);
    tn_module_finish(&gpt);
}

/* Ties, a policy that converts, and a move to a device, all before there are elements. */
TEST(changed_before_it_is_made) {
    tn_linear_options plain = TN_WITH(tn_linear, .bias = false);
    tn_precision bf16 = TN_WITH(tn_precision, .param = TN_BF16);
    tn_sequential all[2];
    tn_linear a[2], b[2];
    for (int i = 0; i < 2; i++) {
        tn_seed(8);
        bool before = i == 1 && tn_defer_init_begin();
        tn_sequential_init(&all[i]);
        tn_linear_init(&a[i], 6, 6, plain);
        tn_linear_init(&b[i], 6, 6, plain);
        tn_sequential_add(&all[i], &a[i]);
        tn_sequential_add(&all[i], &b[i]);
        tn_defer_init_end(&before);
        assert_int_equal(tn_module_tie(&all[i], "1.weight", "0.weight"), TN_OK);
        assert_int_equal(tn_module_set_precision(&all[i], bf16), TN_OK);
        assert_int_equal(tn_module_to(&all[i], tn_default_device()), TN_OK);
        assert_int_equal(tn_dtype_of(a[i].weight), TN_BF16);
    }
    assert_true(tn_storage_is_empty(a[1].weight) && a[1].weight == b[1].weight);
    tn_tensor *part = tn_zeros(TN_DIMS(11), TN_BF16);
    assert_int_equal(tn__draw_part(a[1].weight, 5, 11, part), TN_OK);
    assert_int_equal(tn_module_materialize(&all[1]), TN_OK);
    assert_same_model(&all[1], &all[0]);
    TN_NO_GRAD;
    same_elements(part, tn_narrow(tn_reshape(a[0].weight, TN_DIMS(36)), 0, 5, 11));
    for (int i = 0; i < 2; i++) {
        tn_module_finish(&all[i]);
    }
}

/* A parameter that was converted and is drawn again is drawn in its new dtype. */
TEST(drawn_again_after_a_policy) {
    tn_precision f64 = TN_WITH(tn_precision, .param = TN_F64, .compute = TN_F64, .reduce = TN_F64);
    tn_linear m[2];
    for (int i = 0; i < 2; i++) {
        tn_seed(8);
        bool before = i == 1 && tn_defer_init_begin();
        tn_linear_init(&m[i], 6, 6, tn_linear_defaults());
        tn_module_set_precision(&m[i], f64);
        tn_init_normal(m[i].weight, 0, 1);
        tn_defer_init_end(&before);
    }
    assert_true(tn_storage_is_empty(m[1].weight));
    assert_inert(tn_mul_scalar_(tn_detach(m[1].bias), 2), TN_EUNSUPPORTED, "in another dtype");
    assert_int_equal(tn_module_materialize(&m[1]), TN_OK);
    assert_same_model(&m[1], &m[0]);
    tn_module_finish(&m[0]);
    tn_module_finish(&m[1]);
}

/* A parameter of which only a part is stored is not made whole. */
TEST(sharded_stays_empty) {
    tn_linear m;
    {
        TN_DEFER_INIT;
        tn_linear_init(&m, 4, 4, tn_linear_defaults());
    }
    tn_tensor *part = tn_zeros(TN_DIMS(5), TN_F32);
    tn_layout layout = {TN_DIMS(4, 4), -1, 1, 0, 1, 7, 5};
    assert_int_equal(tn__draw_part(m.weight, 7, 5, part), TN_OK);
    assert_int_equal(tn_module_set_part(&m, "weight", part, layout, NULL), TN_OK);
    assert_int_equal(tn_module_materialize(&m), TN_OK);
    assert_true(tn_storage_is_empty(m.weight) && !tn_storage_is_empty(m.bias));
    tn_module_finish(&m);
}

/* ---- Too early ------------------------------------------------------------------------------- */

TEST(reading_too_early) {
    tn_gpt gpt;
    gpt_later(&gpt, small_options());
    assert_inert(tn_call(&gpt, tn_zeros(TN_DIMS(1, 4), TN_I64)), TN_ESTATE,
                 "weight [301, 64] has no elements yet: it was built under TN_DEFER_INIT");
    assert_inert(tn_call(&gpt.h[1].mlp, tn_ones(TN_DIMS(2, 64), TN_F32)), TN_ESTATE, "mlp.c_fc");
    assert_null(tn_adamw(&gpt, tn_adamw_defaults()));
    assert_error(TN_ESTATE, "adamw: wte.weight has no elements yet");
    const char *path = temp_path("gpt.safetensors");
    assert_int_equal(tn_save(&gpt, path), TN_ESTATE);
    assert_error(TN_ESTATE, "save: wte.weight has no elements yet");
    tn_checkpoint c = {.model = &gpt};
    assert_int_equal(tn_checkpoint_save(&c, path), TN_ESTATE);
    assert_error(TN_ESTATE, "checkpoint_save: wte.weight has no elements yet");
    temp_clean(state);
    tn_module_finish(&gpt);
}

TEST(loading_gives_elements) {
    tn_gpt whole, loaded, resumed;
    tn_gpt_init(&whole, small_options());
    const char *path = temp_path("gpt.safetensors");
    assert_int_equal(tn_save(&whole, path), TN_OK);
    gpt_later(&loaded, small_options());
    assert_int_equal(tn_load(&loaded, path), TN_OK);
    assert_same_model(&loaded, &whole);
    assert_int_equal(tn_checkpoint_save(&(tn_checkpoint){.model = &whole}, path), TN_OK);
    gpt_later(&resumed, small_options());
    assert_int_equal(tn_checkpoint_load(&(tn_checkpoint){.model = &resumed}, path), TN_OK);
    assert_same_model(&resumed, &whole);
    temp_clean(state);
    tn_module_finish(&whole);
    tn_module_finish(&loaded);
    tn_module_finish(&resumed);
}

TEST(what_cannot_wait) {
    TN_NO_GRAD;
    tn_tensor *x, *y, *bytes;
    {
        TN_DEFER_INIT;
        x = tn_ones(TN_DIMS(4, 3), TN_F32);
        y = tn_ones(TN_DIMS(4, 3), TN_F32);
        { TN_DEFER_INIT; /* nesting changes nothing */ }
        tn_tensor *b = tn_copy_(tn_empty(TN_DIMS(4, 3), TN_BF16), x);
        assert_true(tn_storage_is_empty(b));
        assert_inert(tn_copy_(tn_empty(TN_DIMS(4, 3), TN_F16), b), TN_EUNSUPPORTED,
                     "through at most one other dtype");
        bytes = tn_from_data((float[]){1, 2}, TN_DIMS(2), TN_F32);
        assert_true(tn_at(tn_arange(0, 3, 1, TN_F32), TN_DIMS(2)) == 2);
        assert_true(tn_item(tn_sum_all(tn_add(y, y))) == 24); /* reading makes the elements */
        assert_true(tn_storage_is_empty(x) && !tn_storage_is_empty(y));
        assert_false(tn_storage_is_empty(bytes));
    }
    assert_false(tn_storage_is_empty(tn_ones(TN_DIMS(2), TN_F32))); /* the block has ended */
    assert_inert(tn_fill_(tn_alias(x, 3, TN_DIMS(3)), 0), TN_EUNSUPPORTED, "a part of a tensor");
    for (int i = 0; i < 7; i++) {
        tn_mul_scalar_(x, 2);
    }
    assert_inert(tn_mul_scalar_(x, 2), TN_EUNSUPPORTED, "too many steps");
    for (int i = 0; i < 20; i++) {
        assert_ptr_equal(tn_fill_(x, i), x); /* setting all elements discards the earlier steps */
    }
    tn_mul_scalar_(x, 2);
    assert_inert(tn_add_(x, y), TN_ESTATE, "[4, 3] has no elements yet");
    assert_inert(tn_sum_all(x), TN_ESTATE, "has no elements yet");
    tn_data(x);
    assert_error(TN_ESTATE, "has no elements yet");
    tn_copy_(x, y); /* gives it elements */
    assert_true(tn_equal(x, y));
}
