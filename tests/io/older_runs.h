/* Runs whose checkpoints have every kind of options: models, optimisers, schedules, loaders.
 * tests/io/older_texts.h has what version 40cd7f8, which wrote prose, wrote about them. */
#ifndef TERN_TESTS_IO_OLDER_RUNS_H
#define TERN_TESTS_IO_OLDER_RUNS_H

#include "tern/tern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUNS 14

/* A checkpoint, and what it points to. */
typedef struct run {
    tn_module *model; /* on the heap; a language model if `language` */
    bool language;
    tn_generator generator;
    tn_schedule schedule;
    tn_plateau plateau;
    tn_checkpoint c;
} run;

/* The forward of a module whose children are never called. */
static tn_tensor *unused_forward(tn_module *self, tn_tensor *x) {
    (void)self;
    return x;
}

static tn_module *holder_new(void) {
    static const char kind[] = "holder";
    tn_sequential *m = tn_sequential_new();
    m->base.kind = kind;
    m->base.forward = unused_forward;
    return &m->base;
}

static void hold_child(tn_module *m, void *child) {
    tn_sequential_add((tn_sequential *)m, child);
}

static tn_module *conv_net(void) {
    tn_module *m = holder_new();
    tn_conv_options wide = TN_WITH(tn_conv, .stride = TN_DIMS(2, 10), .padding = TN_DIMS(1, 0),
                                   .dilation = TN_DIMS(1, 2), .groups = 2);
    hold_child(m, tn_conv2d_new_with(2, 4, TN_DIMS(3, 3), wide));
    hold_child(m, tn_conv1d_new_with(2, 4, TN_DIMS(3), TN_WITH(tn_conv, .same = true)));
    hold_child(m, tn_conv3d_new(1, 1, 2));
    hold_child(m, tn_conv_transpose2d_new_with(
                      2, 2, TN_DIMS(3),
                      TN_WITH(tn_conv, .stride = TN_DIMS(3), .output_padding = TN_DIMS(0, 1))));
    hold_child(m, tn_batch_norm2d_new(4));
    hold_child(m, tn_batch_norm1d_new_with(
                      4, TN_WITH(tn_batch_norm, .cumulative = true, .eps = 1e-3, .affine = false)));
    hold_child(m, tn_batch_norm3d_new_with(4, TN_WITH(tn_batch_norm, .momentum = 1.0 / 3)));
    hold_child(m, tn_group_norm_new(2, 4));
    hold_child(m, tn_instance_norm2d_new_with(4, TN_WITH(tn_norm, .eps = 0.25)));
    hold_child(m, tn_max_pool2d_new_with(TN_DIMS(2, 3), tn_pool_defaults()));
    hold_child(m, tn_avg_pool1d_new_with(
                      TN_DIMS(4), TN_WITH(tn_pool, .stride = TN_DIMS(2), .padding = TN_DIMS(1))));
    hold_child(m, tn_max_pool3d_new_with(TN_DIMS(2), TN_WITH(tn_pool, .dilation = TN_DIMS(2))));
    hold_child(m, tn_adaptive_max_pool2d_new(TN_DIMS(3)));
    hold_child(m, tn_upsample_new(1.5));
    hold_child(m,
               tn_upsample_new_with(TN_WITH(tn_interpolate, .size = TN_DIMS(4, 5),
                                            .mode = TN_INTERPOLATE_LINEAR, .align_corners = true)));
    hold_child(m, tn_dropout2d_new(0.1));
    hold_child(m, TN_FN(tn_relu));
    hold_child(m, TN_FN_WITH(tn_pow_scalar, 1.0 / 3));
    return m;
}

static tn_module *sequence_net(void) {
    tn_module *m = holder_new();
    hold_child(m,
               tn_rnn_new_with(3, 4, TN_WITH(tn_rnn, .relu = true, .layers = 2, .dropout = 0.2)));
    hold_child(m, tn_gru_new(3, 4));
    hold_child(m, tn_lstm_new_with(3, 4, TN_WITH(tn_rnn, .layers = 2, .bidirectional = true)));
    hold_child(m, tn_rnn_cell_new(3, 4));
    hold_child(m, tn_lstm_cell_new(3, 4));
    hold_child(m, tn_multi_head_attention_new_with(
                      8, 2, TN_WITH(tn_multi_head_attention, .causal = true, .dropout = 0.3)));
    hold_child(
        m, tn_transformer_encoder_new_with(
               8, 2, 1, TN_WITH(tn_transformer, .norm_first = true, .activation = TN_ACT_GELU)));
    hold_child(m, tn_transformer_decoder_new(8, 2, 1));
    hold_child(m, tn_layer_norm_new_with(8, TN_WITH(tn_norm, .eps = 1e-6)));
    hold_child(m, tn_rms_norm_new(8));
    hold_child(m, tn_linear_new(8, 8));
    tn_module_set_precision(m, tn_precision_defaults());
    return m;
}

static tn_module *gpt_model(void) {
    tn_gpt_options o =
        TN_WITH(tn_gpt, .vocab = 32, .context = 6, .layers = 2, .heads = 2, .width = 8,
                .bias = false, .dropout = 0.1, .activation = TN_ACT_RELU);
    tn_gpt *m = calloc(1, sizeof(*m));
    tn_gpt_init(m, o);
    for (int i = 0; i < o.layers; i++) {
        m->h[i].ln_1.eps = m->h[i].ln_2.eps = 1e-6;
    }
    m->top.ln_f.eps = 1e-6;
    return &m->base;
}

static tn_module *llama_model(void) {
    tn_rotary_options rotary = TN_WITH(tn_rotary, .theta = 50000.5, .factor = 8,
                                       .low_freq_factor = 1.25, .original_context = 512);
    tn_llama_options o = TN_WITH(tn_llama, .vocab = 32, .context = 64, .layers = 2, .heads = 4,
                                 .kv_heads = 2, .head_width = 6, .width = 8, .hidden = 12,
                                 .rotary = rotary, .eps = 1e-6, .tied = false);
    tn_llama *m = calloc(1, sizeof(*m));
    tn_llama_init(m, o);
    return &m->base;
}

static tn_optim *optim_of(int i, void *m) {
    switch (i) {
    case 0:
        return tn_adamw(m,
                        TN_WITH(tn_adamw, .lr = 0.1, .beta2 = 0.95, .no_decay = tn_match_vectors));
    case 1:
        return tn_lion(m, TN_WITH(tn_lion, .beta1 = 1.0 / 3));
    case 2:
        return tn_sgd(m, TN_WITH(tn_sgd, .momentum = 0.9, .nesterov = true));
    case 3:
        return tn_rmsprop(m, TN_WITH(tn_rmsprop, .centered = true, .alpha = 0.9));
    case 4:
        return tn_adagrad(m, TN_WITH(tn_adagrad, .lr_decay = 1e-3, .initial_accumulator = 0.5));
    case 5:
        return tn_adadelta(m, TN_WITH(tn_adadelta, .rho = 0.8));
    case 6:
        return tn_adamax(m, TN_WITH(tn_adamax, .eps = 1e-7));
    case 7:
        return tn_nadam(m, TN_WITH(tn_nadam, .momentum_decay = 3e-3));
    case 8:
        return tn_radam(m, TN_WITH(tn_radam, .beta1 = 0.8));
    case 9:
        return tn_asgd(m, TN_WITH(tn_asgd, .t0 = 1e5, .alpha = 0.7));
    case 10:
        return tn_lamb(m, TN_WITH(tn_lamb, .eps = 1e-5));
    case 11:
        return tn_adafactor(m, TN_WITH(tn_adafactor, .eps2 = 2e-3));
    case 12:
        return tn_muon(m, TN_WITH(tn_muon, .ns_steps = 4, .nesterov = false));
    default:
        return tn_adam(m, TN_WITH(tn_adam, .amsgrad = true));
    }
}

static tn_schedule schedule_of(int i) {
    static const int64_t milestones[] = {1000000, 2000000, 2500000};
    switch (i % 7) {
    case 0:
        return tn_schedule_cosine(0.1, 1.0 / 3, 10, 100);
    case 1:
        return tn_schedule_multi_step(0.1, milestones, 3, 0.3);
    case 2:
        return tn_schedule_one_cycle(0.2, 50);
    case 3:
        return tn_schedule_warm_restarts(0.1, 0.01, 5, 2);
    case 4:
        return tn_schedule_step(0.1, 7, 0.5);
    case 5:
        return tn_schedule_exponential(0.1, 0.99);
    default:
        return tn_schedule_constant(0.1, 3);
    }
}

static tn_dataset *rows_of(int64_t n, bool y) {
    tn_tensor *x = tn_reshape(tn_arange(0, (double)(10 * n), 1, TN_F32), TN_DIMS(n, 10, 1));
    return tn_tensor_dataset(x, y ? tn_arange(0, (double)n, 1, TN_I64) : NULL);
}

static tn_dataset *pictures_of(void) {
    tn_tensor *x = tn_reshape(tn_arange(0, 96, 1, TN_F32), TN_DIMS(2, 3, 4, 4));
    return TN_TRANSFORMED(tn_tensor_dataset(x, NULL), 7, tn_random_crop(3, 3, 1),
                          tn_random_horizontal_flip(1.0 / 3), tn_random_horizontal_flip(0.5));
}

static tn_dataset *sequences_of(void) {
    tn_tensor *x[] = {tn_ones(TN_DIMS(2), TN_F32), tn_ones(TN_DIMS(5), TN_F32),
                      tn_ones(TN_DIMS(3), TN_F32)};
    return tn_sequence_dataset(x, NULL, 3);
}

static tn_loader *loader_of(int i) {
    static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    tn_tensor *weights = TN_FROM(((double[]){1, 2, 3}), TN_DIMS(3), TN_F64);
    tn_tensor *lengths = TN_FROM(((int64_t[]){2, 5, 3}), TN_DIMS(3), TN_I64);
    tn_dataset *pieces[2] = {NULL};
    tn_loader_options o = TN_WITH(tn_loader, .batch = 2, .epochs = 3);
    switch (i % 8) {
    case 0:
        return tn_loader_new(tn_token_dataset(tokens, 9, 3), tn_random_sampler(UINT64_MAX), o);
    case 1:
        return tn_loader_new(rows_of(4, true), tn_sequential_sampler(),
                             TN_WITH(tn_loader, .batch = 3, .drop_last = true));
    case 2:
        return tn_loader_new(sequences_of(), tn_weighted_sampler(weights, 9, 1),
                             TN_WITH(tn_loader, .x_pad = -0.5));
    case 3:
        return tn_loader_new(sequences_of(), tn_bucket_sampler(lengths, 2, 1, 1), o);
    case 4:
        return tn_loader_new(tn_subset(rows_of(6, false), (int64_t[]){4, 1, 5}, 3),
                             tn_replacement_sampler(3), o);
    case 5:
        tn_random_split(rows_of(8, true), (double[]){0.5, 0.5}, 2, 11, pieces);
        tn_dataset_free(pieces[0]);
        return tn_loader_new(pieces[1], tn_random_sampler(5), o);
    case 6:
        return tn_loader_new(tn_concat_dataset((tn_dataset *[]){pictures_of(), pictures_of()}, 2),
                             tn_random_sampler(5), o);
    default:
        o.batch = 1;
        return tn_loader_new(pictures_of(), tn_random_sampler(5), o);
    }
}

static void run_open(run *r, int i) {
    TN_SCOPE;
    memset(r, 0, sizeof(*r));
    tn_seed(3);
    r->language = i < 2;
    r->model = i == 0 ? gpt_model() : i == 1 ? llama_model() : i == 2 ? conv_net() : NULL;
    r->model = i == 3 ? sequence_net() : r->model ? r->model : &tn_linear_new(3, 2)->base;
    r->generator = (tn_generator){.seed = UINT64_MAX - (uint64_t)i, .stream = 3, .call = 9};
    r->schedule = schedule_of(i);
    r->plateau = tn_plateau_defaults(0.1);
    r->plateau.larger_is_better = i % 2;
    r->plateau.cooldown = i;
    r->plateau.state = (tn_plateau_state){.lr = 1.0 / 7, .best = -2.5, .bad = i, .any = true};
    r->c = (tn_checkpoint){.model = r->model,
                           .optim = optim_of(i, r->model),
                           .schedule = &r->schedule,
                           .loader = loader_of(i),
                           .generator = &r->generator,
                           .scaler = tn_scaler_new(TN_WITH(tn_scaler, .interval = 100 + i)),
                           .plateau = &r->plateau,
                           .average = i % 2 ? tn_ema(r->model, 0.9) : tn_swa(r->model),
                           .step = 70 + i};
    snprintf(r->c.note, sizeof(r->c.note), "run %d, \"quoted\"", i);
    tn_optim_set_steps(r->c.optim, 70 + i);
    tn_average_update(r->c.average);
    tn_scaler_seek(r->c.scaler, (tn_scaler_state){.scale = 1024, .streak = i});
    tn_loader_seek(r->c.loader, (tn_loader_place){.epoch = 0, .index = 1});
}

static void run_close(run *r) {
    tn_average_free(r->c.average);
    tn_scaler_free(r->c.scaler);
    tn_loader_free(r->c.loader);
    tn_optim_free(r->c.optim);
    if (r->language) {
        tn_module_finish(r->model);
        free(r->model);
    } else {
        tn_module_free(r->model);
    }
}

#endif
