/* A step of a model at its full size, for tests/cuda/test_counts.py: count_step MODEL
 *
 *     gpt2, gpt2-xl    a training step in bf16, clipped: B 64, T 1024; B 16
 *     gpt2-micro       a second micro-batch of gpt2's step: forward and backward
 *     llama, llama-q8  the third token after a prompt of 1000 by Llama 3.2 1B in bf16; in 8 bits
 *     resnet           a training step of examples/15_resnet.c at the paper's width: 256 images
 *
 * It runs where the emulator only records (tests/emulator/record.cc), and marks the phases of the
 * step in the record. A step before it makes what later ones find made: state, plans.
 */
#define _GNU_SOURCE
#include "models/language.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/loaded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int example_main(int argc, char **argv);
#define main example_main
#include "examples/15_resnet.c"
#undef main

/* What is recorded from now on belongs to this phase; NULL: to none. */
static void begin_phase(const char *name) {
    __typeof__(&tern_emulator_record) record = NULL;
    void *emulator = loaded_emulator();
    if (emulator) { *(void **)&record = dlsym(emulator, "tern_emulator_record"); }
    char line[64];
    snprintf(line, sizeof(line), "phase %s", name ? name : "-");
    if (!record || !record(line)) {
        fputs("count_step: nothing records (run tests/cuda/test_counts.py)\n", stderr);
        exit(1);
    }
}

/* Gives a deferred parameter elements without drawing any, which the host would do. */
static bool fill_entry(const tn_entry *entry, void *user) {
    tn_copy_(*entry->field, tn_zeros(tn_shape(*entry->field), tn_dtype_of(*entry->field)));
    return true;
}

static void fill_model(void *m) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_module_each(m, (tn_walk){0}, fill_entry, NULL);
}

/* After the forward: the rest of a step. */
static void finish_step(tn_optim *opt, tn_tensor *loss, bool clips) {
    begin_phase("backward");
    tn_backward(loss);
    if (clips) {
        begin_phase("clip");
        tn_optim_clip_later(opt, 1.0);
    }
    begin_phase("optimiser");
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
    begin_phase("loss");
    tn_item(loss);
    begin_phase(NULL);
}

/* A micro-batch of two. */
static void run_micro(tn_gpt *gpt, tn_tensor *x, tn_tensor *y) {
    TN_SCOPE;
    tn_tensor *loss = tn_mul_scalar(tn__lm_losses(gpt, x, y, TN_MEAN, 0.5), 0.5);
    begin_phase("backward");
    tn_backward(loss);
}

static void count_gpt(int layers, int heads, int64_t width, int64_t batch, bool micro) {
    const int64_t T = 1024;
    static tn_gpt gpt;
    {
        TN_DEFER_INIT;
        tn_gpt_init(&gpt, TN_WITH(tn_gpt, .vocab = 50304, .layers = layers, .heads = heads,
                                  .width = width));
    }
    tn_module_set_precision(&gpt, tn_precision_defaults());
    fill_model(&gpt);
    tn_optim *opt = tn_adamw(&gpt, TN_WITH(tn_adamw, .weight_decay = 0.1));
    tn_tensor *x = tn_zeros(TN_DIMS(batch, T), TN_I64), *y = tn_zeros(TN_DIMS(batch, T), TN_I64);
    for (int step = 0; step < 2; step++) {
        TN_SCOPE;
        begin_phase("forward");
        if (micro) {
            run_micro(&gpt, x, y);
            begin_phase(NULL);
        } else {
            finish_step(opt, tn_lm_loss(&gpt, x, y), true);
        }
    }
    tn_optim_free(opt);
    tn_module_finish(&gpt);
}

static void count_resnet(void) {
    static resnet net;
    resnet_init(&net, 64, CLASSES);
    tn_module_set_precision(&net, tn_precision_defaults());
    tn_optim *opt = tn_adamw(&net, tn_adamw_defaults());
    tn_tensor *x = tn_zeros(TN_DIMS(256, 3, SIDE, SIDE), TN_F32),
              *y = tn_zeros(TN_DIMS(256), TN_I64);
    for (int step = 0; step < 2; step++) {
        TN_SCOPE;
        begin_phase("forward");
        finish_step(opt, tn_cross_entropy(tn_call(&net, x), y, TN_MEAN), false);
    }
    tn_optim_free(opt);
    tn_module_finish(&net);
}

static bool mark_token(const tn_generated_token *token, void *user) {
    begin_phase(token->count == 2 ? "token" : NULL);
    return true;
}

static void count_token(bool bytes) {
    static tn_llama llama;
    static int32_t ids[1000];
    {
        TN_DEFER_INIT;
        tn_llama_init(&llama, TN_WITH(tn_llama, .dtype = TN_BF16));
    }
    fill_model(&llama);
    if (bytes) { tn_quantize(&llama); }
    tn_prompt prompt = {ids, 1000};
    tn_generated out;
    tn_generate(&llama, &prompt, 1,
                TN_WITH(tn_generate, .max_new = 3, .temperature = 0, .on_token = mark_token), &out);
    tn_generated_free(&out, 1);
    tn_module_finish(&llama);
}

int main(int argc, char **argv) {
    const char *model = argc == 2 ? argv[1] : "";
    tn_on_error(tn_error_exit);
    tn_set_default_device(tn_device_named("cuda"));
    TN_SCOPE;
    if (strcmp(model, "gpt2") == 0) {
        count_gpt(12, 12, 768, 64, false);
    } else if (strcmp(model, "gpt2-xl") == 0) {
        count_gpt(48, 25, 1600, 16, false);
    } else if (strcmp(model, "gpt2-micro") == 0) {
        count_gpt(12, 12, 768, 64, true);
    } else if (strcmp(model, "llama") == 0) {
        count_token(false);
    } else if (strcmp(model, "llama-q8") == 0) {
        count_token(true);
    } else if (strcmp(model, "resnet") == 0) {
        count_resnet();
    } else {
        fputs("usage: count_step gpt2|gpt2-xl|gpt2-micro|llama|llama-q8|resnet\n", stderr);
        return 2;
    }
    return tn_error() != TN_OK;
}
