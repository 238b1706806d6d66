/* Writes what optimisers and schedules do in 200 steps, for test_torch.py to compare with PyTorch:
 * dump_optim FILE
 *
 * grads/NAME            (200, …) each step's gradient; all 0: the parameter has none in that step
 * CASE/start.NAME       the parameters before
 * CASE/end.NAME         and after 200 steps
 * CASE/NAME.exp_avg …   the state after them
 * CASE/norms            (200) if gradients are clipped: their norms before
 * schedule/NAME         (120) learning rates
 */
#include <math.h>

#include "tests/support/dump.h"

enum { STEPS = 200, PARAMS = 4 };

typedef struct model {
    tn_module base;
    tn_tensor *p[PARAMS];
} model;

static const char *names[PARAMS] = {"weight", "bias", "scale", "kernel"};
static tn_tensor *grads[PARAMS]; /* (STEPS, …) */

static tn_dims dims_of(int i) {
    return i == 0 ? TN_DIMS(7, 5) : i == 1 ? TN_DIMS(5) : i == 2 ? TN_DIMS() : TN_DIMS(3, 4, 2);
}

static bool is_absent(int step, int i) {
    return (i == 1 && step < 3) || (i == 2 && step % 4 == 1);
}

static tn_tensor *no_forward(tn_module *self, tn_tensor *x) {
    return x;
}

static void make_grads(void) {
    for (int i = 0; i < PARAMS; i++) {
        tn_dims dims = dims_of(i);
        tn_dims all = {.ndim = dims.ndim + 1, .size = {STEPS}};
        for (int k = 0; k < dims.ndim; k++) {
            all.size[k + 1] = dims.size[k];
        }
        grads[i] = tn_randn(all, TN_F64);
        for (int step = 0; step < STEPS; step++) {
            if (is_absent(step, i)) { tn_zero_(tn_select(grads[i], 0, step)); }
        }
        add_tensor("grads", "", names[i], grads[i]);
    }
}

static void model_init(model *m, tn_dtype dtype, const char *name) {
    tn_seed(11);
    tn_module_init(m, "model", no_forward);
    for (int i = 0; i < PARAMS; i++) {
        tn_tensor *p = tn_randn(dims_of(i), TN_F64);
        tn_module_param(m, names[i], &m->p[i], tn_copy(tn_cast(p, dtype)));
        tn_set_grad_dtype(m->p[i], dtype == TN_F64 ? TN_F64 : TN_F32);
        add_tensor(name, "start.", names[i], m->p[i]);
    }
}

static bool add_state(const char *name, tn_tensor *state, void *user) {
    add_tensor(user, "", name, state);
    return true;
}

typedef enum how { NOTHING, CLIP_BEFORE_STEP, CLIP_AT_ONCE, SCHEDULE } how;

static void train_model(const char *name, model *m, tn_optim *opt, how also) {
    double norms[STEPS] = {0};
    tn_dtype dtype = tn_dtype_of(m->p[0]) == TN_F64 ? TN_F64 : TN_F32;
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        for (int i = 0; i < PARAMS; i++) {
            tn_tensor *g = tn_copy(tn_cast(tn_select(grads[i], 0, step), dtype));
            tn_set_grad(m->p[i], is_absent(step, i) ? NULL : g);
        }
        if (also == CLIP_BEFORE_STEP) {
            norms[step] = tn_optim_clip(opt, 5.0);
        } else if (also == CLIP_AT_ONCE) {
            norms[step] = tn_clip_grad_norm(m, 5.0);
        } else if (also == SCHEDULE) {
            tn_optim_set_lr(opt, tn_schedule_at(tn_schedule_cosine(0.1, 0.01, 10, 80), step));
        }
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    for (int i = 0; i < PARAMS; i++) {
        add_tensor(name, "end.", names[i], m->p[i]);
    }
    tn_optim_each(opt, add_state, (void *)name);
    add_tensor(name, "norms", "", TN_FROM(norms, TN_DIMS(STEPS), TN_F64));
    tn_optim_free(opt);
    tn_module_finish(m);
}

/* One optimiser, with these changes to its default options. */
#define CASE_ALSO(also, name, kind, dtype, ...)   \
    do {                                          \
        model m;                                  \
        model_init(&m, dtype, name);              \
        kind##_options o = kind##_defaults();     \
        __VA_ARGS__;                              \
        train_model(name, &m, kind(&m, o), also); \
    } while (0)
#define CASE(name, kind, dtype, ...) CASE_ALSO(NOTHING, name, kind, dtype, __VA_ARGS__)
#define SGD(also, name, dtype, ...) CASE_ALSO(also, name, tn_sgd, dtype, o.lr = 0.05, __VA_ARGS__)
#define ADAM(also, name, kind, dtype, decay) \
    CASE_ALSO(also, name, kind, dtype, o.lr = 0.02, o.beta2 = 0.98, o.weight_decay = decay)

static void dump_usual(void) {
    SGD(NOTHING, "sgd", TN_F64, o.momentum = 0);
    SGD(NOTHING, "sgd_decay", TN_F64, o.weight_decay = 0.1);
    SGD(NOTHING, "momentum", TN_F64, o.momentum = 0.9, o.weight_decay = 0.01);
    SGD(NOTHING, "dampening", TN_F64, o.momentum = 0.8, o.dampening = 0.3);
    SGD(NOTHING, "nesterov", TN_F64, o.momentum = 0.9, o.nesterov = true);
    SGD(NOTHING, "momentum_f32", TN_F32, o.momentum = 0.9, o.weight_decay = 0.01);
    SGD(NOTHING, "momentum_bf16", TN_BF16, o.momentum = 0.9);
    SGD(CLIP_BEFORE_STEP, "clip_sgd", TN_F64, o.momentum = 0.9);
    ADAM(NOTHING, "adam", tn_adam, TN_F64, 0);
    ADAM(NOTHING, "adam_decay", tn_adam, TN_F64, 0.1);
    ADAM(NOTHING, "adamw", tn_adamw, TN_F64, 0.1);
    ADAM(NOTHING, "adamw_f32", tn_adamw, TN_F32, 0.1);
    ADAM(NOTHING, "adamw_bf16", tn_adamw, TN_BF16, 0.1);
    ADAM(NOTHING, "adamw_f16", tn_adamw, TN_F16, 0.1);
    ADAM(CLIP_BEFORE_STEP, "clip", tn_adamw, TN_F64, 0.1);
    ADAM(CLIP_AT_ONCE, "clip_at_once", tn_adamw, TN_F64, 0.1);
    ADAM(CLIP_BEFORE_STEP, "clip_f32", tn_adamw, TN_F32, 0.1);
    ADAM(SCHEDULE, "scheduled", tn_adamw, TN_F64, 0.1);
}

static void dump_more(void) {
    CASE("rmsprop", tn_rmsprop, TN_F64, o.weight_decay = 0.1);
    CASE("rmsprop_full", tn_rmsprop, TN_F64, o.alpha = 0.9, o.momentum = 0.8, o.centered = true);
    CASE("adagrad", tn_adagrad, TN_F64, o.weight_decay = 0.1, o.lr_decay = 0.01);
    CASE("adagrad_full", tn_adagrad, TN_F64, o.lr = 0.1, o.initial_accumulator = 0.3);
    CASE("adadelta", tn_adadelta, TN_F64, o.weight_decay = 0.1, o.rho = 0.95);
    CASE("adamax", tn_adamax, TN_F64, o.weight_decay = 0.1, o.beta2 = 0.98);
    CASE("nadam", tn_nadam, TN_F64, o.weight_decay = 0.1, o.beta2 = 0.98);
    CASE("radam", tn_radam, TN_F64, o.weight_decay = 0.1, o.beta2 = 0.98);
    CASE("asgd", tn_asgd, TN_F64, o.weight_decay = 0.1, o.lambd = 0.01, o.t0 = 50);
    CASE("amsgrad", tn_adam, TN_F64, o.weight_decay = 0.1, o.beta2 = 0.9, o.amsgrad = true);
    CASE("amsgrad_w", tn_adamw, TN_F64, o.beta2 = 0.9, o.amsgrad = true);
    CASE("lion", tn_lion, TN_F64, o.lr = 1e-3, o.weight_decay = 0.1);
    CASE("lamb", tn_lamb, TN_F64, o.weight_decay = 0.1);
    CASE("adafactor", tn_adafactor, TN_F64, o.lr = 0.1, o.weight_decay = 0.1);
    CASE("adafactor_bf16", tn_adafactor, TN_BF16, o.lr = 0.1, o.d = 1.5);
    CASE("muon", tn_muon, TN_F64, o.lr = 0.01);
    CASE("muon_plain", tn_muon, TN_F64, o.nesterov = false, o.momentum = 0.8, o.ns_steps = 3);
}

static void dump_groups(void) {
    model m;
    model_init(&m, TN_F64, "groups");
    tn_optim *opt = tn_adamw(
        &m, TN_WITH(tn_adamw, .lr = 0.02, .weight_decay = 0.1, .no_decay = tn_match_vectors));
    tn_optim_group(opt, 1)->lr_scale = 0.5;
    train_model("groups", &m, opt, NOTHING);
}

static void dump_schedule(const char *name, tn_schedule s) {
    double lr[120];
    for (int step = 0; step < 120; step++) {
        lr[step] = tn_schedule_at(s, step);
    }
    add_tensor("schedule", name, "", TN_FROM(lr, TN_DIMS(120), TN_F64));
}

/* A plateau schedule on values that oscillate: (2, 120), the values and the rates. */
static void dump_plateau(const char *name, tn_plateau p) {
    double both[2][120];
    for (int i = 0; i < 120; i++) {
        both[0][i] = sin(0.11 * i) / (1 + 0.05 * i) + 0.3 * cos(1.7 * i);
        both[1][i] = tn_plateau_step(&p, both[0][i]);
    }
    add_tensor("schedule", name, "", TN_FROM(both, TN_DIMS(2, 120), TN_F64));
}

/* An average of weights stepped by SGD, and clipping by value. */
static void dump_average(const char *name, double decay) {
    model m;
    model_init(&m, TN_F64, name);
    tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0.05));
    tn_average *a = decay < 0 ? tn_swa(&m) : tn_ema(&m, decay);
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        for (int i = 0; i < PARAMS; i++) {
            tn_set_grad(m.p[i], is_absent(step, i) ? NULL : tn_copy(tn_select(grads[i], 0, step)));
        }
        tn_clip_grad_value(&m, 0.5);
        tn_optim_step(opt);
        tn_average_update(a);
    }
    {
        TN_AVERAGED(a);
        for (int i = 0; i < PARAMS; i++) {
            add_tensor(name, "mean.", names[i], m.p[i]);
        }
    }
    for (int i = 0; i < PARAMS; i++) {
        add_tensor(name, "end.", names[i], m.p[i]);
    }
    tn_average_free(a);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

int main(int argc, char **argv) {
    if (!dump_begin(argc, argv)) { return 1; }
    make_grads();
    dump_usual();
    dump_groups();
    dump_more();
    dump_schedule("constant", tn_schedule_constant(0.3, 10));
    dump_schedule("linear", tn_schedule_linear(0.3, 0.03, 10, 100));
    dump_schedule("cosine", tn_schedule_cosine(0.3, 0.03, 10, 100));
    dump_schedule("cosine_without_warmup", tn_schedule_cosine(0.3, 0.0, 0, 100));
    static const int64_t milestones[] = {7, 30, 31, 90};
    dump_schedule("step", tn_schedule_step(0.3, 30, 0.1));
    dump_schedule("multi_step", tn_schedule_multi_step(0.3, milestones, 4, 0.5));
    dump_schedule("exponential", tn_schedule_exponential(0.3, 0.97));
    dump_schedule("restarts", tn_schedule_warm_restarts(0.3, 0.01, 10, 2));
    dump_schedule("restarts_alike", tn_schedule_warm_restarts(0.3, 0.0, 25, 1));
    dump_schedule("one_cycle", tn_schedule_one_cycle(0.3, 110));
    tn_schedule warm = tn_schedule_step(0.3, 30, 0.1);
    warm.warmup = 10;
    dump_schedule("warm_step", warm);
    dump_plateau("plateau", tn_plateau_defaults(0.3));
    dump_plateau("plateau_other", (tn_plateau){.larger_is_better = true,
                                               .factor = 0.5,
                                               .patience = 2,
                                               .threshold = 0.1,
                                               .absolute = true,
                                               .cooldown = 3,
                                               .min_lr = 0.02,
                                               .state = {.lr = 0.3}});
    dump_average("ema", 0.9);
    dump_average("swa", -1);
    return tn_safetensors_writer_save(writer, argv[1]) == TN_OK ? 0 : 1;
}
