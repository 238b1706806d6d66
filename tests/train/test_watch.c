/* What watches a run: callbacks, early stopping, the best weights, also across a stop and on
 * several ranks; and metrics. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include "tests/support/silence.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <tern/tern.h>

/* ---- A program that validates each step ------------------------------------------------------ */

/* The value of validation after each step: best after 4, then no better. */
static const double losses[] = {5, 4, 4.5, 2, 3, 3, 2.5, 2, 1};
enum { STEPS = sizeof(losses) / sizeof(*losses) };

typedef struct program {
    const char *out;
    bool resume;
    int64_t steps, patience, keep, stop_at; /* 0: not asked for */
    int64_t bad_weight, bad_loss;           /* the step that makes a NaN; 0: none */
    int64_t made, seen[4];                  /* result: steps done, and calls of each event */
    double best;                            /* result: the weight that was best */
    int status;
} program;

static void count_stepped(tn_run *r, void *user) {
    program *p = user;
    p->seen[0]++;
    if (tn_run_step(r) == p->stop_at) { tn_run_stop(r); }
}

static void count_validated(tn_run *r, void *user) {
    ((program *)user)->seen[1] += tn_run_value(r, "val_loss") == losses[tn_run_step(r) - 1];
}

static void count_saved(tn_run *r, void *user) {
    ((program *)user)->seen[2]++;
}

static void count_ended(tn_run *r, void *user) {
    ((program *)user)->seen[3] += tn_run_done(r);
}

static void load_best(program *p, tn_run *r, tn_linear *net, bool first) {
    char *path = tn_run_best(r);
    if (path && first && tn_load(net, path) == TN_OK) {
        p->best = tn_at(net->weight, TN_DIMS(0, 0));
    }
    free(path);
}

static void run_program(tn_group *world, void *user) {
    program *p = user;
    bool first = tn_group_rank(world) == 0;
    program mine = *p;
    tn_linear net;
    tn_linear_init(&net, 1, 1, tn_linear_defaults());
    tn_run *r = tn_run_new(world,
                           TN_WITH(tn_run, .out = p->out, .steps = p->steps ? p->steps : STEPS,
                                   .save_every = 3, .val_every = 1, .resume = p->resume),
                           (tn_checkpoint){.model = &net});
    tn_run_on(r, TN_RUN_STEPPED, count_stepped, &mine);
    tn_run_on(r, TN_RUN_VALIDATED, count_validated, &mine);
    tn_run_on(r, TN_RUN_SAVED, count_saved, &mine);
    tn_run_on(r, TN_RUN_ENDED, count_ended, &mine);
    if (p->patience) {
        tn_run_stop_early(r, "val_loss", TN_WITH(tn_early, .patience = p->patience));
    }
    if (p->keep) { tn_run_keep_best(r, "val_loss", p->keep, false); }
    while (tn_run_next(r)) {
        TN_NO_GRAD;
        int64_t step = tn_run_step(r) + 1;
        tn_fill_(net.weight, step == p->bad_weight ? NAN : (double)step);
        tn_run_log(r, "loss", step == p->bad_loss ? NAN : 1.0);
        if (tn_run_validates(r)) { tn_run_log(r, "val_loss", losses[tn_run_step(r)]); }
    }
    mine.made = tn_run_step(r);
    if (p->keep) { load_best(&mine, r, &net, first); }
    mine.status = tn_run_end(r);
    if (first) { *p = mine; }
    tn_module_finish(&net);
    if (mine.status == EX_DATAERR) { tn_error_clear(); }
}

static void quiet_program(program *p, int ranks) {
    memset(p->seen, 0, sizeof(p->seen));
    silence before = silence_begin();
    tn_status status = tn_local_run(ranks, run_program, p);
    silence_end(before);
    assert_int_equal(status, TN_OK);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
}

static bool has_best(const char *out, int step) {
    char path[700];
    struct stat about;
    snprintf(path, sizeof(path), "%s/best-%06d.safetensors", out, step);
    return stat(path, &about) == 0;
}

TEST(calls_back) {
    program p = {.out = temp_path("callbacks")};
    quiet_program(&p, 1);
    assert_int_equal(p.status, 0);
    assert_int_equal(p.seen[0], STEPS);
    assert_int_equal(p.seen[1], STEPS);
    assert_int_equal(p.seen[2], 3);
    assert_int_equal(p.seen[3], 1);
    p = (program){.out = temp_path("ended"), .stop_at = 4};
    for (int ranks = 1; ranks <= 2; ranks++) {
        p.out = temp_path(ranks == 1 ? "ended" : "ended2");
        quiet_program(&p, ranks);
        assert_true(p.status == 0 && p.made == 4 && p.seen[3] == 1);
    }
    assert_fails(tn_run_on(NULL, TN_RUN_SAVED, count_saved, NULL), TN_EVALUE,
                 "run_on: the run is NULL");
}

TEST(stops_early) {
    for (int ranks = 1; ranks <= 2; ranks++) {
        program p = {.out = temp_path(ranks == 1 ? "early" : "early2"), .patience = 3};
        quiet_program(&p, ranks);
        assert_true(p.made == 7 && p.status == 0 && p.seen[3] == 1); /* 2 at step 4; 3, 3, 2.5 */
        p.resume = true;
        quiet_program(&p, ranks); /* the condition already held before it began */
        assert_true(p.made == 7 && p.seen[0] == 0);
    }
    program p = {.out = temp_path("late"), .patience = 3, .steps = 6};
    quiet_program(&p, 1);
    assert_int_equal(p.made, 6);
    p.steps = 0;
    p.resume = true;
    quiet_program(&p, 1); /* values of both processes count */
    assert_true(p.made == 7 && p.seen[0] == 1);
}

TEST(keeps_the_best) {
    for (int ranks = 1; ranks <= 2; ranks++) {
        program p = {.out = temp_path(ranks == 1 ? "best" : "best2"), .keep = 2, .steps = 6};
        quiet_program(&p, ranks);
        assert_true(has_best(p.out, 4) && has_best(p.out, 5)); /* the first of equal ones */
        assert_false(has_best(p.out, 1) || has_best(p.out, 2) || has_best(p.out, 6));
        assert_true(p.best == 4.0);
        p.steps = 0;
        p.resume = true;
        quiet_program(&p, ranks);
        assert_true(has_best(p.out, 9) && has_best(p.out, 4) && !has_best(p.out, 5));
        assert_false(has_best(p.out, 8)); /* as good as 4, and later */
        assert_true(p.best == 9.0 && p.status == 0);
    }
}

/* Nothing is kept of a step that ends the run, however good its value is. */
TEST(keeps_no_nan) {
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof(name), "unsound%d", i);
        program p = {.out = temp_path(name), .keep = 2};
        *(i % 2 ? &p.bad_weight : &p.bad_loss) = 4; /* after a checkpoint, and before the next */
        quiet_program(&p, 1 + i / 2);
        assert_true(p.status == EX_DATAERR && p.made == 4);
        assert_true(has_best(p.out, 2) && has_best(p.out, 3) && !has_best(p.out, 4));
        p.bad_weight = p.bad_loss = 0;
        p.resume = true;
        quiet_program(&p, 1 + i / 2);
        assert_true(p.status == 0 && p.best == 9.0 && has_best(p.out, 4));
    }
}

/* ---- Metrics --------------------------------------------------------------------------------- */

enum { ROWS = 24, CLASSES = 4 };

/* Rows `from` … of a fixed set; ranks beyond the data have rows that do not count. */
static void add_rows(tn_metrics *m, int from, int to, int more) {
    TN_SCOPE;
    float scores[ROWS][CLASSES];
    int64_t labels[ROWS];
    bool valid[ROWS];
    int n = 0;
    for (int i = from; i < to + more; i++, n++) {
        labels[n] = i % 7 % CLASSES;
        valid[n] = i < to;
        for (int c = 0; c < CLASSES; c++) {
            scores[n][c] = (float)sin(1.3 * i + 2.1 * c) + (c == labels[n]);
        }
    }
    tn_metrics_add(m, tn_from_data(scores, TN_DIMS(n, CLASSES), TN_F32),
                   tn_from_data(labels, TN_DIMS(n), TN_I64),
                   tn_from_data(valid, TN_DIMS(n), TN_BOOL));
    for (int i = from; i < to; i++) {
        tn_metrics_add_loss(m, 0.1 * i, 1 + i % 3);
    }
}

typedef struct shared {
    tn_metrics *result;
} shared;

static void measure_share(tn_group *world, void *user) {
    int rank = tn_group_rank(world), each = ROWS / tn_group_size(world);
    tn_metrics *m = tn_metrics_new(CLASSES, 2);
    bool last = rank == tn_group_size(world) - 1;
    add_rows(m, rank * each, last ? ROWS : (rank + 1) * each, last ? 0 : 1);
    tn_metrics_share(m, world);
    if (rank == 1) {
        ((shared *)user)->result = m;
    } else {
        tn_metrics_free(m);
    }
}

static void assert_same_metrics(const tn_metrics *a, const tn_metrics *b) {
    for (int i = 0; i < CLASSES * CLASSES; i++) {
        assert_int_equal(tn_metrics_count(a, i / CLASSES, i % CLASSES),
                         tn_metrics_count(b, i / CLASSES, i % CLASSES));
    }
    assert_true(tn_metrics_top(a) == tn_metrics_top(b));
    assert_true(tn_metrics_f1(a, TN_ALL_CLASSES) == tn_metrics_f1(b, TN_ALL_CLASSES));
    assert_true(fabs(tn_metrics_perplexity(a) / tn_metrics_perplexity(b) - 1) < 1e-12);
}

TEST(ranks_say_what_one_says) {
    tn_metrics *one = tn_metrics_new(CLASSES, 2);
    add_rows(one, 0, 10, 0); /* in batches */
    add_rows(one, 10, ROWS, 0);
    for (int ranks = 2; ranks <= 3; ranks++) {
        shared s = {0};
        assert_int_equal(tn_local_run(ranks, measure_share, &s), TN_OK);
        assert_same_metrics(one, s.result);
        tn_metrics_free(s.result);
    }
    tn_metrics_free(one);
}

/* Of equal scores the first classes are the best: of four the first two. */
TEST(equal_scores) {
    TN_SCOPE;
    tn_metrics *m = tn_metrics_new(4, 2);
    tn_metrics_add(m, tn_ones(TN_DIMS(4, 4), TN_F32), tn_arange(0, 4, 1, TN_I64), NULL);
    assert_true(tn_metrics_top(m) == 0.5 && tn_metrics_accuracy(m) == 0.25);
    tn_metrics_free(m);
}

/* By hand: actual 0 0 0 1 1 2, predicted 0 0 1 1 1 0; class 3 does not occur. */
TEST(known_metrics) {
    static const float scores[6][4] = {{9, 5, 1, 0}, {9, 5, 6, 0}, {5, 9, 6, 0},
                                       {5, 9, 6, 0}, {0, 9, 0, 0}, {9, 5, 7, 0}};
    static const int64_t labels[] = {0, 0, 0, 1, 1, 2};
    TN_SCOPE;
    tn_metrics *m = tn_metrics_new(4, 2);
    tn_tensor *x = TN_FROM(scores, TN_DIMS(6, 4), TN_F32), *y = TN_FROM(labels, TN_DIMS(6), TN_I64);
    assert_true(isnan(tn_metrics_accuracy(m)) && isnan(tn_metrics_f1(m, TN_ALL_CLASSES)));
    assert_int_equal(tn_metrics_add(m, x, y, NULL), TN_OK);
    assert_true(tn_metrics_accuracy(m) == 4.0 / 6 && tn_metrics_top(m) == 5.0 / 6);
    assert_true(tn_metrics_precision(m, 0) == 2.0 / 3 && tn_metrics_recall(m, 0) == 2.0 / 3);
    assert_true(tn_metrics_precision(m, 1) == 2.0 / 3 && tn_metrics_recall(m, 1) == 1.0);
    assert_true(fabs(tn_metrics_f1(m, 1) - 0.8) < 1e-15 && tn_metrics_f1(m, 2) == 0);
    assert_true(fabs(tn_metrics_f1(m, TN_ALL_CLASSES) - (2.0 / 3 + 0.8) / 3) < 1e-15);
    assert_int_equal(tn_metrics_count(m, 2, 0), 1);
    tn_metrics_add_loss(m, 2.0, 3);
    tn_metrics_add_loss(m, 6.0, 1);
    assert_true(tn_metrics_loss(m) == 3.0 && fabs(tn_metrics_perplexity(m) - exp(3)) < 1e-9);
    char text[2000] = "";
    FILE *file = fmemopen(text, sizeof(text), "w");
    tn_metrics_print(m, file, (const char *[]){"cat", "dog", "fox", "owl"});
    fclose(file);
    assert_contains(text,
                    "1 dog               0.6667  1.0000  0.8000      0      2      0      0\n");
    assert_contains(text, "accuracy 0.6667, among the first 2 0.8333, mean F1 0.4889\n");
    assert_fails(tn_metrics_add(m, x, tn_from_data(labels, TN_DIMS(3), TN_I64), NULL), TN_ESHAPE,
                 "labels [3]");
    int64_t wrong[6] = {0, 0, 4, 0, 0, 0};
    assert_fails(tn_metrics_add(m, x, TN_FROM(wrong, TN_DIMS(6), TN_I64), NULL), TN_EINDEX,
                 "label 2 is 4, but there are 4 classes");
    assert_true(tn_metrics_accuracy(m) == 4.0 / 6); /* nothing was added */
    tn_metrics_reset(m);
    assert_true(isnan(tn_metrics_loss(m)) && tn_metrics_count(m, 2, 0) == 0);
    tn_metrics_free(m);
    assert_none(tn_metrics_new(-1, 1), TN_EVALUE, "classes is -1 (it must be 0 to 10000)");
    assert_null(tn_metrics_new(0, 0)); /* 0 classes are fine, and so are not named */
    assert_error(TN_EVALUE, "metrics_new: k is 0 (it must be at least 1)");
    assert_null(tn_metrics_new(10001, 0)); /* the first that is wrong */
    assert_error(TN_EVALUE, "classes is 10001 (it must be 0 to 10000)");
}

/* ---- A pass over a loader -------------------------------------------------------------------- */

enum { EXAMPLES = 10 };

/* Scores are the input, and with dropout while training; counts its calls in either mode. */
typedef struct mirror {
    tn_module base;
    tn_dropout drop;
    int calls[2];
    bool recorded;
} mirror;

static tn_tensor *mirror_forward(tn_module *self, tn_tensor *x) {
    mirror *m = (mirror *)self;
    m->calls[self->training]++;
    tn_tensor *scores = tn_mul(x, tn_set_requires_grad(tn_scalar(1, TN_F32), true));
    m->recorded = m->recorded || tn_requires_grad(scores);
    return tn_call(&m->drop, scores);
}

static void mirror_init(mirror *m) {
    *m = (mirror){.calls = {0}};
    tn_module_init(m, "mirror", mirror_forward);
    tn_dropout_init(&m->drop, 0.9);
    tn_module_add(m, "drop", &m->drop);
}

/* Scores and labels of three classes, most of which fit. */
static tn_loader *mirror_loader(tn_group *world, int64_t epochs, int threads) {
    TN_SCOPE;
    float x[EXAMPLES][3];
    int64_t y[EXAMPLES];
    for (int i = 0; i < EXAMPLES; i++) {
        y[i] = i % 3;
        for (int c = 0; c < 3; c++) {
            x[i][c] = (float)(c == (i + (i == 4 || i == 9)) % 3) + 0.01f * (float)i;
        }
    }
    tn_loader_options o = TN_WITH(tn_loader, .batch = 4, .epochs = epochs, .threads = threads);
    tn_sampler order = tn_distributed_sampler(world, tn_sequential_sampler(), false);
    return tn_loader_new(tn_tensor_dataset(tn_from_data(x, TN_DIMS(EXAMPLES, 3), TN_F32),
                                           tn_from_data(y, TN_DIMS(EXAMPLES), TN_I64)),
                         order, o);
}

/* By hand: all examples at once. */
static tn_metrics *mirror_metrics(void) {
    tn_loader *loader = mirror_loader(NULL, 1, 0);
    tn_metrics *m = tn_metrics_new(3, 1);
    tn_batch b;
    while (tn_loader_next(loader, &b)) {
        TN_SCOPE;
        tn_metrics_add(m, b.x, b.y, NULL);
        tn_metrics_add_loss(m, tn_item(tn_cross_entropy(b.x, b.y, TN_MEAN)),
                            (double)tn_size(b.x, 0));
    }
    tn_loader_free(loader);
    return m;
}

static void same_pass(const tn_metrics *got) {
    tn_metrics *m = mirror_metrics();
    for (int i = 0; i < 9; i++) {
        assert_int_equal(tn_metrics_count(got, i / 3, i % 3), tn_metrics_count(m, i / 3, i % 3));
    }
    assert_true(tn_metrics_accuracy(got) == 0.8);
    assert_true(fabs(tn_metrics_loss(got) / tn_metrics_loss(m) - 1) < 1e-7); /* f32 sums of rows */
    tn_metrics_free(m);
}

/* One epoch each time, from the beginning, however many the loader has and wherever it is; in
 * evaluation mode, without gradients, and then in the modes that were before. */
TEST(evaluates_a_pass) {
    for (int64_t epochs = 0; epochs <= 2; epochs++) {
        mirror net;
        mirror_init(&net);
        tn_module_train(&net.drop, false);
        tn_loader *loader = mirror_loader(NULL, epochs, (int)epochs);
        tn_metrics *m = tn_metrics_new(3, 1);
        for (int pass = 0; pass < 3; pass++) {
            assert_int_equal(tn_evaluate(&net, loader, tn_cross_entropy, NULL, m), TN_OK);
            same_pass(m);
            assert_true(net.calls[0] == 3 * (pass + 1) && net.calls[1] == 0 && !net.recorded);
            assert_true(net.base.training && !net.drop.base.training);
        }
        tn_loader_seek(loader, (tn_loader_place){0, 1});
        assert_int_equal(tn_evaluate(&net, loader, NULL, NULL, m), TN_OK);
        assert_true(tn_metrics_accuracy(m) == 0.8 && isnan(tn_metrics_loss(m)));
        tn_metrics_free(m);
        m = tn_metrics_new(0, 1);
        assert_int_equal(tn_evaluate(&net, loader, tn_cross_entropy, NULL, m), TN_OK);
        assert_true(tn_metrics_loss(m) > 0);
        assert_fails(tn_evaluate(&net, loader, NULL, NULL, m), TN_EVALUE,
                     "neither losses nor classes");
        assert_fails(tn_evaluate(&net, NULL, NULL, NULL, m), TN_EVALUE, "the loader is NULL");
        tn_metrics_free(m);
        tn_loader_free(loader);
        tn_module_finish(&net);
    }
}

/* Three ranks of ten examples: two are only there to fill up. */
static void evaluate_share(tn_group *world, void *user) {
    mirror net;
    mirror_init(&net);
    tn_loader *loader = mirror_loader(world, 1, 0);
    tn_metrics *m = tn_metrics_new(3, 1);
    tn_evaluate(&net, loader, tn_cross_entropy, world, m);
    ((shared *)user)[tn_group_rank(world)].result = m;
    tn_loader_free(loader);
    tn_module_finish(&net);
}

TEST(evaluates_on_ranks) {
    shared s[3];
    assert_int_equal(tn_local_run(3, evaluate_share, s), TN_OK);
    for (int i = 0; i < 3; i++) {
        same_pass(s[i].result);
        tn_metrics_free(s[i].result);
    }
}
