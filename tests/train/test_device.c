/* Training on a device: a small GPT as on the CPU, the same bits after a resume, and what goes
 * wrong on the way. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tern/tern.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

enum { STEPS = 6, VOCAB = 17, LENGTH = 8 };

static tn_device device;

static int clear_device(void **state) {
    tn_error_clear();
    tn_set_default_device(tn_cpu());
    return 0;
}

typedef struct run {
    tn_gpt gpt;
    tn_optim *optim;
    tn_loader *loader;
    tn_generator *generator;
} run;

static void open_run(run *r, tn_device where, double dropout) {
    TN_SCOPE;
    int32_t tokens[200];
    for (int i = 0; i < 200; i++) {
        tokens[i] = (int32_t)(i * i % VOCAB);
    }
    tn_set_default_device(where);
    tn_seed(11);
    tn_gpt_init(&r->gpt, TN_WITH(tn_gpt, .vocab = VOCAB, .context = LENGTH, .layers = 2, .heads = 2,
                                 .width = 16, .dropout = dropout));
    r->optim = tn_adamw(&r->gpt, TN_WITH(tn_adamw, .lr = 1e-2));
    r->loader = tn_loader_new(tn_token_dataset(tokens, 200, LENGTH), tn_random_sampler(5),
                              TN_WITH(tn_loader, .batch = 4, .epochs = 0, .threads = 1));
    r->generator = tn_default_generator();
    assert_int_equal(tn_error(), TN_OK);
}

static void close_run(run *r) {
    tn_loader_free(r->loader);
    tn_optim_free(r->optim);
    tn_module_finish(&r->gpt);
    tn_set_default_device(tn_cpu());
}

/* One step; its loss, read before the weights change. */
static double train_step(run *r) {
    TN_SCOPE;
    tn_batch b;
    if (!tn_loader_next(r->loader, &b)) { return NAN; }
    tn_tensor *loss = tn_lm_loss(&r->gpt, b.x, b.y);
    tn_backward(loss);
    tn_optim_clip(r->optim, 1.0);
    double value = tn_item(loss);
    tn_optim_step(r->optim);
    tn_optim_zero_grad(r->optim);
    return value;
}

static tn_checkpoint checkpoint_of(run *r) {
    return (tn_checkpoint){
        .model = &r->gpt, .optim = r->optim, .loader = r->loader, .generator = r->generator};
}

/* The weights, one after the other, on the host. */
typedef struct weights {
    float *at;
    int64_t count;
} weights;

static bool take_weight(const tn_entry *entry, void *user) {
    weights *w = user;
    tn_copy_out(*entry->field, w->at + w->count);
    w->count += tn_count(*entry->field);
    return true;
}

static weights weights_of(run *r) {
    weights w = {malloc((size_t)tn_module_count(&r->gpt) * sizeof(float)), 0};
    assert_non_null(w.at);
    tn_module_each(&r->gpt, (tn_walk){0}, take_weight, &w);
    assert_int_equal(tn_error(), TN_OK);
    return w;
}

static bool same_weights(weights a, weights b) {
    return a.count == b.count && memcmp(a.at, b.at, (size_t)a.count * sizeof(float)) == 0;
}

static bool is_on(const tn_tensor *t, tn_device where) {
    return tn_device_of(t).kind == where.kind && tn_device_of(t).index == where.index;
}

/* ---- As on the CPU --------------------------------------------------------------------------- */

/* The same initial bits and dropout masks; after that only rounding differs. */
TEST_WITH(as_on_the_cpu, NULL, clear_device) {
    run a, b;
    double loss[STEPS];
    open_run(&a, tn_cpu(), 0.1);
    weights host = weights_of(&a);
    for (int i = 0; i < STEPS; i++) {
        loss[i] = train_step(&a);
    }
    close_run(&a);
    open_run(&b, device, 0.1);
    assert_true(is_on(b.gpt.stem.wte.weight, device));
    weights there = weights_of(&b);
    assert_true(same_weights(host, there));
    for (int i = 0; i < STEPS; i++) {
        assert_float_equal(train_step(&b), loss[i], 2e-4 * loss[i]);
    }
    assert_true(loss[STEPS - 1] < loss[0]);
    assert_true(is_on(tn_module_get(&b.gpt, "h.1.mlp.c_fc.weight"), device));
    assert_int_equal(tn_error(), TN_OK);
    close_run(&b);
    free(host.at);
    free(there.at);
}

TEST_WITH(goes_on_bit_for_bit, NULL, clear_device) {
    const char *path = temp_path("run");
    run a, b;
    open_run(&a, device, 0.1);
    double loss[STEPS];
    for (int i = 0; i < STEPS; i++) {
        if (i == STEPS / 2) {
            tn_checkpoint c = checkpoint_of(&a);
            assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
        }
        loss[i] = train_step(&a);
    }
    weights end = weights_of(&a);
    close_run(&a);
    open_run(&b, device, 0.1);
    train_step(&b);
    tn_checkpoint c = checkpoint_of(&b);
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    for (int i = STEPS / 2; i < STEPS; i++) {
        assert_true(train_step(&b) == loss[i]);
    }
    weights again = weights_of(&b);
    assert_true(same_weights(end, again));
    close_run(&b);
    free(end.at);
    free(again.at);
}

/* A file from one device continues on another. */
TEST_WITH(from_one_device_to_another, NULL, clear_device) {
    const char *path = temp_path("moved");
    run a, b;
    open_run(&a, device, 0.0);
    train_step(&a);
    tn_checkpoint c = checkpoint_of(&a);
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    weights saved = weights_of(&a);
    double loss = train_step(&a);
    close_run(&a);
    open_run(&b, tn_cpu(), 0.0);
    c = checkpoint_of(&b);
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    weights loaded = weights_of(&b);
    assert_true(same_weights(saved, loaded));
    assert_float_equal(train_step(&b), loss, 2e-4 * loss);
    close_run(&b);
    free(saved.at);
    free(loaded.at);
}

TEST_WITH(recompute_gives_the_same_bits, NULL, clear_device) {
    weights w[2];
    for (int again = 0; again < 2; again++) {
        run r;
        open_run(&r, device, 0.1);
        tn_module_set_recompute(&r.gpt.h[0], again);
        tn_module_set_recompute(&r.gpt.h[1], again);
        train_step(&r);
        train_step(&r);
        w[again] = weights_of(&r);
        close_run(&r);
    }
    assert_true(same_weights(w[0], w[1]));
    free(w[0].at);
    free(w[1].at);
}

TEST_WITH(generates_the_same, NULL, clear_device) {
    int32_t ids[3] = {1, 4, 9};
    tn_generate_options o = TN_WITH(tn_generate, .max_new = 12, .temperature = 0.0);
    tn_prompt prompts[] = {{ids, 3}, {ids, 1}};
    tn_generated here[2], there[2];
    for (int k = 0; k < 2; k++) {
        run r;
        open_run(&r, k ? device : tn_cpu(), 0.0);
        train_step(&r);
        assert_int_equal(tn_generate(&r.gpt, prompts, 2, o, k ? there : here), TN_OK);
        close_run(&r);
    }
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(here[i].tokens.ids, there[i].tokens.ids, 12 * sizeof(int32_t));
    }
    tn_generated_free(here, 2);
    tn_generated_free(there, 2);
}

/* ---- Moving a model -------------------------------------------------------------------------- */

TEST_WITH(moves_models, NULL, clear_device) {
    TN_SCOPE;
    tn_sequential net;
    tn_linear in, out;
    tn_sequential_init(&net);
    tn_linear_init(&in, 4, 4, tn_linear_defaults());
    tn_linear_init(&out, 4, 4, tn_linear_defaults());
    tn_sequential_add(&net, &in);
    tn_sequential_add(&net, &out);
    tn_module_tie(&net, "1.weight", "0.weight");
    tn_set_grad_dtype(out.bias, TN_F64);
    tn_set_requires_grad(out.bias, false);
    tn_tensor *x = tn_ones(TN_DIMS(2, 4), TN_F32), *y = tn_call(&net, x);
    tn_backward(tn_sum_all(y));
    assert_int_equal(tn_module_to(&net, device), TN_OK);
    assert_ptr_equal(in.weight, out.weight);
    assert_true(is_on(in.weight, device) && is_on(out.bias, device) && tn_is_leaf(in.bias));
    assert_true(tn_requires_grad(in.weight));
    assert_null(tn_grad_of(in.weight));
    assert_true(tn_all_close(tn_to(tn_call(&net, tn_to(x, device)), tn_cpu()), y, 1e-6, 1e-6));
    assert_true(tn_is_inert(tn_call(&net, x)));
    assert_error(TN_EDEVICE, "x [2, 4] is on cpu but weight [4, 4] is on cuda:0");
    assert_false(tn_requires_grad(out.bias));
    tn_set_requires_grad(out.bias, true);
    tn_backward(tn_sum_all(tn_call(&net, tn_to(x, device))));
    assert_int_equal(tn_dtype_of(tn_grad_of(out.bias)), TN_F64); /* as if never frozen or moved */
    tn_optim *opt = tn_sgd(&net, tn_sgd_defaults());
    assert_fails(tn_module_to(&net, tn_cpu()), TN_ESTATE, "modules are moved first");
    tn_optim_free(opt);
    assert_int_equal(tn_module_to(&net, tn_cpu()), TN_OK);
    assert_true(is_on(in.weight, tn_cpu()));
    assert_fails(tn_module_to(&net, tn_cuda(99)), TN_EDEVICE, "");
    tn_module_finish(&net);
}

/* ---- What goes wrong ------------------------------------------------------------------------- */

static tn_values too_much(tn_module *m, tn_values in, tn_values out, void *user) {
    if (*(bool *)user) { tn_empty(TN_DIMS(INT64_C(1) << 42), TN_F32); }
    return out;
}

/* Memory runs out in the middle of a step: an error that says how much is in use, nothing steps,
 * nothing is leaked, and the run continues. */
TEST_WITH(out_of_memory, NULL, clear_device) {
    run r;
    open_run(&r, device, 0.0);
    train_step(&r);
    bool greedy = true;
    tn_module_hook(&r.gpt.h[1], (tn_module_hooks){.after = too_much, .user = &greedy});
    tn_optim_zero_grad(r.optim);
    int64_t live = tn_live_tensors(), bytes = tn_device_memory(device).allocated;
    weights before = weights_of(&r);
    for (int i = 0; i < 2; i++) {
        train_step(&r);
        assert_error(TN_ENOMEM, "no memory for 17592186044416 bytes on cuda:0 (");
    }
    assert_in_range(tn_live_tensors(), 1, live + 3); /* the batches in the loader */
    assert_true(tn_device_memory(device).allocated <= bytes + 3 * 4096);
    weights after = weights_of(&r);
    assert_true(same_weights(before, after));
    greedy = false;
    assert_true(isfinite(train_step(&r)));
    assert_int_equal(tn_error(), TN_OK);
    close_run(&r);
    free(before.at);
    free(after.at);
}

/* Four tokens and their labels; the third label is a parameter. */
typedef struct example {
    tn_tensor *x, *y;
} example;

static example example_with(int64_t label) {
    return (example){tn_from_data((int64_t[4]){1, 2, 3, 4}, TN_DIMS(1, 4), TN_I64),
                     tn_from_data((int64_t[4]){1, 2, label, 4}, TN_DIMS(1, 4), TN_I64)};
}

/* After a step that was refused: no weight has changed, and training continues. Ends the run. */
static void expect_unchanged(run *r, weights before) {
    weights after = weights_of(r);
    assert_true(same_weights(before, after));
    assert_true(isfinite(train_step(r)));
    close_run(r);
    free(before.at);
    free(after.at);
}

/* A label that does not exist is noticed when the host next waits, at the latest when the loss is
 * read; a step after that is refused. */
TEST_WITH(wrong_label, NULL, clear_device) {
    run r;
    open_run(&r, device, 0.0);
    train_step(&r);
    weights before = weights_of(&r);
    {
        TN_SCOPE;
        example e = example_with(VOCAB);
        tn_tensor *loss = tn_lm_loss(&r.gpt, e.x, e.y);
        tn_backward(loss);
        assert_true(isnan(tn_item(loss)));
        assert_int_equal(tn_error(), TN_EINDEX);
        assert_contains(tn_error_message(), "17 at position 2");
        assert_int_equal(tn_optim_step(r.optim), TN_EINDEX);
        tn_optim_zero_grad(r.optim);
        tn_error_clear();
    }
    expect_unchanged(&r, before);
}

/* ---- A wrong label without TERN_SYNC --------------------------------------------------------- */

/* The errors of kernels come late: when the host next waits. This part runs in a process of its
 * own, whose environment has no TERN_SYNC. */

/* The operation that waited raises the error. */
static void expect_late_error(const char *operation) {
    char text[128];
    snprintf(
        text, sizeof(text),
        "%s: cuda:0: index 17 at position 2 is out of range (noticed late; the last kernels were ",
        operation);
    assert_int_equal(tn_error(), TN_EINDEX);
    assert_contains(tn_error_message(), text);
    assert_contains(tn_error_message(), "TERN_SYNC=1 finds the call");
}

/* Something waits between backward and the step: it raises the error, the step is refused, and no
 * weight changes. */
TEST_WITH(late_before_the_step, NULL, clear_device) {
    for (int clips = 0; clips < 2; clips++) {
        run r;
        open_run(&r, device, 0.0);
        train_step(&r);
        weights before = weights_of(&r);
        {
            TN_SCOPE;
            example e = example_with(VOCAB);
            tn_tensor *loss = tn_lm_loss(&r.gpt, e.x, e.y);
            assert_int_equal(tn_backward(loss), TN_OK);
            assert_int_equal(tn_error(), TN_OK);
            assert_true(isnan(clips ? tn_optim_clip(r.optim, 1.0) : tn_item(loss)));
            expect_late_error(clips ? "copy_out" : "item"); /* reading the norm */
            assert_int_equal(tn_optim_step(r.optim), TN_EINDEX);
            tn_optim_zero_grad(r.optim);
            tn_error_clear();
        }
        expect_unchanged(&r, before);
    }
}

/* The mean over all rows, including the ignored one. */
static tn_tensor *mean_of_all_rows(run *r, example e) {
    tn_tensor *sum = tn_cross_entropy(tn_call(&r->gpt, e.x), e.y, TN_SUM);
    return tn_mul_scalar(sum, 1.0 / 4);
}

/* Nothing waits: the step uses a gradient without the bad row. The error comes
 * when the loss is read; after that the run continues. */
TEST_WITH(late_after_the_step, NULL, clear_device) {
    weights w[2], end[2];
    double next[2];
    for (int wrong = 0; wrong < 2; wrong++) {
        run r;
        open_run(&r, device, 0.0);
        train_step(&r);
        {
            TN_SCOPE;
            example e = example_with(wrong ? VOCAB : tn_cross_entropy_defaults().ignore_index);
            tn_tensor *loss = wrong ? tn_lm_loss(&r.gpt, e.x, e.y) : mean_of_all_rows(&r, e);
            assert_int_equal(tn_backward(loss), TN_OK);
            assert_int_equal(tn_optim_step(r.optim), TN_OK);
            tn_optim_zero_grad(r.optim);
            assert_int_equal(tn_error(), TN_OK);
            assert_true(isnan(tn_item(loss)) == wrong);
            if (wrong) {
                expect_late_error("item");
                assert_fails(tn_optim_step(r.optim), TN_EINDEX, "");
            }
        }
        w[wrong] = weights_of(&r);
        next[wrong] = train_step(&r);
        assert_int_equal(tn_error(), TN_OK);
        end[wrong] = weights_of(&r);
        close_run(&r);
    }
    assert_true(same_weights(w[0], w[1]) && same_weights(end[0], end[1]));
    assert_true(isfinite(next[0]) && next[0] == next[1]);
    for (int i = 0; i < 2; i++) {
        free(w[i].at);
        free(end[i].at);
    }
}

static const char LATE[] = "late"; /* this program's argument */

TEST_WITH(wrong_label_comes_late, NULL, clear_device) {
    pid_t child = fork();
    if (child == 0) {
        unsetenv("TERN_SYNC");
        setenv("CMOCKA_MESSAGE_OUTPUT", "STDOUT", 1);
        dup2(STDERR_FILENO, STDOUT_FILENO); /* this program's output is TAP */
        execl("/proc/self/exe", "test_device", LATE, (char *)NULL);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- A file in DeepSpeed's format ------------------------------------------------------------ */

static bool state_is_there(const char *name, tn_tensor *state, void *user) {
    bool counts = strstr(name, ".exp_avg") == NULL; /* steps, on the host in any case */
    assert_true(counts || is_on(state, *(const tn_device *)user));
    return true;
}

/* Its state is where the shards are; the model runs on the device in any case. */
TEST_WITH(offloads_by_a_file, NULL, clear_device) {
    static const char *const offloads[] = {
        "\"stage\": 3", "\"stage\": 1, \"offload_optimizer\": {\"device\": \"cpu\"}",
        "\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}"};
    for (int i = 0; i < 3; i++) {
        char text[256];
        snprintf(text, sizeof(text),
                 "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\"}, "
                 "\"zero_optimization\": {%s}}",
                 offloads[i]);
        const char *path = temp_path("ds.json");
        temp_write(path, text, strlen(text));
        run r;
        open_run(&r, device, 0);
        tn_optim_free(r.optim);
        tn_deepspeed *d = tn_deepspeed_new(&r.gpt, NULL, path);
        r.optim = NULL;
        for (int k = 0; k < 2; k++) {
            TN_SCOPE;
            tn_batch b;
            assert_true(tn_loader_next(r.loader, &b));
            tn_tensor *loss = tn_lm_loss(&r.gpt, b.x, b.y);
            assert_true(is_on(loss, device));
            tn_deepspeed_backward(d, loss);
            assert_int_equal(tn_deepspeed_step(d), TN_OK);
        }
        tn_device home = i > 0 ? tn_cpu() : device;
        tn_optim_each(tn_deepspeed_optim(d), state_is_there, &home);
        tn_deepspeed_free(d);
        close_run(&r);
    }
}

int main(int argc, char **argv) {
    if (tn_device_count(TN_CUDA) < 1) {
        printf("1..0 # SKIP no CUDA device: %s\n", tn_device_why(TN_CUDA));
        return 0;
    }
    device = tn_cuda(0);
    tn_set_default_device(tn_cpu());
    if (argc > 1 && strcmp(argv[1], LATE) == 0) {
        cmocka_set_test_filter("late_*");
        return tests_run(NULL, NULL);
    }
    cmocka_set_skip_filter("late_*");
    return tests_run(NULL, NULL);
}
