/* Weights and checkpoints: a run continues bit for bit, and a file that does not fit changes
 * nothing. */
#include "tern/tern.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/io/small_run.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

/* Everything that a checkpoint can change, as bytes. */
typedef struct snapshot {
    char bytes[4096];
    size_t count;
} snapshot;

static void add_bytes(snapshot *s, const void *data, size_t bytes) {
    assert_true(s->count + bytes <= sizeof(s->bytes));
    memcpy(s->bytes + s->count, data, bytes);
    s->count += bytes;
}

static void add_tensor(snapshot *s, const tn_tensor *t) {
    size_t bytes = (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t));
    assert_true(s->count + bytes <= sizeof(s->bytes));
    assert_int_equal(tn_copy_out(t, s->bytes + s->count), TN_OK);
    s->count += bytes;
}

static bool add_entry(const tn_entry *entry, void *user) {
    add_tensor(user, *entry->field);
    return true;
}

static bool add_state(const char *name, tn_tensor *state, void *user) {
    add_tensor(user, state);
    return true;
}

static snapshot snapshot_of(small_run *r) {
    snapshot s;
    memset(&s, 0, sizeof(s));
    tn_module_each(&r->model, (tn_walk){.buffers = true}, add_entry, &s);
    tn_optim_each(r->optim, add_state, &s);
    double lr = tn_optim_lr(r->optim);
    int64_t steps = tn_optim_steps(r->optim);
    tn_loader_place place = tn_loader_where(r->loader);
    add_bytes(&s, &lr, sizeof(lr));
    add_bytes(&s, &steps, sizeof(steps));
    add_bytes(&s, &place, sizeof(place));
    add_bytes(&s, &r->generator, sizeof(r->generator));
    for (int i = 0; i < tn_optim_groups(r->optim); i++) {
        add_bytes(&s, tn_optim_group(r->optim, i), sizeof(tn_optim_group_options));
    }
    return s;
}

static bool same_snapshots(const snapshot *a, const snapshot *b) {
    return a->count == b->count && memcmp(a->bytes, b->bytes, a->count) == 0;
}

TEST(test_goes_on_bit_for_bit) {
    const char *path = temp_path("run");
    small_run a, b;
    small_run_open(&a, 1);
    double losses[20];
    for (int i = 0; i < 20; i++) {
        if (i == 7) {
            tn_checkpoint c = small_run_checkpoint(&a);
            assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
        }
        losses[i] = small_run_step(&a);
    }
    small_run_open(&b, 2); /* different weights, a different number of threads */
    tn_optim_group(b.optim, 0)->weight_decay = 0.7;
    small_run_step(&b);
    tn_checkpoint c = small_run_checkpoint(&b);
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    assert_int_equal(c.step, 7);
    assert_string_equal(c.note, "small");
    b.step = c.step;
    for (int i = 7; i < 20; i++) {
        assert_true(small_run_step(&b) == losses[i]);
    }
    snapshot last_a = snapshot_of(&a), last_b = snapshot_of(&b);
    assert_true(same_snapshots(&last_a, &last_b));
    small_run_close(&a);
    small_run_close(&b);
}

/* Opens a run of one step, and saves it. */
static tn_checkpoint save_one(small_run *r, const char *path) {
    small_run_open(r, 1);
    small_run_step(r);
    tn_checkpoint c = small_run_checkpoint(r);
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    return c;
}

/* Loads a file that is refused; the run must be as it was. */
static void check_refused(small_run *r, const char *path, tn_status status, const char *part) {
    snapshot before = snapshot_of(r);
    tn_checkpoint c = small_run_checkpoint(r);
    c.step = 77;
    assert_int_equal(tn_checkpoint_load(&c, path), status);
    assert_error(status, part);
    assert_int_equal(c.step, 77);
    snapshot after = snapshot_of(r);
    assert_true(same_snapshots(&before, &after));
}

PLAIN_TEST(test_damage) {
    const char *path = temp_path("run"), *damaged = temp_path("damaged");
    small_run r;
    save_one(&r, path);
    small_run_step(&r);
    size_t bytes;
    unsigned char *file = temp_read(path, &bytes);
    for (size_t length = 0; length < bytes; length++) {
        temp_write(damaged, file, length);
        check_refused(&r, damaged, TN_EFORMAT, damaged);
    }
    for (size_t at = 0; at < bytes; at++) {
        file[at] ^= (unsigned char)(1u << at % 8);
        temp_write(damaged, file, bytes);
        check_refused(&r, damaged, TN_EFORMAT, damaged);
        file[at] ^= (unsigned char)(1u << at % 8);
    }
    free(file);
    small_run_close(&r);
}

PLAIN_TEST(test_what_does_not_fit) {
    const char *path = temp_path("run");
    small_run r;
    tn_checkpoint c = save_one(&r, path);

    tn_schedule schedule = r.schedule;
    r.schedule.peak = 0.1;
    check_refused(&r, path, TN_EMISMATCH, "the schedule: peak was 0.01 but is 0.1");
    r.schedule.peak = nextafter(schedule.peak, 1);
    check_refused(&r, path, TN_EMISMATCH, "peak was 0.01 but is 0.010000000000000002");
    r.schedule = schedule;
    r.schedule.steps++;
    check_refused(&r, path, TN_EMISMATCH, "the schedule: steps was ");
    r.schedule = schedule;

    tn_loader *loader = r.loader;
    tn_loader_options o = tn_loader_options_of(loader);
    o.batch = 4;
    {
        TN_SCOPE;
        r.loader = tn_loader_new(tn_tensor_dataset(tn_zeros(TN_DIMS(10, 4), TN_F32), NULL),
                                 tn_random_sampler(5), o);
    }
    check_refused(&r, path, TN_EMISMATCH,
                  "the batch was 3 but is 4 (with as many ranks as before)");
    tn_loader_free(r.loader);
    {
        TN_SCOPE;
        r.loader = tn_loader_new(tn_tensor_dataset(tn_zeros(TN_DIMS(10, 4), TN_F32), NULL),
                                 tn_random_sampler(6), tn_loader_options_of(loader));
    }
    check_refused(&r, path, TN_EMISMATCH, "the loader: seed was 5 but is 6");
    tn_loader_free(r.loader);
    r.loader = loader;

    tn_optim *optim = r.optim;
    r.optim = tn_sgd(&r.model, tn_sgd_defaults());
    check_refused(&r, path, TN_EMISMATCH, "the optimiser was adamw but is sgd");
    tn_optim_free(r.optim);
    r.optim = tn_adamw(&r.model, tn_adamw_defaults());
    check_refused(&r, path, TN_EMISMATCH, "2 parameter groups but has 1");
    tn_optim_free(r.optim);
    r.optim = optim;

    tn_linear wide;
    tn_linear_init(&wide, 5, 2, tn_linear_defaults());
    c = (tn_checkpoint){.model = &wide, .partial = true};
    assert_fails(tn_checkpoint_load(&c, path), TN_ESHAPE,
                 "\"model.weight\" is [2, 4] but the program's is [2, 5]");
    tn_module_finish(&wide);

    c = (tn_checkpoint){.model = &r.model};
    assert_fails(tn_checkpoint_load(&c, path), TN_EMISMATCH, "state of the optim");
    /* only the weights, to generate with */
    c = (tn_checkpoint){.model = &r.model, .partial = true};
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);

    c = (tn_checkpoint){.model = &r.model};
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    check_refused(&r, path, TN_EMISMATCH, "no state of a optim");
    assert_int_equal(tn_save(&r.model, path), TN_OK);
    check_refused(&r, path, TN_EFORMAT, "has no digest");
    check_refused(&r, "/nowhere/at/all", TN_EIO, "No such file");
    small_run_close(&r);
}

/* A program in a locale with a decimal comma writes and reads the same file. */
PLAIN_TEST(test_locale) {
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "fr_FR.UTF-8")) {
        fprintf(stderr, "no locale with a decimal comma is installed\n");
        skip();
    }
    const char *path = temp_path("run");
    small_run r;
    tn_checkpoint c = save_one(&r, path);
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    setlocale(LC_ALL, "C");
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    small_run_close(&r);
}

PLAIN_TEST(test_inert_arguments) {
    small_run r;
    small_run_open(&r, 1);
    const char *path = temp_path("never");
    unlink(path);
    tn_raise(TN_EVALUE, "pending");
    tn_checkpoint c = small_run_checkpoint(&r);
    assert_int_equal(tn_checkpoint_save(&c, path), TN_EVALUE);
    assert_int_equal(tn_checkpoint_load(&c, path), TN_EVALUE);
    assert_int_equal(tn_save(&r.model, path), TN_EVALUE);
    assert_int_equal(tn_load(&r.model, path), TN_EVALUE);
    assert_int_equal(access(path, F_OK), -1);
    assert_error(TN_EVALUE, "pending");
    assert_fails(tn_checkpoint_save(&c, NULL), TN_EVALUE, "");
    assert_fails(tn_save(&r.model, NULL), TN_EVALUE, "");
    small_run_close(&r);
}

/* Nothing is saved that could not be loaded. */
PLAIN_TEST(test_what_is_not_saved) {
    small_run r;
    small_run_open(&r, 1);
    const char *path = temp_path("never");
    unlink(path);
    tn_checkpoint c = small_run_checkpoint(&r);
    c.step = -7;
    assert_fails(tn_checkpoint_save(&c, path), TN_EVALUE, "step -7");
    c.step = 7;
    tn_optim_group_options *g = tn_optim_group(r.optim, 1);
    double before = g->weight_decay;
    g->weight_decay = (double)NAN;
    assert_fails(tn_checkpoint_save(&c, path), TN_EVALUE,
                 "group 1 of the optimiser has lr scale 1 and weight decay nan");
    assert_int_equal(access(path, F_OK), -1);
    g->weight_decay = before;
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    assert_int_equal(c.step, 7);
    small_run_close(&r);
}

/* ---- A module's weights ---------------------------------------------------------------------- */

TEST(test_weights) {
    const char *path = temp_path("weights");
    tn_linear a, b, wide, bare;
    tn_linear_options no_bias = tn_linear_defaults(), half = tn_linear_defaults();
    no_bias.bias = false;
    half.dtype = TN_BF16;
    tn_linear_init(&a, 3, 2, tn_linear_defaults());
    tn_linear_init(&b, 3, 2, half);
    tn_linear_init(&wide, 4, 2, tn_linear_defaults());
    tn_linear_init(&bare, 3, 2, no_bias);
    assert_int_equal(tn_save(&a, path), TN_OK);

    assert_int_equal(tn_load(&b, path), TN_OK); /* dtypes are converted */
    assert_true(tn_equal(b.weight, tn_cast(tn_detach(a.weight), TN_BF16)));
    assert_int_equal(tn_dtype_of(b.weight), TN_BF16);
    assert_true(tn_requires_grad(b.weight));

    tn_tensor *before = tn_copy(tn_detach(wide.weight));
    assert_fails(tn_load(&wide, path), TN_ESHAPE,
                 "\"weight\" is [2, 3] but the program's is [2, 4]");
    assert_true(tn_equal(before, tn_detach(wide.weight)));

    before = tn_copy(tn_detach(bare.weight));
    assert_fails(tn_load(&bare, path), TN_EMISMATCH,
                 "has \"bias\", which the program does not have");
    assert_true(tn_equal(before, tn_detach(bare.weight)));
    assert_int_equal(tn_save(&bare, path), TN_OK);
    before = tn_copy(tn_detach(a.weight));
    assert_fails(tn_load(&a, path), TN_EMISMATCH, "has no \"bias\"");
    assert_true(tn_equal(before, tn_detach(a.weight)));
    assert_int_equal(tn_error(), TN_OK);
    tn_module_finish(&a);
    tn_module_finish(&b);
    tn_module_finish(&wide);
    tn_module_finish(&bare);
}

/* A load is a change: what was saved for backward before it must not be used after it. */
TEST(test_load_counts_as_a_change) {
    const char *path = temp_path("weights");
    tn_linear a;
    tn_linear_init(&a, 3, 2, tn_linear_defaults());
    assert_int_equal(tn_save(&a, path), TN_OK);
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(1, 3), TN_F32), true);
    tn_tensor *loss = tn_sum_all(tn_call(&a, x));
    assert_int_equal(tn_load(&a, path), TN_OK);
    assert_fails(tn_backward(loss), TN_ESTATE, "");
    tn_module_finish(&a);
}

/* A mistaken path may be any file: what is not a checkpoint is not read whole. */
PLAIN_TEST(test_larger_than_memory) {
    const char *path = temp_path("huge");
    temp_write(path, "no header of safetensors", 24);
    if (truncate(path, (off_t)1 << 42) != 0) {
        skip(); /* a file system without such large files */
    }
    tn_checkpoint c = {.partial = true};
    assert_fails(tn_checkpoint_load(&c, path), TN_EFORMAT,
                 "huge is not a safetensors file: after 8 bytes its header should begin with '{'");
    unlink(path);
}

/* A rate on a plateau, an average of weights and a schedule with milestones: they continue, and
 * others are refused with what differs. */
TEST(test_plateau_and_average) {
    static const int64_t at[] = {100000000000, 200000000000, 300000000000};
    const char *path = temp_path("plateau");
    tn_linear net;
    tn_linear_init(&net, 3, 2, tn_linear_defaults());
    tn_plateau plateau = tn_plateau_defaults(0.5);
    tn_schedule schedule = tn_schedule_multi_step(0.1, at, 3, 0.5);
    tn_average *ema = tn_ema(&net, 0.75);
    tn_optim *optim = tn_adamw(&net, tn_adamw_defaults());
    for (int i = 0; i < 14; i++) {
        tn_plateau_step(&plateau, i ? 2.0 : 1.5);
        TN_NO_GRAD;
        tn_fill_(net.weight, i);
        tn_average_update(ema);
    }
    assert_true(plateau.state.lr == 0.05 && plateau.state.best == 1.5);
    tn_checkpoint c = {.model = &net,
                       .optim = optim,
                       .schedule = &schedule,
                       .plateau = &plateau,
                       .average = ema,
                       .step = 14};
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    tn_plateau other = tn_plateau_defaults(0.1);
    tn_average *fresh = tn_ema(&net, 0.75);
    tn_checkpoint back = c;
    back.plateau = &other;
    back.average = fresh;
    assert_int_equal(tn_checkpoint_load(&back, path), TN_OK);
    assert_true(memcmp(&other.state, &plateau.state, sizeof(other.state)) == 0);
    assert_int_equal(tn_average_updates(fresh), 14);
    {
        TN_AVERAGED(ema);
        tn_tensor *mean = tn_copy(tn_detach(net.weight));
        TN_AVERAGED(fresh);
        assert_true(tn_equal(mean, net.weight) && tn_at(mean, TN_DIMS(0, 0)) < 12.0);
        assert_fails(tn_average_update(fresh), TN_ESTATE, "the model has the average now");
    }
    assert_true(tn_at(net.weight, TN_DIMS(0, 0)) == 13.0);
    tn_average_free(fresh);
    other.patience = 3;
    back.average = ema;
    assert_fails(tn_checkpoint_load(&back, path), TN_EMISMATCH,
                 "the plateau: patience was 10 but is 3");
    other.patience = 10;
    fresh = back.average = tn_swa(&net);
    assert_int_equal(tn_checkpoint_load(&back, path), TN_EMISMATCH);
    assert_error(
        TN_EMISMATCH,
        "the average: all was not set but is alike; the average: decay was 0.75 but is not set");
    tn_average_free(fresh);
    back.average = ema;
    schedule.milestones[1]++;
    assert_fails(tn_checkpoint_load(&back, path), TN_EMISMATCH, "the schedule: at 2 was ");
    back.schedule = NULL;
    assert_fails(tn_checkpoint_load(&back, path), TN_EMISMATCH, "state of the schedule, but");
    back.partial = true;
    assert_int_equal(tn_checkpoint_load(&back, path), TN_OK);
    tn_optim_free(optim);
    tn_module_finish(&net);
    assert_fails(tn_average_update(ema), TN_ESTATE, "weight is gone");
    tn_average_free(ema);
}
