/* Mixed precision: training runs of a small GPT, resumed and recomputed, and the text it
 * generates. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/test.h"

#include "precision_net.h"

enum { VOCAB = 16, CONTEXT = 16, BATCH = 8 };

static void gpt_init(tn_gpt *gpt, tn_dtype compute, bool recompute) {
    tn_gpt_options o =
        TN_WITH(tn_gpt, .vocab = VOCAB, .context = CONTEXT, .layers = 2, .heads = 2, .width = 32);
    tn_seed(3);
    tn_gpt_init(gpt, o);
    set_compute(gpt, compute);
    tn_module_set_recompute(&gpt->h[1], recompute);
}

/* Predictable text: each letter is mostly the previous one times 5 plus 3. */
static double gpt_step(tn_gpt *gpt, tn_optim *opt, int64_t number) {
    TN_SCOPE;
    int64_t x[BATCH * CONTEXT], y[BATCH * CONTEXT];
    tn_generator g = {.seed = 21, .stream = (uint64_t)number};
    for (int b = 0; b < BATCH; b++) {
        int64_t letter = tn_random_below(&g, VOCAB);
        for (int t = 0; t < CONTEXT; t++) {
            x[b * CONTEXT + t] = letter;
            letter =
                tn_random_below(&g, 10) ? (letter * 5 + 3) % VOCAB : tn_random_below(&g, VOCAB);
            y[b * CONTEXT + t] = letter;
        }
    }
    tn_tensor *loss = tn_lm_loss(gpt, TN_FROM(x, TN_DIMS(BATCH, CONTEXT), TN_I64),
                                 TN_FROM(y, TN_DIMS(BATCH, CONTEXT), TN_I64));
    assert_int_equal(tn_dtype_of(loss), TN_F32);
    tn_backward(loss);
    tn_optim_clip(opt, 1.0);
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
    return tn_item(loss);
}

static tn_optim *make_adamw(void *m) {
    tn_adamw_options a = TN_WITH(tn_adamw, .lr = 5e-3);
    return tn_adamw(m, a);
}

/* The mean loss of the last 20 of 200 steps. */
static double train_gpt(tn_dtype compute) {
    tn_gpt gpt;
    gpt_init(&gpt, compute, false);
    tn_optim *opt = make_adamw(&gpt);
    double sum = 0;
    for (int i = 0; i < 200; i++) {
        double loss = gpt_step(&gpt, opt, i);
        sum += i >= 180 ? loss : 0;
    }
    tn_optim_free(opt);
    tn_module_finish(&gpt);
    return sum / 20;
}

/* Hundreds of steps take a minute on the emulator and test no more than a few steps do. */
static void not_on_the_emulator(void) {
    const char *plugin = getenv("TERN_CUDA");
    if (tn_default_device().kind != TN_CPU && plugin && strcmp(plugin, "cuda_emulator") == 0) {
        skip();
    }
}

/* bf16 reaches f32's loss within 2 %. */
TEST(training_reaches_f32) {
    not_on_the_emulator();
    double f32 = train_gpt(TN_F32), bf16 = train_gpt(TN_BF16);
    assert_true(f32 < 1.0); /* it has learned: chance is log 16 = 2.77 */
    if (!is_near(bf16, f32, 0.02 * f32)) { fail_msg("f32 %.4f, bf16 %.4f", f32, bf16); }
}

static bool same_parameter(const tn_entry *entry, void *user) {
    expect_same_bits(*entry->field, tn_module_get(user, entry->path));
    return true;
}

/* Recompute changes no bit of a training run, including the embedding, which is read in two
 * places. */
TEST(training_with_recompute) {
    tn_gpt gpt[2];
    for (int i = 0; i < 2; i++) {
        gpt_init(&gpt[i], TN_BF16, i == 1);
        tn_optim *opt = make_adamw(&gpt[i]);
        for (int k = 0; k < 3; k++) {
            gpt_step(&gpt[i], opt, k);
        }
        tn_optim_free(opt);
    }
    tn_module_each(&gpt[0], (tn_walk){0}, same_parameter, &gpt[1]);
    tn_module_finish(&gpt[0]);
    tn_module_finish(&gpt[1]);
}

/* A checkpoint holds the f32 parameters: a run that continues from it is the run that was never
 * stopped. */
TEST(resume_is_bit_exact) {
    char path[64];
    snprintf(path, sizeof(path), "/tmp/tern_precision_%d.safetensors", (int)getpid());
    tn_gpt whole, part;
    gpt_init(&whole, TN_BF16, false);
    gpt_init(&part, TN_BF16, false);
    tn_optim *opt = make_adamw(&whole), *again = make_adamw(&part);
    for (int i = 0; i < 4; i++) {
        gpt_step(&whole, opt, i);
    }
    tn_checkpoint c = {.model = &whole, .optim = opt, .step = 4};
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    gpt_step(&part, again, 99); /* its copies hold other weights than those loaded next */
    tn_checkpoint loaded = {.model = &part, .optim = again};
    assert_int_equal(tn_checkpoint_load(&loaded, path), TN_OK);
    for (int i = 4; i < 6; i++) {
        assert_true(gpt_step(&whole, opt, i) == gpt_step(&part, again, i));
    }
    tn_module_each(&whole, (tn_walk){0}, same_parameter, &part);
    unlink(path);
    tn_optim_free(opt);
    tn_optim_free(again);
    tn_module_finish(&whole);
    tn_module_finish(&part);
}

/* With caches in the compute dtype: the same letters as without caches. */
TEST(generation_in_bf16) {
    not_on_the_emulator();
    tn_gpt gpt;
    gpt_init(&gpt, TN_BF16, false);
    tn_optim *opt = make_adamw(&gpt);
    for (int i = 0; i < 100; i++) {
        gpt_step(&gpt, opt, i);
    }
    tn_module_train(&gpt, false);
    int32_t first = 1;
    tn_generate_options options = TN_WITH(tn_generate, .max_new = 10, .temperature = 0.0);
    tn_generated text;
    assert_int_equal(tn_generate(&gpt, &(tn_prompt){&first, 1}, 1, options, &text), TN_OK);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(text.tokens.ids[i], (first * 5 + 3) % VOCAB);
        first = text.tokens.ids[i];
    }
    tn_generated_free(&text, 1);
    expect_parameters(&gpt);
    tn_optim_free(opt);
    tn_module_finish(&gpt);
}

/* A linear that shows its weight's copy. */
typedef struct shown {
    tn_module base;
    tn_linear fc;
    tn_tensor *copy; /* one reference */
} shown;

static tn_tensor *shown_forward(tn_module *self, tn_tensor *x) {
    shown *m = (shown *)self;
    tn_release(m->copy);
    m->copy = tn_keep(tn_detach(m->fc.weight));
    return tn_call(&m->fc, x);
}

static bool copy_is_rounded(const shown *m) {
    TN_SCOPE;
    TN_NO_GRAD;
    return tn_equal(m->copy, tn_cast(m->fc.weight, TN_BF16));
}

/* The kernels of adamw and sgd write the copy with the parameter; a method without a kernel leaves
 * it to the next call. A graph over the old copy can then no longer be differentiated. */
TEST(steps_write_the_copies) {
    for (int method = 0; method < 3; method++) {
        TN_SCOPE;
        shown m = {0};
        tn_module_init(&m, "shown", shown_forward);
        tn_linear_init(&m.fc, 70, 50, tn_linear_defaults());
        tn_module_add(&m, "fc", &m.fc);
        set_compute(&m, TN_BF16);
        tn_optim *opt = method == 0   ? tn_adamw(&m, TN_WITH(tn_adamw, .lr = 0.1))
                        : method == 1 ? tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0.1))
                                      : tn_lamb(&m, TN_WITH(tn_lamb, .lr = 0.1));
        tn_tensor *x = tn_set_requires_grad(tn_randn(TN_DIMS(4, 70), TN_F32), true);
        tn_backward(tn_sum_all(tn_call(&m, x)));
        tn_tensor *early = tn_sum_all(tn_call(&m, x));
        assert_true(copy_is_rounded(&m));
        tn_optim_step(opt);
        assert_int_equal(copy_is_rounded(&m), method < 2);
        if (method < 2) {
            assert_int_equal(tn_backward(early), TN_ESTATE);
            assert_error(TN_ESTATE, "changed");
        }
        tn_call(&m, x);
        assert_true(copy_is_rounded(&m));
        TN_NO_GRAD;
        tn_fill_(m.fc.weight, 0.3); /* what others write reaches the copy too */
        tn_call(&m, x);
        assert_true(copy_is_rounded(&m));
        tn_release(m.copy);
        tn_optim_free(opt);
        tn_module_finish(&m);
    }
}
