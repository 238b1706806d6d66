/* Perplexity and multiple choice: against the mathematics by hand, in batches of any size, and on
 * any number of ranks. */
#include "tern/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/allocator.h"
#include "tern/models.h"
#include "tern/parallel.h"
#include "tests/distributed/rank_check.h"
#include "tests/support/ranks.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

enum { VOCAB = 40, CONTEXT = 12 };

static void make_model(tn_gpt *gpt) {
    tn_gpt_options o = TN_WITH(tn_gpt, .vocab = VOCAB, .context = CONTEXT, .layers = 2, .heads = 2,
                               .width = 16, .bias = true, .activation = TN_ACT_GELU);
    tn_seed(7);
    tn_gpt_init(gpt, o);
    TN_NO_GRAD;
    tn_tensor *weight = tn_module_get(gpt, "wte.weight");
    tn_mul_scalar_(weight, 20); /* expectations that differ from token to token */
}

static int64_t token_at(int64_t i) {
    return (i * i + 3 * i) % 37 + (i % 5 == 0);
}

/* A shard in nanoGPT's format. */
static const char *write_tokens(const char *name, int64_t from, int64_t count) {
    unsigned char file[2 * 512];
    assert_true(count <= 512);
    for (int64_t i = 0; i < count; i++) {
        file[2 * i] = (unsigned char)token_at(from + i);
        file[2 * i + 1] = 0;
    }
    const char *path = temp_path(name);
    temp_write(path, file, 2 * (size_t)count);
    return path;
}

/* -log p of what follows the last of `count` tokens from `from` on. */
static double nats_by_hand(void *m, int64_t from, int64_t count, int64_t target) {
    TN_SCOPE;
    TN_NO_GRAD;
    int64_t x[64];
    for (int64_t t = 0; t < count; t++) {
        x[t] = token_at(from + t);
    }
    tn_tensor *p = tn_log_softmax(tn_call(m, tn_from_data(x, TN_DIMS(1, count), TN_I64)), 2);
    return -tn_at(p, TN_DIMS(0, count - 1, target));
}

static tn_perplexity perplexity_of(void *m, const char *pattern, int64_t length, int64_t stride,
                                   tn_evaluate_options o) {
    tn_perplexity p;
    tn_dataset *d = tn_sliding_shards(pattern, length, stride, VOCAB);
    assert_non_null(d);
    assert_int_equal(tn_evaluate_perplexity(m, d, NULL, o, &p), TN_OK);
    tn_dataset_free(d);
    return p;
}

/* ---- Perplexity ------------------------------------------------------------------------------ */

/* Each token alone, after those before it in its window. */
static double loss_by_hand(void *m, int64_t count, int64_t length, int64_t stride) {
    double sum = 0;
    for (int64_t target = 1; target < count; target++) {
        int64_t behind = target - length; /* targets beyond the first window */
        int64_t begin = behind <= 0 ? 0 : ((behind - 1) / stride + 1) * stride;
        sum += nats_by_hand(m, begin, target - begin, token_at(target));
    }
    return sum / (double)(count - 1);
}

TEST(test_by_hand) {
    tn_gpt gpt;
    make_model(&gpt);
    enum { TOKENS = 50 };
    write_tokens("val_0.bin", 0, TOKENS);
    static const int64_t strides[] = {1, 5, 8, 12};
    for (int i = 0; i < 4; i++) {
        tn_perplexity p = perplexity_of(&gpt, temp_path("val_*.bin"), CONTEXT, strides[i],
                                        tn_evaluate_defaults());
        double loss = loss_by_hand(&gpt, TOKENS, CONTEXT, strides[i]);
        assert_int_equal(p.tokens, TOKENS - 1);
        assert_true(fabs(p.loss - loss) < 1e-6 * loss);
        assert_true(p.perplexity == exp(p.loss));
        assert_true(p.bytes == 0 && isnan(p.bits_per_byte));
    }
    tn_module_finish(&gpt);
}

/* Whole windows without overlap: the mean of the training loss. */
TEST(test_as_in_training) {
    tn_gpt gpt;
    make_model(&gpt);
    write_tokens("val_0.bin", 3, 4 * CONTEXT + 1);
    tn_dataset *d = tn_token_shards(temp_path("val_0.bin"), CONTEXT, VOCAB);
    tn_loader *loader = tn_loader_new(d, tn_sequential_sampler(), TN_WITH(tn_loader, .batch = 4));
    tn_batch b;
    assert_true(tn_loader_next(loader, &b));
    double loss = tn_item(tn_lm_loss(&gpt, b.x, b.y));
    tn_loader_free(loader);
    tn_perplexity p =
        perplexity_of(&gpt, temp_path("val_0.bin"), CONTEXT, CONTEXT, tn_evaluate_defaults());
    assert_int_equal(p.windows, 4);
    assert_true(fabs(p.loss - loss) < 1e-6 * loss);
    tn_module_finish(&gpt);
}

TEST(test_batches_change_nothing) {
    tn_gpt gpt;
    make_model(&gpt);
    write_tokens("val_0.bin", 0, 100);
    tn_evaluate_options o = TN_WITH(tn_evaluate, .batch = 1);
    tn_perplexity one = perplexity_of(&gpt, temp_path("val_0.bin"), CONTEXT, 4, o);
    for (o.batch = 2; o.batch < 40; o.batch += 5) {
        tn_perplexity p = perplexity_of(&gpt, temp_path("val_0.bin"), CONTEXT, 4, o);
        assert_int_equal(p.tokens, one.tokens);
        assert_true(fabs(p.loss - one.loss) < 1e-6 * one.loss);
    }
    tn_module_finish(&gpt);
}

/* Dropout is active in training before and after the evaluation, but not during it. */
TEST(test_training_is_left_and_entered) {
    tn_gpt gpt;
    make_model(&gpt);
    write_tokens("val_0.bin", 0, 60);
    double loss =
        perplexity_of(&gpt, temp_path("val_0.bin"), CONTEXT, 6, tn_evaluate_defaults()).loss;
    gpt.stem.drop.p = 0.5;
    assert_true(gpt.base.training && gpt.stem.drop.base.training);
    assert_true(
        perplexity_of(&gpt, temp_path("val_0.bin"), CONTEXT, 6, tn_evaluate_defaults()).loss ==
        loss);
    assert_true(gpt.base.training && gpt.stem.drop.base.training);
    tn_module_train(&gpt, false);
    perplexity_of(&gpt, temp_path("val_0.bin"), CONTEXT, 6, tn_evaluate_defaults());
    assert_false(gpt.base.training || gpt.stem.drop.base.training);
    tn_module_train(&gpt.h[0], true); /* each module gets back its own mode */
    perplexity_of(&gpt, temp_path("val_0.bin"), CONTEXT, 6, tn_evaluate_defaults());
    assert_true(gpt.h[0].base.training && !gpt.base.training && !gpt.h[1].base.training);
    tn_module_finish(&gpt);
}

/* Given x and y: the targets that a mask leaves. */
TEST(test_masked_targets) {
    tn_gpt gpt;
    make_model(&gpt);
    int64_t x[2][CONTEXT], y[2][CONTEXT];
    for (int64_t t = 0; t < CONTEXT; t++) {
        x[0][t] = x[1][t] = token_at(t);
        y[0][t] = y[1][t] = -100;
    }
    y[1][4] = 9;
    y[1][7] = 11;
    double wanted = (nats_by_hand(&gpt, 0, 5, 9) + nats_by_hand(&gpt, 0, 8, 11)) / 2;
    tn_dataset *d = tn_tensor_dataset(TN_FROM(x, TN_DIMS(2, CONTEXT), TN_I64),
                                      TN_FROM(y, TN_DIMS(2, CONTEXT), TN_I64));
    tn_perplexity p;
    assert_int_equal(tn_evaluate_perplexity(&gpt, d, NULL, tn_evaluate_defaults(), &p), TN_OK);
    assert_int_equal(p.windows, 2);
    assert_int_equal(p.tokens, 2);
    assert_true(fabs(p.loss - wanted) < 1e-6 * wanted);
    tn_dataset_free(d);
    d = tn_tensor_dataset(tn_from_data(x, TN_DIMS(1, CONTEXT), TN_I64),
                          tn_from_data(y, TN_DIMS(1, CONTEXT), TN_I64));
    assert_fails(tn_evaluate_perplexity(&gpt, d, NULL, tn_evaluate_defaults(), &p), TN_EVALUE,
                 "no target counts");
    assert_true(p.windows == 0 && p.loss == 0);
    tn_dataset_free(d);
    tn_module_finish(&gpt);
}

TEST(test_refused) {
    tn_gpt gpt;
    make_model(&gpt);
    tn_perplexity p;
    tn_evaluate_options o = tn_evaluate_defaults();
    tn_dataset *rows = tn_tensor_dataset(tn_ones(TN_DIMS(2, 3), TN_F32), NULL);
    assert_fails(tn_evaluate_perplexity(&gpt, rows, NULL, o, &p), TN_ESHAPE,
                 "the examples of the dataset \"");
    tn_dataset_free(rows);
    write_tokens("val_0.bin", 0, 60);
    tn_dataset *d = tn_sliding_shards(temp_path("val_0.bin"), CONTEXT + 1, 1, VOCAB);
    assert_fails(tn_evaluate_perplexity(&gpt, d, NULL, o, &p), TN_EVALUE, "the context is 12");
    o.batch = 0;
    assert_fails(tn_evaluate_perplexity(&gpt, d, NULL, o, &p), TN_EVALUE,
                 "batch is 0 (it must be at least 1)");
    tn_dataset_free(d);
    assert_true(gpt.base.training);
    tn_module_finish(&gpt);
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

typedef struct share {
    const char *path;
    tn_perplexity p[8];
    bool in_parts;
} share;

static void evaluate_rank(tn_group *world, void *user) {
    share *s = user;
    tn_gpt gpt;
    make_model(&gpt);
    if (s->in_parts) { tn_fsdp(&gpt, world, NULL, tn_fsdp_defaults()); }
    tn_evaluate_options o = TN_WITH(tn_evaluate, .group = world);
    tn_dataset *d = tn_sliding_shards(s->path, CONTEXT, 5, VOCAB);
    tn_evaluate_perplexity(&gpt, d, NULL, o, &s->p[tn_group_rank(world)]);
    tn_dataset_free(d);
    tn_module_finish(&gpt);
}

/* 1 to 6 ranks, some of them without a share, and windows that are not a multiple of a batch. */
TEST(test_ranks) {
    share s = {.path = write_tokens("val_0.bin", 0, 75)};
    for (int parts = 0; parts < 2; parts++) {
        s.in_parts = parts;
        tn_perplexity one = {0};
        for (int ranks = 1; ranks <= 6; ranks++) {
            memset(s.p, 0, sizeof(s.p));
            run_ok(ranks, evaluate_rank, &s);
            one = ranks == 1 ? s.p[0] : one;
            assert_int_equal(one.tokens, 74);
            for (int r = 0; r < ranks; r++) {
                assert_memory_equal(&s.p[r], &one, sizeof(one));
            }
        }
    }
}

/* The argument has the loss of one process: each rank has the same bits. */
RANK(body_processes) {
    char path[512];
    double loss;
    rank_assert(sscanf(argument, "%la %500s", &loss, path) == 2);
    share s = {.path = path};
    evaluate_rank(world, &s);
    rank_assert(s.p[tn_group_rank(world)].loss == loss);
    return 0;
}

TEST(test_processes) {
    char argument[600];
    share s = {.path = write_tokens("val_0.bin", 0, 75)};
    evaluate_rank(NULL, &s);
    snprintf(argument, sizeof(argument), "%la %s", s.p[0].loss, s.path);
    ranks_pass(2, "body_processes", argument);
    ranks_pass(3, "body_processes", argument);
}

/* An invalid token in the share of one rank is an error on all ranks. */
TEST(test_an_error_of_one_rank) {
    unsigned char file[2 * 75] = {0};
    file[2 * 70] = VOCAB;
    share s = {.path = temp_path("val_0.bin")};
    temp_write(s.path, file, sizeof(file));
    assert_int_not_equal(tn_local_run(3, evaluate_rank, &s), TN_OK);
    assert_error(TN_EFORMAT, "val_0.bin: token 70 is 40 but the vocabulary has 40");
}

/* Allocation `at` of the ranks fails; each then stays until both have ended. */
typedef struct shortage {
    const char *path;
    int64_t at;
    int ended; /* atomic */
} shortage;

static void evaluate_short(tn_group *world, void *user) {
    shortage *s = user;
    tn_gpt gpt;
    make_model(&gpt);
    tn_evaluate_options o = TN_WITH(tn_evaluate, .group = world);
    tn_dataset *d = tn_sliding_shards(s->path, CONTEXT, 5, VOCAB);
    tn_perplexity p;
    tn_barrier(world);
    if (tn_group_rank(world) == 1) { tn__alloc_fail_at(s->at); }
    tn_evaluate_perplexity(&gpt, d, NULL, o, &p);
    __atomic_fetch_add(&s->ended, 1, __ATOMIC_ACQ_REL);
    for (int i = 0; i < 20000 && __atomic_load_n(&s->ended, __ATOMIC_ACQUIRE) < 2; i++) {
        usleep(1000);
    }
    CHECK(s->ended == 2);
    tn_error_clear();
    tn_dataset_free(d);
    tn_module_finish(&gpt);
}

TEST(test_no_memory_on_a_rank) {
    shortage s = {.path = write_tokens("val_0.bin", 0, 75)};
    for (bool reached = true; reached; s.at++) {
        s.ended = 0;
        run_ok(2, evaluate_short, &s);
        reached = !tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
    }
    assert_true(s.at > 20);
}

/* ---- What it needs --------------------------------------------------------------------------- */

TEST(test_no_memory) {
    tn_gpt gpt;
    make_model(&gpt);
    const char *path = write_tokens("val_0.bin", 0, 60);
    tn_evaluate_options o = TN_WITH(tn_evaluate, .progress = fopen("/dev/null", "w"));
    double loss = perplexity_of(&gpt, path, CONTEXT, 6, o).loss;
    int64_t live = tn_live_tensors(), n = 0;
    for (bool reached = true; reached; n++) {
        tn_perplexity p = {0};
        tn__alloc_fail_at(n);
        tn_dataset *d = tn_sliding_shards(path, CONTEXT, 6, VOCAB);
        tn_evaluate_perplexity(&gpt, d, NULL, o, &p);
        tn_dataset_free(d);
        reached = !tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
        assert_int_equal(tn_live_tensors(), live);
        assert_true(tn_error() == TN_OK ? p.loss == loss : tn_error() == TN_ENOMEM && p.loss == 0);
        tn_error_clear();
    }
    assert_true(n > 20);
    fclose(o.progress);
    tn_module_finish(&gpt);
}

TEST(test_progress) {
    tn_gpt gpt;
    make_model(&gpt);
    const char *path = write_tokens("val_0.bin", 0, 60), *shown = temp_path("progress");
    tn_evaluate_options o = TN_WITH(tn_evaluate, .progress = fopen(shown, "w"));
    perplexity_of(&gpt, path, CONTEXT, 6, o);
    fclose(o.progress);
    size_t bytes;
    char *text = (char *)temp_read(shown, &bytes);
    assert_contains(text, "3/3   loss ");
    free(text);
    tn_module_finish(&gpt);
}
