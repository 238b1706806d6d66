/* A rank's data, the job's checkpoints, and learning rates. */
#include "tern/tern.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "distributed/group/agree.h"
#include "tests/support/test.h"

#include "rank_check.h"

#include "../support/temp.h"

/* ---- Shares ---------------------------------------------------------------------------------- */

/* 10 examples on 4 ranks: three each, two of which are padding. */
static void pads_shares(tn_group *g, void *user) {
    TN_SCOPE;
    int *seen = user;
    tn_loader_options o = tn_loader_defaults();
    o.batch = 2;
    o.threads = tn_group_rank(g) % 2; /* with and without a loader thread */
    tn_dataset *d = tn_tensor_dataset(tn_arange(0, 10, 1, TN_I64), NULL);
    tn_loader *l = tn_loader_new(d, tn_distributed_sampler(g, tn_random_sampler(3), false), o);
    CHECK(l != NULL);
    tn_batch b;
    int64_t count = 0, real = 0;
    while (tn_loader_next(l, &b)) {
        for (int64_t i = 0; i < tn_count(b.x); i++) {
            bool valid = !b.valid || tn_at(b.valid, TN_DIMS(i)) != 0;
            CHECK(b.valid || b.index == 0 || tn_group_rank(g) < 2);
            if (valid) {
                __atomic_fetch_add(&seen[(int)tn_at(b.x, TN_DIMS(i))], 1, __ATOMIC_RELAXED);
                real++;
            }
            count++;
        }
    }
    CHECK(count == 3);
    CHECK(real == (tn_group_rank(g) < 2 ? 3 : 2));
    tn_loader_free(l);
}

PLAIN_TEST(test_shares_of_one_size) {
    int seen[10] = {0};
    run_ok(4, pads_shares, seen);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(seen[i], 1);
    }
}

PLAIN_TEST(test_share_of_a_share) {
    tn_sampler s = tn_random_sampler(1);
    s.parts = 2;
    tn_distributed_sampler(NULL, s, false);
    assert_error(TN_EVALUE, "");
}

/* ---- Checkpoints ----------------------------------------------------------------------------- */

typedef struct job {
    tn_linear model;
    tn_dropout drop; /* only in some tests */
    tn_optim *optim;
    tn_loader *loader;
    tn_checkpoint c;
} job;

static void job_open(job *j, tn_group *g, int64_t batch) {
    TN_SCOPE;
    /* the others must get rank 0's weights from the file */
    tn_seed(tn_group_rank(g) == 0 ? 5 : 99);
    tn_linear_init(&j->model, 4, 3, tn_linear_defaults());
    j->optim = tn_adamw(&j->model, tn_adamw_defaults());
    j->loader = tn_loader_new(tn_tensor_dataset(tn_zeros(TN_DIMS(48, 4), TN_F32), NULL),
                              tn_distributed_sampler(g, tn_random_sampler(1), false),
                              TN_WITH(tn_loader, .batch = batch));
    j->c = (tn_checkpoint){.model = &j->model, .optim = j->optim, .loader = j->loader, .step = 7};
}

static void job_close(job *j) {
    tn_loader_free(j->loader);
    tn_optim_free(j->optim);
    tn_module_finish(&j->model);
}

static void save_four(tn_group *g, void *user) {
    job j = {0};
    tn_batch b;
    job_open(&j, g, 2);
    for (int i = 0; i < 3; i++) {
        CHECK(tn_loader_next(j.loader, &b)); /* 3 batches of 2 on 4 ranks: 24 examples */
    }
    CHECK(tn_dist_save(g, &j.c, user) == TN_OK);
    job_close(&j);
}

/* With any `batch` per rank, loading continues after the 24 examples that the ranks together have
 * had. */
static void load_with(tn_group *g, const char *path, int64_t batch, int64_t index) {
    TN_SCOPE;
    job j = {0};
    job_open(&j, g, batch);
    j.c.step = 0;
    CHECK(tn_dist_load(g, &j.c, path) == TN_OK);
    CHECK(j.c.step == 7);
    CHECK(tn_loader_where(j.loader).index == index);
    float weights[12];
    CHECK(tn_copy_out(j.model.weight, weights) == TN_OK);
    CHECK(tn_group_mean(g, weights[5], 1) == (double)weights[5]);
    job_close(&j);
}
static void load_four(tn_group *g, void *user) {
    load_with(g, user, 2, 3);
}
static void load_two(tn_group *g, void *user) {
    load_with(g, user, 4, 3);
    load_with(g, user, 2, 6);
    load_with(g, user, 5, 2); /* 10 a step: 24 is inside the third, which is repeated */
}

PLAIN_TEST(test_other_numbers_of_ranks_go_on) {
    const char *path = temp_path("checkpoint");
    run_ok(4, save_four, path);
    run_ok(4, load_four, path);
    run_ok(2, load_two, path);
    load_with(NULL, path, 8, 3);
    assert_int_equal(tn_error(), TN_OK);
    assert_int_equal(failures, 0);
}

/* A loader of 48 sequences of 1 to 12 steps, with similar lengths in each batch. */
static tn_loader *open_buckets(tn_group *g, int64_t batch) {
    TN_SCOPE;
    tn_tensor *x[48];
    for (int i = 0; i < 48; i++) {
        x[i] = tn_full(TN_DIMS(1 + i * 5 % 12), i, TN_F32);
    }
    tn_dataset *d = tn_sequence_dataset(x, NULL, 48);
    tn_loader_options o =
        TN_WITH(tn_loader, .batch = batch, .threads = g ? tn_group_rank(g) % 3 : 0);
    tn_sampler order = tn_bucket_sampler(tn_dataset_lengths(d), batch, 2, 1);
    return tn_loader_new(d, tn_distributed_sampler(g, order, false), o);
}

static void save_buckets(tn_group *g, void *user) {
    tn_loader *l = open_buckets(g, 2);
    tn_batch b;
    for (int i = 0; i < 2; i++) {
        CHECK(tn_loader_next(l, &b));
    }
    CHECK(tn_dist_save(g, &(tn_checkpoint){.loader = l}, user) == TN_OK);
    tn_loader_free(l);
}

typedef struct bucket_job {
    const char *path;
    int seen[48]; /* atomic: how often a sequence was read after the load */
} bucket_job;

/* A step has as many sequences as before, so the order continues; with any other number it is
 * refused. */
static void load_buckets(tn_group *g, void *user) {
    bucket_job *all = user;
    tn_loader *l = open_buckets(g, 4), *other = open_buckets(g, 2);
    CHECK(tn_dist_load(g, &(tn_checkpoint){.loader = other}, all->path) == TN_EMISMATCH);
    tn_error_clear();
    CHECK(tn_dist_load(g, &(tn_checkpoint){.loader = l}, all->path) == TN_OK);
    tn_batch b;
    while (tn_loader_next(l, &b)) {
        int64_t shortest = 12, longest = 0;
        for (int64_t i = 0; i < tn_size(b.x, 0); i++) {
            int64_t length = (int64_t)tn_at(b.lengths, TN_DIMS(i));
            shortest = length < shortest ? length : shortest;
            longest = length > longest ? length : longest;
            __atomic_fetch_add(&all->seen[(int)tn_at(b.x, TN_DIMS(i, 0))], 1, __ATOMIC_RELAXED);
        }
        CHECK(longest - shortest <= 3); /* a bucket has 16 of 48, and 4 of the 12 lengths */
    }
    tn_loader_free(other);
    tn_loader_free(l);
}

PLAIN_TEST(test_buckets_of_other_numbers_of_ranks) {
    const char *path = temp_path("buckets");
    bucket_job all = {.path = path};
    run_ok(4, save_buckets, path);
    run_ok(2, load_buckets, &all);
    int read = 0;
    for (int i = 0; i < 48; i++) {
        assert_in_range(all.seen[i], 0, 1);
        read += all.seen[i];
    }
    assert_int_equal(read, 48 - 2 * 8);
}

static void save_fails(tn_group *g, void *user) {
    job j = {0};
    job_open(&j, g, 2);
    CHECK(tn_dist_save(g, &j.c, user) == TN_EIO);
    CHECK(tn_group_rank(g) == 0 || strstr(tn_error_message(), "rank 0: ") != NULL);
    CHECK(strstr(tn_error_message(), user) != NULL);
    tn_error_clear();
    CHECK(tn_barrier(g) == TN_OK); /* the group still works */
    CHECK(tn_dist_load(g, &j.c, user) == TN_EIO && failed_with(TN_EIO, ""));
    job_close(&j);
}

PLAIN_TEST(test_an_error_of_rank_0_is_everybodys) {
    run_ok(3, save_fails, "/nowhere/at/all");
}

/* ---- Another run ----------------------------------------------------------------------------- */

/* A job whose ranks read different data: rank r has rows of `first` + r. */
static void shares_open(job *j, tn_group *g, double first, double dropout) {
    TN_SCOPE;
    job_open(j, g, 2);
    tn_loader_free(j->loader);
    tn_tensor *x = tn_full(TN_DIMS(48, 4), first + tn_group_rank(g), TN_F32);
    j->loader = tn_loader_new(tn_tensor_dataset(x, NULL),
                              tn_distributed_sampler(g, tn_random_sampler(1), false),
                              TN_WITH(tn_loader, .batch = 2));
    tn_dropout_init(&j->drop, dropout);
    tn_module_add(&j->model, "drop", &j->drop);
    j->c.loader = j->loader;
}

static int lines_logged; /* atomic */

static void count_line(tn_log_level level, const char *message, void *user) {
    __atomic_fetch_add(&lines_logged, level == TN_LOG_WARN && strstr(message, " was "),
                       __ATOMIC_RELAXED);
}

static void go_on(tn_group *g, void *user) {
    job j = {0};
    shares_open(&j, g, 5, 0.5);
    CHECK(tn_dist_save(g, &j.c, user) == TN_OK);
    CHECK(tn_dist_load(g, &j.c, user) == TN_OK); /* each rank's data is its own */
    job_close(&j);
    shares_open(&j, g, 6, 0.25);
    CHECK(tn_dist_load(g, &j.c, user) == TN_EMISMATCH);
    CHECK(strstr(tn_error_message(), "drop: p was 0.5 but is 0.25") != NULL);
    CHECK(tn_group_rank(g) != 0 || strstr(tn_error_message(), "the data: digest of x was "));
    tn_error_clear();
    j.c.other_run = true;
    CHECK(tn_dist_load(g, &j.c, user) == TN_OK);
    job_close(&j);
}

/* All ranks refuse another run; with other_run set, one of them logs what differs. */
PLAIN_TEST(test_another_run) {
    const char *path = temp_path("checkpoint");
    lines_logged = 0;
    tn_log_to(count_line, TN_LOG_WARN, NULL);
    run_ok(3, go_on, path);
    tn_log_to(NULL, TN_LOG_WARN, NULL);
    assert_int_equal(lines_logged, 2);
}

/* ---- A file that is replaced while it is loaded ---------------------------------------------- */

/* Replaces `path` by one of two whole checkpoints in turn, until it is told to stop. */
typedef struct exchange {
    const char *path, *one, *other, *next;
    bool stop; /* atomic */
} exchange;

static void *exchange_files(void *user) {
    exchange *e = user;
    for (int i = 0; !__atomic_load_n(&e->stop, __ATOMIC_ACQUIRE); i++) {
        unlink(e->next);
        if (link(i % 2 ? e->one : e->other, e->next) != 0 || rename(e->next, e->path) != 0) {
            return "an exchange has failed";
        }
    }
    return NULL;
}

/* A checkpoint whose weights all equal its step. */
static void save_numbered(const char *path, int64_t step) {
    tn_linear m;
    tn_linear_init(&m, 64, 64, tn_linear_defaults());
    tn_init_constant(m.weight, (double)step);
    tn_init_constant(m.bias, (double)step);
    tn_checkpoint c = {.model = &m, .step = step};
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    tn_module_finish(&m);
}

static void load_exchanged(tn_group *g, void *user) {
    const exchange *e = user;
    tn_linear m;
    tn_linear_init(&m, 64, 64, tn_linear_defaults());
    for (int i = 0; i < 200; i++) {
        TN_SCOPE;
        tn_checkpoint c = {.model = &m};
        CHECK(tn_dist_load(g, &c, e->path) == TN_OK);
        CHECK(c.step == 7 || c.step == 8);
        CHECK(tn_item(tn_mean_all(tn_detach(m.weight))) == (double)c.step);
        CHECK(tn_group_mean(g, (double)c.step, 1) == (double)c.step);
    }
    tn_module_finish(&m);
}

/* All ranks load the same file, whatever is renamed over its path meanwhile. */
PLAIN_TEST(test_an_exchanged_file) {
    exchange e = {.path = temp_path("exchanged"),
                  .one = temp_path("one"),
                  .other = temp_path("other"),
                  .next = temp_path("next")};
    save_numbered(e.one, 7);
    save_numbered(e.other, 8);
    save_numbered(e.path, 8);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, exchange_files, &e), 0);
    failures = 0;
    tn_status status = tn_local_run(3, load_exchanged, &e);
    __atomic_store_n(&e.stop, true, __ATOMIC_RELEASE);
    void *problem = NULL;
    pthread_join(thread, &problem);
    assert_null(problem);
    assert_int_equal(status, TN_OK);
    assert_int_equal(failures, 0);
}

/* The error names the path that was given, on every rank. */
static void load_damaged(tn_group *g, void *user) {
    const char *path = user;
    tn_linear m;
    tn_linear_init(&m, 4, 3, tn_linear_defaults());
    tn_checkpoint c = {.model = &m, .partial = true};
    CHECK(tn_dist_load(g, &c, path) == TN_EFORMAT && failed_with(TN_EFORMAT, path));
    tn_module_finish(&m);
}

PLAIN_TEST(test_a_damaged_file_is_named) {
    const char *path = temp_path("damaged");
    run_ok(4, save_four, path);
    size_t bytes;
    unsigned char *file = temp_read(path, &bytes);
    for (int i = 0; i < 2; i++) {
        file[bytes - 1] ^= 1; /* a wrong digest; then too short for a header */
        temp_write(path, file, i ? 7 : bytes);
        run_ok(3, load_damaged, path);
    }
    free(file);
}

/* Rank 1's model does not fit: no rank loads anything, though the file fits the others. */
static void load_refused(tn_group *g, void *user) {
    TN_SCOPE;
    tn_linear m;
    tn_linear_init(&m, 4, tn_group_rank(g) == 1 ? 2 : 3, tn_linear_defaults());
    tn_tensor *before = tn_copy(tn_detach(m.weight));
    tn_checkpoint c = {.model = &m, .partial = true, .step = 77};
    CHECK(tn_dist_load(g, &c, user) == TN_ESHAPE);
    CHECK(tn_group_rank(g) == 1 || strstr(tn_error_message(), "rank 1: ") != NULL);
    tn_error_clear();
    CHECK(c.step == 77 && tn_equal(before, tn_detach(m.weight)));
    tn_module_finish(&m);
}

PLAIN_TEST(test_refused_by_one_is_loaded_by_none) {
    const char *path = temp_path("checkpoint");
    run_ok(4, save_four, path);
    run_ok(3, load_refused, path);
}

/* Rank 1 takes part with a valid checkpoint that differs from the others'. */
static void hold_another(tn_group *g) {
    void *data = NULL;
    size_t bytes = 0;
    tn__agree_begin(g, "load");
    CHECK(tn__agree(g, NULL, "load") == TN_OK);
    CHECK(tn_broadcast_bytes(g, &data, &bytes, 0) == TN_OK);
    tn_bytes_free(data);
    tn__agree_begin(g, "load");
    CHECK(tn__agree(g, "a checkpoint with the digest ffffffff", "load") == TN_EMISMATCH);
    tn_error_clear();
}

static void load_beside_another(tn_group *g, void *user) {
    if (tn_group_rank(g) == 1) {
        hold_another(g);
        return;
    }
    TN_SCOPE;
    tn_linear m;
    tn_linear_init(&m, 4, 3, tn_linear_defaults());
    tn_tensor *before = tn_copy(tn_detach(m.weight));
    tn_checkpoint c = {.model = &m, .partial = true, .step = 77};
    CHECK(tn_dist_load(g, &c, user) == TN_EMISMATCH &&
          failed_with(TN_EMISMATCH, "but rank 1 has a checkpoint with the digest ffffffff"));
    CHECK(c.step == 77 && tn_equal(before, tn_detach(m.weight)));
    tn_module_finish(&m);
}

PLAIN_TEST(test_another_checkpoint_is_noticed) {
    const char *path = temp_path("checkpoint");
    run_ok(4, save_four, path);
    run_ok(3, load_beside_another, path);
}
