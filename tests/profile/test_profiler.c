/* The profiler: what is counted where, its schedule, regions, and the trace. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "tests/support/temp.h"

#include "core/allocator.h"
#include "profile/span.h"

#include <tern/sys/backend.h>
#include <tern/tern.h>

static tn_profiler_options limited_options(void) {
    tn_profiler_options options = tn_profiler_defaults();
    options.gbytes = 10;
    options.gflops = options.half_gflops = 100;
    return options;
}

/* ---- Reading what was recorded --------------------------------------------------------------- */

typedef struct search {
    tn__span_kind kind;
    const char *name, *path; /* path: of the modules around it; NULL: anywhere */
    int back;                /* 1: only in backward; 0: only outside; -1: both */
    tn__site sum;
} search;

static void find_site(const tn__site *site, void *user) {
    search *s = user;
    char path[128];
    bool back = false;
    tn__site_path(site, path, sizeof(path));
    for (const tn__site *up = site; up; up = up->up) {
        back |= up->kind == TN__SPAN_BACKWARD;
    }
    if (site->kind == s->kind && (!s->name || strcmp(site->name, s->name) == 0) &&
        (!s->path || strcmp(path, s->path) == 0) && (s->back < 0 || s->back == back)) {
        s->sum.calls += site->calls;
        s->sum.bytes += site->bytes;
        s->sum.flops += site->flops;
        s->sum.least += site->least;
    }
}

static tn__site sum_of(tn__span_kind kind, const char *name, const char *path, int back) {
    search s = {.kind = kind, .name = name, .path = path, .back = back};
    tn__sites_each(find_site, &s);
    return s.sum;
}

static int calls_of(tn__span_kind kind, const char *name) {
    return (int)sum_of(kind, name, NULL, -1).calls;
}

/* The text of a table; the caller frees. Not inline: gcc takes what is found in the text for a part
 * of the variable. */
__attribute__((noinline)) static char *table_text(tn_profiler_view view, int most) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    assert_non_null(file);
    assert_int_equal(tn_profiler_table(file, view, most), TN_OK);
    fclose(file);
    return text;
}

/* ---- A net ----------------------------------------------------------------------------------- */

typedef struct small_net {
    tn_module base;
    tn_linear fc1, fc2;
} small_net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    small_net *net = (small_net *)self;
    return tn_call(&net->fc2, tn_relu(tn_call(&net->fc1, x)));
}

static void net_init(small_net *net) {
    tn_module_init(net, "net", net_forward);
    tn_linear_init(&net->fc1, 6, 5, tn_linear_defaults());
    tn_linear_init(&net->fc2, 5, 3, tn_linear_defaults());
    tn_module_add(net, "fc1", &net->fc1);
    tn_module_add(net, "fc2", &net->fc2);
}

/* Makes the net and its optimiser; from here on what they do is recorded. */
static tn_optim *profile_net(small_net *net) {
    net_init(net);
    tn_optim *opt = tn_adamw(net, tn_adamw_defaults());
    assert_int_equal(tn_profiler_start(limited_options()), TN_OK);
    return opt;
}

static void net_step(small_net *net, tn_optim *opt) {
    TN_SCOPE;
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(4, 6), TN_F32), true);
    tn_backward(tn_sum_all(tn_call(net, x)));
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

TEST(nothing_is_seen_unasked) {
    tn_profiler_step();
    {
        TN_PROFILE_REGION("unseen");
        tn_exp(tn_ones(TN_DIMS(3), TN_F32));
    }
    assert_int_equal(tn__spans_count(), 0);
    assert_int_equal(tn_profiler_stop(), TN_ESTATE);
    assert_error(TN_ESTATE, "was not started");
}

TEST(modules_and_their_backward) {
    small_net net;
    tn_optim *opt = profile_net(&net);
    net_step(&net, opt);
    net_step(&net, opt);
    assert_int_equal(tn_profiler_stop(), TN_OK);
    net_step(&net, opt); /* not recorded */

    assert_int_equal(sum_of(TN__SPAN_MODULE, "net", "net", 0).calls, 2);
    assert_int_equal(sum_of(TN__SPAN_OP, "linear", "net.fc1", 0).calls, 2);
    assert_int_equal(sum_of(TN__SPAN_OP, "relu", "net", 0).calls, 2);
    assert_int_equal(sum_of(TN__SPAN_GRADIENT, "linear backward", "net.fc1", 1).calls, 2);
    assert_int_equal(sum_of(TN__SPAN_GRADIENT, "linear backward", "net.fc2", 1).calls, 2);
    assert_int_equal(sum_of(TN__SPAN_GRADIENT, "relu backward", "net", 1).calls, 2);
    assert_int_equal(sum_of(TN__SPAN_GRADIENT, "sum backward", "", 1).calls, 2);
    assert_int_equal(calls_of(TN__SPAN_BACKWARD, "backward"), 2);
    assert_int_equal(calls_of(TN__SPAN_OP, "adamw"), 2);

    char *modules = table_text(TN_PROFILER_MODULES, 10), *ops = table_text(TN_PROFILER_OPS, 3);
    assert_contains(modules, "\nnet.fc1 ");
    assert_contains(modules, "\nnet.fc2 ");
    assert_contains(ops, "% limit");
    assert_contains(ops, " more\n");
    assert_non_null(strstr(ops, "10.0 GB/s, 100.0 GFLOP/s"));
    free(modules);
    free(ops);
    tn_optim_free(opt);
    tn_module_finish(&net);
}

/* fc1 is (4, 6) (6, 5), fc2 (4, 5) (5, 3). */
TEST(work_of_products) {
    small_net net;
    tn_optim *opt = profile_net(&net);
    net_step(&net, opt);
    tn_profiler_stop();
    tn__site forward = sum_of(TN__SPAN_KERNEL, NULL, "net.fc1", 0);
    tn__site backward = sum_of(TN__SPAN_KERNEL, NULL, "net.fc1", 1);
    assert_float_equal(forward.flops, 2 * 4 * 6 * 5, 0);
    assert_float_equal(backward.flops, 2 * (2 * 4 * 6 * 5), 0); /* of x and of the weight */
    assert_float_equal(forward.bytes, 4 * (4 * 6 + 6 * 5 + 5 + 4 * 5), 0);
    /* dx, dw, db are written; dy, x and w are read */
    assert_float_equal(backward.bytes, 4 * (4 * 6 + 6 * 5 + 5 + 4 * 5 + 4 * 6 + 6 * 5), 0);
    assert_float_equal(forward.least, fmax(forward.bytes / 10e9, forward.flops / 100e9), 1e-18);
    tn_optim_free(opt);
    tn_module_finish(&net);
}

/* FLOPs of the operation's kernel, forward (0), backward (1) or both (-1). */
static double flops_of(const char *op, int back) {
    char name[64];
    snprintf(name, sizeof(name), "%s %s", tn_backend_of(tn_default_device())->name, op);
    return sum_of(TN__SPAN_KERNEL, name, NULL, back).flops;
}

TEST(work_of_convolutions) {
    tn_conv_options o = tn_conv_strided(2, 1);
    o.groups = 2;
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(3, 4, 9, 7), TN_F32), true);
    tn_tensor *w = tn_set_requires_grad(tn_ones(TN_DIMS(6, 2, 3, 3), TN_F32), true);
    assert_int_equal(tn_profiler_start(limited_options()), TN_OK);
    tn_backward(tn_sum_all(tn_conv2d_op(x, w, NULL, o))); /* (3, 6, 5, 4) */
    tn_profiler_stop();
    double product = 2.0 * (3 * 5 * 4) * (6 * 2 * 3 * 3);
    assert_float_equal(flops_of("conv", 0), product, 0);
    assert_float_equal(flops_of("conv", 1), 2 * product, 0);

    assert_int_equal(tn_profiler_start(limited_options()), TN_OK);
    tn_conv_transpose2d_op(tn_ones(TN_DIMS(3, 6, 5, 4), TN_F32), w, NULL, o);
    tn_profiler_stop();
    assert_float_equal(flops_of("conv_transpose", -1), product, 0);
}

TEST(work_of_recurrent_nets) {
    if (!tn_backend_of(tn_default_device())->recurrent_backward) {
        skip(); /* made of operations, which each count their own work */
    }
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(5, 2, 3), TN_F32), true);
    tn_tensor *ih = tn_set_requires_grad(tn_ones(TN_DIMS(4 * 7, 3), TN_F32), true);
    tn_tensor *hh = tn_set_requires_grad(tn_ones(TN_DIMS(4 * 7, 7), TN_F32), true);
    tn_rnn_weights weights = {.weight_ih = ih, .weight_hh = hh};
    assert_int_equal(tn_profiler_start(limited_options()), TN_OK);
    tn_backward(tn_sum_all(tn_lstm_op(x, NULL, NULL, weights, NULL, false, NULL, NULL)));
    tn_profiler_stop();
    double product = 2.0 * (5 * 2) * (4 * 7 * 3 + 4 * 7 * 7);
    assert_float_equal(flops_of("lstm", 0), product, 0);
    assert_float_equal(flops_of("lstm", 1), 2 * product, 0);
}

TEST(work_of_others) {
    tn_tensor *a = tn_ones(TN_DIMS(7, 8), TN_F32), *row = tn_ones(TN_DIMS(8), TN_F32);
    tn_tensor *table = tn_ones(TN_DIMS(100, 8), TN_F32);
    tn_tensor *index = tn_zeros(TN_DIMS(3), TN_I64);
    tn_tensor *wide = tn_expand(row, TN_DIMS(7, 8));
    assert_int_equal(tn_profiler_start(limited_options()), TN_OK);
    tn_add(a, wide);
    tn_embedding_op(table, index);
    tn_matmul(tn_ones(TN_DIMS(2, 4, 5), TN_F32), tn_ones(TN_DIMS(5, 6), TN_F32));
    tn_add_(a, row);
    tn_reshape(a, TN_DIMS(56));
    tn_profiler_stop();
    search add = {.kind = TN__SPAN_KERNEL, .back = -1};
    tn__sites_each(find_site, &add);
    /* a repeated row is read once; a table only where it is looked up */
    double adds = 4 * (56 + 8 + 56), rows = 4 * (3 * 8) * 2 + 8 * 3;
    double product = 4 * (2 * 4 * 5 + 5 * 6 + 2 * 4 * 6);
    assert_float_equal(add.sum.bytes, adds + rows + product, 0);
    assert_float_equal(sum_of(TN__SPAN_OP, "add_", NULL, -1).bytes, 4 * (56 * 2 + 8), 0);
    assert_float_equal(add.sum.flops, 56 + 800 + 2 * 2 * 4 * 5 * 6, 0);
    assert_int_equal(calls_of(TN__SPAN_OP, "reshape"), 1); /* a view: no kernel */
}

/* ---- The schedule ---------------------------------------------------------------------------- */

static int rounds, steps_done;
static int kept[8][3]; /* of each cycle: steps and calls kept, steps done until then */

static void when_ready(void *user) {
    assert_ptr_equal(user, &rounds);
    assert_true(rounds < 8);
    kept[rounds][0] = calls_of(TN__SPAN_STEP, "step");
    kept[rounds][1] = calls_of(TN__SPAN_OP, "exp");
    kept[rounds++][2] = steps_done;
}

/* As with torch.profiler.schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2), steps 3, 4
 * and 7, 8 are kept. Step i calls exp i times. */
TEST(schedule_of_steps) {
    tn_profiler_options options = limited_options();
    options.skip_first = options.wait = options.warmup = 1;
    options.active = options.repeat = 2;
    options.ready = when_ready;
    options.user = &rounds;
    tn_tensor *x = tn_ones(TN_DIMS(3), TN_F32);
    rounds = 0;
    assert_int_equal(tn_profiler_start(options), TN_OK);
    for (steps_done = 0; steps_done < 14;) {
        TN_SCOPE;
        for (int i = 0; i < steps_done; i++) {
            tn_exp(x);
        }
        steps_done++;
        tn_profiler_step();
    }
    assert_int_equal(tn_profiler_stop(), TN_OK);
    assert_int_equal(rounds, 2);
    static const int wanted[2][3] = {{2, 3 + 4, 5}, {2, 7 + 8, 9}};
    assert_memory_equal(kept, wanted, sizeof(wanted));
    assert_int_equal(calls_of(TN__SPAN_OP, "exp"), 7 + 8); /* results stay after the end */
    const char *path = temp_path("steps.json");
    assert_int_equal(tn_profiler_save(path), TN_OK);
    size_t bytes;
    char *text = (char *)temp_read(path, &bytes);
    int steps = 0;
    for (const char *at = text; (at = strstr(at, "\"cat\": \"step\"")); at++) {
        steps++;
    }
    assert_int_equal(steps, 2);
    free(text);
}

TEST(steps_without_an_end) {
    tn_profiler_options options = limited_options();
    options.warmup = 2;
    options.active = 1;
    tn_tensor *x = tn_ones(TN_DIMS(3), TN_F32);
    assert_int_equal(tn_profiler_start(options), TN_OK);
    for (int step = 0; step < 7; step++) {
        tn_exp(x);
        assert_int_equal(calls_of(TN__SPAN_OP, "exp"), step < 2 ? 0 : 1);
        tn_profiler_step();
    }
    tn_profiler_stop();
    char *text = table_text(TN_PROFILER_OPS, 10);
    assert_non_null(strstr(text, "1 step,"));
    free(text);
}

TEST(wrong_calls) {
    tn_profiler_options options = limited_options();
    options.wait = -1;
    assert_int_equal(tn_profiler_start(options), TN_EVALUE);
    assert_error(TN_EVALUE, "an option is negative");
    options.wait = options.active = INT64_MAX;
    assert_int_equal(tn_profiler_start(options), TN_EVALUE);
    assert_error(TN_EVALUE, "above 2^40");
    options = limited_options();
    options.gflops = NAN;
    assert_int_equal(tn_profiler_start(options), TN_EVALUE);
    assert_error(TN_EVALUE, "an option is negative");
    assert_int_equal(tn_profiler_start(limited_options()), TN_OK);
    assert_int_equal(tn_profiler_start(limited_options()), TN_ESTATE);
    assert_error(TN_ESTATE, "is already running");
    assert_null(tn_profile_region_begin("caf\xe9"));
    assert_error(TN_EVALUE, "profile_region_begin: the name \"caf\xe9\" is not UTF-8");
    tn_profiler_stop();
    assert_int_equal(tn_profiler_table(NULL, TN_PROFILER_OPS, 1), TN_EVALUE);
    assert_error(TN_EVALUE, "the file is NULL");
    assert_int_equal(tn_profiler_table(stderr, (tn_profiler_view)7, 1), TN_EVALUE);
    assert_error(TN_EVALUE, "the view is unknown");
    assert_int_equal(tn_profiler_save("/nowhere/at/all.json"), TN_EIO);
    assert_error(TN_EIO, "/nowhere/at/all.json");
}

/* ---- Regions and threads --------------------------------------------------------------------- */

static void *work_elsewhere(void *user) {
    TN_PROFILE_REGION("elsewhere");
    tn_drop(tn_exp(user));
    return NULL;
}

TEST(regions_of_two_threads) {
    tn_tensor *x = tn_ones(TN_DIMS(3), TN_F32);
    pthread_t other;
    tn_profiler_start(limited_options());
    {
        TN_PROFILE_REGION("outer \"part\"");
        tn_exp(x);
        TN_PROFILE_REGION("inner");
        tn_log(x);
        assert_int_equal(pthread_create(&other, NULL, work_elsewhere, x), 0);
        assert_int_equal(pthread_join(other, NULL), 0);
    }
    tn_profiler_stop();
    assert_int_equal(calls_of(TN__SPAN_REGION, "outer \"part\""), 1);
    assert_int_equal(calls_of(TN__SPAN_REGION, "inner"), 1);
    assert_int_equal(calls_of(TN__SPAN_OP, "exp"), 2);
    const char *path = temp_path("regions.json");
    assert_int_equal(tn_profiler_save(path), TN_OK);
    size_t bytes;
    char *text = (char *)temp_read(path, &bytes);
    assert_contains(text, "{\"name\": \"outer \\\"part\\\"\", \"cat\": \"region\", \"ph\": \"X\", "
                          "\"pid\": 0, \"tid\": \"main\"");
    assert_contains(text, "\"tid\": \"thread 2\"");
    assert_contains(text, "\"what\": \"[3]\", \"bytes\": 24, \"GB/s\": ");
    free(text);
}

/* A region that began before the kept steps is not counted; what runs inside it is. */
TEST(region_around_the_start) {
    tn_tensor *x = tn_ones(TN_DIMS(3), TN_F32);
    tn_profiler_options options = limited_options();
    options.warmup = options.active = 1;
    tn_profiler_start(options);
    {
        TN_PROFILE_REGION("around");
        tn_exp(x);
        tn_profiler_step();
        tn_exp(x);
    }
    {
        TN_PROFILE_REGION("cut");
        tn_exp(x);
        tn_profiler_stop();
    }
    assert_int_equal(calls_of(TN__SPAN_OP, "exp"), 2);
    assert_int_equal(calls_of(TN__SPAN_REGION, "around"), 0);
    assert_int_equal(calls_of(TN__SPAN_REGION, "cut"), 0);
}

/* A region inside itself counts once in its total. */
TEST(region_inside_itself) {
    tn_profiler_start(limited_options());
    {
        TN_PROFILE_REGION("again");
        TN_PROFILE_REGION("again");
        TN_PROFILE_REGION("again");
        tn_exp(tn_ones(TN_DIMS(100000), TN_F64));
    }
    double seconds = tn__spans_seconds();
    tn_profiler_stop();
    char *text = table_text(TN_PROFILER_OPS, 10);
    const char *row = strstr(text, "\nagain ");
    long long calls;
    double total, own;
    assert_non_null(row);
    assert_int_equal(sscanf(row, "\nagain %lld %lf %lf", &calls, &total, &own), 3);
    assert_int_equal(calls, 3);
    assert_true(total <= seconds * 1e3 + 1e-3 && own <= total + 1e-3);
    free(text);
}

/* ---- Rare cases ------------------------------------------------------------------------------ */

/* Operations that recompute runs again in backward are counted for the same modules. */
TEST(recomputed_modules) {
    small_net net;
    tn_optim *opt = profile_net(&net);
    tn_module_set_recompute(&net, true);
    net_step(&net, opt);
    tn_profiler_stop();
    assert_int_equal(sum_of(TN__SPAN_OP, "linear", "net.fc1", 0).calls, 1);
    assert_int_equal(sum_of(TN__SPAN_OP, "linear", "net.fc1", 1).calls, 1);
    assert_int_equal(sum_of(TN__SPAN_GRADIENT, "linear backward", "net.fc1", 1).calls, 1);
    assert_int_equal(sum_of(TN__SPAN_GRADIENT, "linear backward", NULL, 1).calls, 2);
    tn_optim_free(opt);
    tn_module_finish(&net);
}

/* Without memory for sites, less is recorded, and nothing else changes. */
TEST(no_memory_for_sites) {
    tn_profiler_start(limited_options());
    tn__alloc_fail_at(0);
    { TN_PROFILE_REGION("no memory for this"); }
    tn__alloc_fail_at(1);
    { TN_PROFILE_REGION("nor for this"); }
    tn__alloc_fail_at(-1);
    tn_profiler_stop();
    assert_int_equal(calls_of(TN__SPAN_REGION, NULL), 0);
}
