/* Calls between ranks, from outside: what a careless program does, and ranks that are stopped or
 * killed in the middle of something. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "rpc_check.h"

#include "tests/support/ranks.h"

/* ---- Functions ------------------------------------------------------------------------------- */

static void run_half(const tn_message *in, tn_message *out, void *user) {
    tn_message_add(out, tn_call(user, tn_message_tensor(in, 0)));
}

/* ---- NULL ------------------------------------------------------------------------------------ */

TEST(test_null) {
    tn_rpc_free(NULL);
    tn_message_free(NULL);
    tn_remote_free(NULL);
    tn_rpc_context_free(NULL);
    assert_null(tn_rpc_wait(NULL));
    assert_true(tn_rpc_done(NULL));
    assert_int_equal(tn_rpc_rank(NULL), 0);
    assert_int_equal(tn_rpc_size(NULL), 1);
    assert_int_equal(tn_rpc_kept(NULL), 0);
    assert_int_equal(tn_remote_owner(NULL), -1);
    assert_int_equal(tn_message_count(NULL), 0);
    assert_null(tn_rpc_context_current());
    assert_int_equal(tn_rpc_caller(), -1);
    assert_string_equal(tn_message_text(NULL, 0), "");
    assert_error(TN_EVALUE, "message_text");
    assert_int_equal(tn_message_int(NULL, 0), 0);
    assert_error(TN_EVALUE, "message_int");
}

/* ---- The limits of what a message is --------------------------------------------------------- */

/* A message of `values` ints for "count". */
static tn_message *ints_of(int values) {
    tn_message *m = tn_message_new();
    for (int i = 0; i < values && tn_error() == TN_OK; i++) {
        tn_message_add_int(m, i);
    }
    return m;
}

static void most_values(tn_group *world, void *user) {
    tn_rpc *r = start_rank(world);
    int other = tn_rpc_size(r) - 1 - tn_rpc_rank(r), counts[] = {0, 1, 65535};
    for (int i = 0; i < 3; i++) {
        tn_message *out = ask_rank(r, other, "count", ints_of(counts[i]), 0);
        CHECK(tn_message_int(out, 0) == counts[i]);
        tn_message_free(out);
    }
    tn_message *in = ints_of(65536);
    CHECK(failed_with(TN_EVALUE, "already has 65535 values"));
    CHECK(tn_message_count(in) == 65535);
    tn_message_free(in);
    end_rank(world, r);
}

/* To the byte: a name of 4, a value's head of 16, and the data. */
static void exact_limit(tn_group *world, void *user) {
    enum { LIMIT = 4096, HEADS = 4 + 16 };
    static char data[LIMIT];
    tn_rpc *r = start_with(world, TN_WITH(tn_rpc, .message_limit = LIMIT));
    int other = tn_rpc_size(r) - 1 - tn_rpc_rank(r);
    for (int more = 0; more <= 1; more++) {
        tn_message *in = tn_message_new();
        size_t bytes = 0;
        tn_message_add_bytes(in, data, LIMIT - HEADS + (size_t)more);
        tn_message *out = ask_rank(r, other, "echo", in, 0);
        CHECK(more ? failed_with(TN_EVALUE, "the message has 4097 bytes (message_limit: 4096)")
                   : tn_message_bytes(out, 0, &bytes) && bytes == LIMIT - HEADS);
        tn_message_free(out);
    }
    end_rank(world, r);
}

/* One element seen as 2^40 is refused before memory is taken for it. */
static void huge_views(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = start_rank(world);
    int other = tn_rpc_size(r) - 1 - tn_rpc_rank(r);
    tn_tensor *one = tn_ones(TN_DIMS(1), TN_F32);
    tn_message *in = tn_message_of(TN_VALUES(tn_expand(one, TN_DIMS((int64_t)1 << 40))));
    CHECK(!ask_rank(r, other, "count", in, 0) && failed_with(TN_EVALUE, "message_limit"));
    in = tn_message_new();
    tn_tensor *large = tn_expand(one, TN_DIMS((int64_t)1 << 60));
    for (int i = 0; i < 17 && tn_error() == TN_OK; i++) { /* 17 * 2^62 bytes */
        tn_message_add(in, large);
    }
    CHECK(!ask_rank(r, other, "count", in, 0) && tn_error() == TN_EVALUE);
    tn_error_clear();
    end_rank(world, r);
}

static void long_names(tn_group *world, void *user) {
    char name[257];
    memset(name, 'n', sizeof(name));
    name[256] = 0;
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    int other = tn_rpc_size(r) - 1 - tn_rpc_rank(r);
    CHECK(tn_rpc_register(r, name, count_values, NULL) == TN_EVALUE);
    CHECK(failed_with(TN_EVALUE, "a name of 1 to 255 bytes"));
    CHECK(tn_rpc_register(r, "", count_values, NULL) == TN_EVALUE);
    CHECK(failed_with(TN_EVALUE, "a name of 1 to 255 bytes"));
    name[255] = 0;
    tn_rpc_register(r, name, count_values, NULL);
    tn_rpc_start(r);
    tn_message *out = ask_rank(r, other, name, ints_of(3), 0);
    CHECK(tn_message_int(out, 0) == 3);
    tn_message_free(out);
    name[255] = 'n';
    CHECK(!ask_rank(r, other, name, ints_of(3), 0) && failed_with(TN_EVALUE, "1 to 255 bytes"));
    name[254] = 0;
    CHECK(!ask_rank(r, other, name, NULL, 0) && failed_with(TN_EVALUE, "there is no function"));
    end_rank(world, r);
}

TEST(test_limits) {
    for (int ranks = 1; ranks <= 2; ranks++) {
        run_ok(ranks, most_values, NULL);
        run_ok(ranks, exact_limit, NULL);
        run_ok(ranks, huge_views, NULL);
        run_ok(ranks, long_names, NULL);
    }
}

/* ---- Functions that are careless ------------------------------------------------------------- */

static void raise_twice(const tn_message *in, tn_message *out, void *user) {
    tn_message_add_int(out, 1); /* not sent: it has failed */
    tn_raise(TN_EIO, "the first");
    tn_raise(TN_EINDEX, "the second");
}

static void register_inside(const tn_message *in, tn_message *out, void *user) {
    tn_rpc_register(user, "late", count_values, NULL);
}

/* Neither may be called here. */
static void end_inside(const tn_message *in, tn_message *out, void *user) {
    tn_rpc_free(user);
    CHECK(failed_with(TN_ESTATE, "inside a function"));
    tn_rpc_shutdown(user, 1);
}

/* Replies are refused when they are made, not when they are added. */
static void add_itself(const tn_message *in, tn_message *out, void *user) {
    tn_message_add(out, tn_message_tensor(in, 0));
    tn_message_add(out, tn_message_tensor(in, 0));
    tn_message_add_text(out, "");
}

static void careless_functions(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    int other = tn_rpc_size(r) - 1 - tn_rpc_rank(r);
    tn_rpc_register(r, "raise", raise_twice, NULL);
    tn_rpc_register(r, "register", register_inside, r);
    tn_rpc_register(r, "end", end_inside, r);
    tn_rpc_register(r, "itself", add_itself, NULL);
    tn_rpc_start(r);
    for (int again = 0; again < 2; again++) {
        CHECK(!ask_rank(r, other, "raise", NULL, 0) && failed_with(TN_EIO, "the first"));
        CHECK(!ask_rank(r, other, "end", NULL, 0) && failed_with(TN_ESTATE, "inside a function"));
        tn_message *out = ask_rank(r, other, "register", NULL, 0);
        CHECK(again ? failed_with(TN_ESTATE, "\"late\" is registered already") : out != NULL);
        tn_message_free(out);
        out = ask_rank(r, other, "late", ints_of(2), 0);
        CHECK(tn_message_int(out, 0) == 2);
        tn_message_free(out);
        tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(4), TN_BF16), true);
        out = ask_rank(r, other, "itself", tn_message_of(TN_VALUES(tn_slice(x, 0, 1, 3, 1))), 0);
        CHECK(tn_message_count(out) == 3 && tn_count(tn_message_tensor(out, 1)) == 2);
        CHECK(!tn_requires_grad(tn_message_tensor(out, 0)));
        tn_message_free(out);
    }
    end_rank(world, r);
}

TEST(test_careless_functions) {
    run_ok(1, careless_functions, NULL);
    run_ok(2, careless_functions, NULL);
}

/* ---- After the end --------------------------------------------------------------------------- */

/* After tn_rpc_shutdown a rank can still call itself. What was made before tn_rpc_free can be used
 * and freed after it, which gives errors. */
static void use_after_free(tn_group *world, void *user) {
    TN_SCOPE;
    tn_linear half;
    tn_seed(1);
    tn_linear_init(&half, 3, 3, tn_linear_defaults());
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    int other = tn_rpc_size(r) - 1 - tn_rpc_rank(r);
    tn_rpc_register(r, "add", add_numbers, NULL);
    tn_rpc_register(r, "half", run_half, &half);
    tn_rpc_start(r);
    tn_rpc_context *c = tn_rpc_context_new(r);
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(1, 3), TN_F32), true);
    tn_tensor *loss = tn_sum_all(tn_rpc_forward(c, other, "half", TN_VALUES(x), 0).v[0]);
    tn_remote *m = tn_remote_of(r, x);
    CHECK(tn_rpc_shutdown(r, 60) == TN_OK);
    tn_message *late = ask_rank(r, tn_rpc_rank(r), "add", NULL, 0);
    CHECK(!late && failed_with(TN_EINDEX, "value 0 of a message with 0"));
    tn_future *f = tn_rpc_call(r, tn_rpc_rank(r), "add", ints_of(1), 0);
    tn_rpc_free(r);
    tn_message_free(tn_rpc_wait(f)); /* perhaps the function ran */
    CHECK(tn_error() != TN_OK);
    tn_error_clear();
    CHECK(tn_is_inert(tn_remote_get(m, 0)) && tn_error() == TN_ESTATE);
    tn_error_clear();
    tn_backward(loss);
    CHECK(tn_error() == TN_EPEER); /* whichever side was first */
    tn_error_clear();
    CHECK(tn_rpc_step(c) == TN_EPEER);
    tn_error_clear();
    tn_remote_free(m);
    tn_rpc_context_free(c);
    tn_module_finish(&half);
}

TEST(test_after_the_end) {
    run_ok(1, use_after_free, NULL);
    run_ok(2, use_after_free, NULL);
}

/* ---- Stopped or killed in the middle --------------------------------------------------------- */

enum { LARGE = 48 << 20 }; /* bytes: more than sockets take */

/* Stops this process; the test lets it go on. */
static void pause_here(void) {
    raise(SIGSTOP);
}

static void await_pause(const ranks_job *job, int rank) {
    int status = 0;
    assert_int_equal(waitpid(job->pid[rank], &status, WUNTRACED), job->pid[rank]);
    assert_true(WIFSTOPPED(status));
}

static void stop_rank(const ranks_job *job, int rank) {
    kill(job->pid[rank], SIGSTOP);
    await_pause(job, rank);
}

static void print_line(const char *text) {
    printf("%s\n", text);
    fflush(stdout);
}

/* Rank 0 sends rank 1 a large message, and rank 2 calls both meanwhile. Each is stopped in the
 * middle: first rank 1, so that rank 0 gets rid of a part only, then rank 0. */
static int half_a_frame(tn_group *world, const char *argument) {
    tn_rpc *r = start_rank(world);
    int rank = tn_rpc_rank(r);
    if (rank == 0) {
        char *data = calloc(1, LARGE);
        tn_message *in = tn_message_new();
        tn_message_add_bytes(in, data, LARGE);
        free(data);
        pause_here();
        tn_future *f = tn_rpc_call(r, 1, "echo", in, 0);
        rank_assert(f && !tn_rpc_done(f));
        pause_here();
        tn_message *out = tn_rpc_wait(f);
        size_t bytes = 0;
        rank_assert(tn_message_bytes(out, 0, &bytes) && bytes == LARGE);
        tn_message_free(out);
    } else if (rank == 2) {
        pause_here(); /* until rank 1 has a part of a frame, and rank 0 is stopped */
        tn_message *out = ask_rank(r, 1, "count", ints_of(4), 0);
        rank_assert(tn_message_int(out, 0) == 4);
        tn_message_free(out);
        print_line("answered");
    }
    rank_assert(tn_rpc_shutdown(r, 60) == TN_OK);
    tn_rpc_free(r);
    return 0;
}

TEST(test_stopped_in_a_frame) {
    ranks_job job = ranks_start(3, "half_a_frame", "", NULL);
    await_pause(&job, 0);
    await_pause(&job, 2);
    stop_rank(&job, 1);
    kill(job.pid[0], SIGCONT);
    await_pause(&job, 0);
    kill(job.pid[1], SIGCONT);
    kill(job.pid[2], SIGCONT);
    assert_true(ranks_await_output(&job, 2, "answered", 60));
    kill(job.pid[0], SIGCONT);
    ranks_result result = ranks_wait(&job, 60);
    assert_true(ranks_ok(&result));
    ranks_free(&result);
}

/* What rank 0 does while rank 1 is stopped, until it is killed: an error that names rank 1, and
 * nothing is kept for it. */
typedef struct loop {
    tn_rpc *rpc;
    tn_rpc_context *context;
    tn_tensor *loss;
} loop;

static void try_call(loop *l) {
    tn_message_free(ask_rank(l->rpc, 1, "count", NULL, 0));
}

static void try_large_call(loop *l) {
    tn_message *in = tn_message_of(TN_VALUES(tn_zeros(TN_DIMS(LARGE / 4), TN_F32)));
    tn_message_free(ask_rank(l->rpc, 1, "count", in, 0));
}

static void try_reference(loop *l) {
    tn_remote *m = tn_remote_of(l->rpc, tn_ones(TN_DIMS(2), TN_F32));
    tn_message *in = ints_of(1);
    tn_message_add_remote(in, m);
    tn_remote_free(m);
    tn_message_free(ask_rank(l->rpc, 1, "count", in, 0));
}

static void try_forward(loop *l) {
    tn_rpc_forward(l->context, 1, "half", TN_VALUES(tn_ones(TN_DIMS(1, 3), TN_F32)), 0);
}

static void try_backward(loop *l) {
    tn_backward(l->loss);
}

static void try_step(loop *l) {
    tn_rpc_step(l->context);
}

static void try_shutdown(loop *l) {
    tn_rpc_shutdown(l->rpc, 0);
}

static const struct {
    const char *name;
    void (*run)(loop *l);
} phases[] = {
    {"call", try_call},         {"large call", try_large_call}, {"reference", try_reference},
    {"forward", try_forward},   {"backward", try_backward},     {"step", try_step},
    {"shutdown", try_shutdown},
};
enum { PHASES = sizeof(phases) / sizeof(phases[0]) };

static void survive_rank_1(tn_rpc *r, int phase) {
    TN_SCOPE;
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(1, 3), TN_F32), true);
    loop l = {.rpc = r, .context = tn_rpc_context_new(r)};
    l.loss = tn_sum_all(tn_rpc_forward(l.context, 1, "half", TN_VALUES(x), 0).v[0]);
    if (phases[phase].run == try_step) {
        tn_backward(l.loss);
    }
    rank_assert(tn_error() == TN_OK);
    pause_here();
    phases[phase].run(&l);
    rank_assert(failed_with(TN_EPEER, "rank 1 is gone"));
    tn_rpc_context_free(l.context);
}

static atomic_bool released;

static void release_rank(const tn_message *in, tn_message *out, void *user) {
    atomic_store(&released, true);
}

/* Rank 2 stays until rank 0 has called it: others still work. */
static int rank_1_dies(tn_group *world, const char *argument) {
    tn_linear half;
    tn_seed(1);
    tn_linear_init(&half, 3, 3, tn_linear_defaults());
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    tn_rpc_register(r, "count", count_values, NULL);
    tn_rpc_register(r, "half", run_half, &half);
    tn_rpc_register(r, "release", release_rank, NULL);
    tn_optim *opt = tn_sgd(&half, TN_WITH(tn_sgd, .lr = 0.1));
    tn_rpc_register_optim(r, opt);
    tn_rpc_start(r);
    if (tn_rpc_rank(r) == 0) {
        survive_rank_1(r, atoi(argument));
        tn_message *out = ask_rank(r, 2, "release", NULL, 0);
        rank_assert(out && tn_rpc_kept(r) == 0);
        tn_message_free(out);
    }
    rank_assert(tn_rpc_shutdown(r, 60) == TN_EPEER && failed_with(TN_EPEER, "rank 1 is gone"));
    for (int i = 0; tn_rpc_rank(r) == 2 && !atomic_load(&released) && i < 60000; i++) {
        usleep(1000);
    }
    tn_rpc_free(r);
    tn_optim_free(opt);
    tn_module_finish(&half);
    return 0;
}

TEST(test_killed_in_each_phase) {
    for (int i = 0; i < PHASES; i++) {
        char argument[8];
        snprintf(argument, sizeof(argument), "%d", i);
        ranks_job job = ranks_start(3, "rank_1_dies", argument, NULL);
        await_pause(&job, 0);
        stop_rank(&job, 1);
        kill(job.pid[0], SIGCONT);
        usleep(50000); /* most of the time it waits then */
        kill(job.pid[1], SIGKILL);
        ranks_result result = ranks_wait(&job, 60);
        result.status[1] = 0;
        if (!ranks_ok(&result)) {
            fail_msg("%s", phases[i].name);
        }
        ranks_free(&result);
    }
}

/* ---- All ------------------------------------------------------------------------------------- */

static const rank_entry bodies[] = {{"half_a_frame", half_a_frame}, {"rank_1_dies", rank_1_dies}};

int main(int argc, char **argv) {
    ranks_main(argc, argv, bodies, sizeof(bodies) / sizeof(bodies[0]));
    return tests_run(NULL, NULL);
}
