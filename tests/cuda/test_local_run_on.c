/* Ranks as threads of one process, each with a device of its own: the bits of one device that
 * accumulates, what is refused, and failures that end all threads. */

#include "device_ranks.h"
#include "tests/distributed/rank_check.h"
#include "tests/parallel/train.h"
#include "tests/support/test.h"

enum { MOST = 4 };

typedef struct place {
    int n;
    tn_device devices[MOST];
} place;

static place place_of(const char *names) {
    place p = {.n = 0};
    for (; *names; names += strcspn(names, " ") + (strchr(names, ' ') != NULL)) {
        char name[16];
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(names, " "), names);
        p.devices[p.n++] = tn_device_named(name);
    }
    return p;
}

static void run_at(const char *names, void (*f)(tn_group *, void *), void *user) {
    place p = place_of(names);
    failures = 0;
    if (tn_local_run_on(p.devices, p.n, f, user) != TN_OK) { fail_msg("%s", tn_error_message()); }
    assert_int_equal(failures, 0);
}

/* ---- Where ranks are ------------------------------------------------------------------------- */

static void sum_of_ranks(tn_group *world, void *user) {
    TN_SCOPE;
    const place *p = user;
    tn_device mine = p->devices[tn_group_rank(world)], here = tn_default_device();
    CHECK(mine.kind == here.kind && mine.index == here.index);
    CHECK(tn_group_size(world) == p->n);
    tn_tensor *t = tn_full(TN_DIMS(1 << 21), tn_group_rank(world) + 1, TN_F32); /* two chunks */
    CHECK(tn_device_of(t).kind == mine.kind && tn_device_of(t).index == mine.index);
    tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0);
    CHECK(tn_equal(t, tn_full(TN_DIMS(1 << 21), p->n * (p->n + 1) / 2, TN_F32)));
}

TEST(every_rank_has_its_device) {
    static const char *const names[] = {"cuda:0 cuda:1", "cuda:1", "cuda:1 cuda:1 cuda:0",
                                        "cpu cpu"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        place p = place_of(names[i]);
        run_at(names[i], sum_of_ranks, &p);
        assert_int_equal(tn_default_device().kind, TN_CPU); /* this thread's */
    }
}

/* ---- Training -------------------------------------------------------------------------------- */

typedef struct trained {
    const train_run *run;
    train_end ends[MOST];
} trained;

static void train_rank(tn_group *world, void *user) {
    trained *t = user;
    t->ends[tn_group_rank(world)] = train_as_rank(world, t->run);
}

/* On these devices as on the first of them, which accumulates. */
static void assert_accumulates(const char *names, train_how how, bool bf16) {
    place p = place_of(names);
    train_run run = train_run_of(how, p.n);
    run.clip = 0.2;
    run.bf16 = bf16;
    trained t = {.run = &run};
    run_at(names, train_rank, &t);
    tn_set_default_device(p.devices[0]);
    train_end alone = train_on_threads(train_oracle(run, NULL));
    tn_set_default_device(tn_cpu());
    for (int r = 0; r < p.n; r++) {
        assert_true(train_agrees(&alone, &t.ends[r], &run, 0));
        free(t.ends[r].bits.data);
    }
    free(alone.bits.data);
}

TEST(training_is_accumulation) {
    static const train_how hows[] = {TRAIN_DDP, TRAIN_FSDP};
    for (int i = 0; i < 2; i++) {
        assert_accumulates("cuda:0 cuda:1", hows[i], false);
        assert_accumulates("cpu cpu", hows[i], false);
        assert_accumulates("cuda:1 cuda:0 cuda:1 cuda:0", hows[i], true);
    }
}

/* ---- What is refused ------------------------------------------------------------------------- */

static void never_called(tn_group *world, void *user) {
    *(bool *)user = true;
}

TEST(bad_arguments) {
    bool called = false;
    static const tn_device there = {TN_CUDA, 1};
    static const struct {
        const char *part;
        tn_device devices[2];
        tn_status status;
    } wrong[] = {
        {"there is no device cuda:2: 2 devices are here", {{TN_CUDA, 1}, {TN_CUDA, 2}}, TN_EDEVICE},
        {"there is no device cuda:-1", {{TN_CUDA, -1}, {TN_CUDA, 0}}, TN_EDEVICE},
        {"there is no device unknown:0", {{(tn_device_kind)7, 0}, {TN_CPU, 0}}, TN_EDEVICE},
        {"rank 0 is on cuda:1, but rank 1 is on cpu", {{TN_CUDA, 1}, {TN_CPU, 0}}, TN_EDEVICE},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(tn_local_run_on(wrong[i].devices, 2, never_called, &called),
                         wrong[i].status);
        assert_error(wrong[i].status, wrong[i].part);
    }
    static const int counts[] = {0, -1, 1025};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tn_local_run_on(&there, counts[i], never_called, &called), TN_EVALUE);
        assert_error(TN_EVALUE, "ranks (1 to 1024)");
    }
    assert_int_equal(tn_local_run_on(NULL, 1, never_called, &called), TN_EVALUE);
    assert_error(TN_EVALUE, "local_run_on: the devices are NULL");
    assert_int_equal(tn_local_run_on(&there, 1, NULL, NULL), TN_EVALUE);
    assert_error(TN_EVALUE, "local_run_on: the function is NULL");
    tn_device_named("gpu");
    assert_int_equal(tn_local_run_on(&there, 1, never_called, &called), TN_EDEVICE);
    assert_error(TN_EDEVICE, "\"gpu\" is not a device");
    assert_false(called);
}

/* The strategies want a rank's parameters on one device, and say what else there is. */
static void spread_badly(tn_group *world, void *user) {
    TN_SCOPE;
    const char *how = user;
    tn_sequential *net = TN_SEQUENTIAL(tn_linear_new(4, 4), tn_linear_new(4, 4));
    tn_module_to(tn_module_at(net, 1), tn_cuda(1));
    if (strcmp(how, "ddp") == 0) {
        tn_ddp(net, world, tn_ddp_defaults());
    } else {
        tn_fsdp(net, world, NULL, tn_fsdp_defaults());
    }
    tn_module_free(net);
}

TEST(two_devices_of_one_rank) {
    place p = place_of("cuda:0 cuda:0");
    static char *const hows[] = {"ddp", "fsdp"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tn_local_run_on(p.devices, p.n, spread_badly, hows[i]), TN_EDEVICE);
        assert_contains(tn_error_message(), "0.weight is on cuda:0, but 1.weight is on cuda:1");
        assert_contains(tn_error_message(), "start a process for each, or use tn_local_run_on");
        assert_error(TN_EDEVICE, i ? "trains without tn_fsdp" : "trains without tn_ddp");
    }
}

/* ---- Failures -------------------------------------------------------------------------------- */

typedef enum end { RAISES, LEAVES, FILLS_DEVICE } end;

/* Rank 1 fails in its third step, while the others wait for its gradients. */
static void fail_in_training(tn_group *world, void *user) {
    end how = *(end *)user;
    tn_sequential *net = TN_SEQUENTIAL(tn_linear_new(4, 4), tn_linear_new(4, 4));
    tn_ddp(net, world, tn_ddp_defaults());
    for (int step = 0; step < 5 && tn_error() == TN_OK; step++) {
        TN_SCOPE;
        if (step == 3 && tn_group_rank(world) == 1) {
            if (how == LEAVES) {
                break;
            } else if (how == RAISES) {
                tn_add(tn_ones(TN_DIMS(2), TN_F32), tn_ones(TN_DIMS(3), TN_F32));
            } else {
                tn_empty(TN_DIMS(INT64_C(1) << 42), TN_F32);
            }
        }
        tn_backward(tn_mean_all(tn_call(net, tn_ones(TN_DIMS(2, 4), TN_F32))));
    }
    CHECK(tn_error() != TN_OK || tn_group_rank(world) == 1);
    tn_module_free(net);
}

TEST(a_failure_ends_all) {
    place p = place_of("cuda:0 cuda:1 cuda:0");
    static const tn_status wanted[] = {
        [RAISES] = TN_ESHAPE, [LEAVES] = TN_EPEER, [FILLS_DEVICE] = TN_ENOMEM};
    for (end how = RAISES; how <= FILLS_DEVICE; how++) {
        double begun = tn_now();
        failures = 0;
        assert_int_equal(tn_local_run_on(p.devices, p.n, fail_in_training, &how), wanted[how]);
        assert_true(tn_now() - begun < 60); /* not the group's time-out */
        assert_int_equal(failures, 0);
        assert_error(wanted[how], how == LEAVES ? "rank 1" : how == RAISES ? "add: " : "empty");
    }
    run_at("cuda:0 cuda:1", sum_of_ranks, &(place){2, {tn_cuda(0), tn_cuda(1)}}); /* as before */
}

int main(int argc, char **argv) {
    if (!device_main(argc, argv)) { return 0; }
    return tests_run(device_set_up, NULL);
}
