/* Optimisers, clipping, schedules, loss scaling for f16.
 *
 *     tn_optim *opt = tn_adamw(&net, TN_WITH(tn_adamw, .lr = 3e-4));
 *     ... tn_backward(loss); tn_optim_step(opt); tn_optim_zero_grad(opt); ...
 *     tn_optim_free(opt);
 *
 * State is allocated at construction, so that a checkpoint can be loaded right away. A step is one
 * pass over parameter, gradient and state. A step while an error is pending does nothing: a bad
 * gradient never reaches a weight.
 */
#ifndef TERN_OPTIM_H
#define TERN_OPTIM_H

#include "nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_optim tn_optim;

/* Selects parameters. tn_match_vectors: those with fewer than 2 dimensions (biases, norms), which
 * usually get no weight decay. The option no_decay below is called with user NULL; parameters for
 * which it is true have weight decay 0. */
typedef bool (*tn_match)(const tn_entry *entry, void *user);
TN_API bool tn_match_vectors(const tn_entry *entry, void *user);

typedef struct tn_sgd_options {
    double lr; /* 1e-3 */
    double momentum, dampening, weight_decay;
    bool nesterov;
    tn_match no_decay; /* NULL: weight decay for all */
    bool from_defaults;
} tn_sgd_options;
typedef struct tn_adam_options {
    double lr;           /* 1e-3 */
    double beta1;        /* 0.9 */
    double beta2;        /* 0.999 */
    double eps;          /* 1e-8 */
    double weight_decay; /* 0 for Adam, 1e-2 for AdamW */
    bool amsgrad;        /* Reddi et al. 2018, arXiv:1904.09237 */
    tn_match no_decay;   /* NULL: weight decay for all */
    bool from_defaults;
} tn_adam_options;
typedef tn_adam_options tn_adamw_options; /* decoupled weight decay */

TN_API tn_sgd_options tn_sgd_defaults(void);
TN_API tn_adam_options tn_adam_defaults(void);   /* Kingma, Ba 2014, arXiv:1412.6980 */
TN_API tn_adamw_options tn_adamw_defaults(void); /* Loshchilov, Hutter 2017, arXiv:1711.05101 */

/* Over every parameter of m that requires a gradient. NULL after an error. Keeps the parameters,
 * not m. To write your own: sys/optim.h. */
TN_API tn_optim *tn_sgd(void *m, tn_sgd_options options);
TN_API tn_optim *tn_adam(void *m, tn_adam_options options);
TN_API tn_optim *tn_adamw(void *m, tn_adamw_options options);
TN_API void tn_optim_free(tn_optim *opt); /* every function here takes NULL */

/* A module made of plain tensors: tn_adam(tn_parameters(list, n), options). They become leaves that
 * require gradients; state is named "0.exp_avg". The optimiser it is passed to owns it, even if
 * that cannot be made; otherwise free it with tn_parameters_free. NULL after an error. */
TN_API void *tn_parameters(tn_tensor *const *list, int n);
TN_API void tn_parameters_free(void *parameters);

/* ---- More optimisers, each in a file of its name ---------------------------------------------- *
 *
 * Comments give the defaults: PyTorch's, or the paper's where PyTorch has none. These optimisers
 * compute by operations instead of one fused kernel. */

typedef struct tn_rmsprop_options {
    double lr, alpha, eps, weight_decay, momentum; /* 1e-2, 0.99, 1e-8, 0, 0 */
    bool centered;                                 /* divides by the standard deviation */
    tn_match no_decay;
    bool from_defaults;
} tn_rmsprop_options;
TN_API tn_rmsprop_options tn_rmsprop_defaults(void); /* Tieleman, Hinton 2012 */
TN_API tn_optim *tn_rmsprop(void *m, tn_rmsprop_options options);

typedef struct tn_adagrad_options {
    double lr, lr_decay, weight_decay, initial_accumulator, eps; /* 1e-2, 0, 0, 0, 1e-10 */
    tn_match no_decay;
    bool from_defaults;
} tn_adagrad_options;
TN_API tn_adagrad_options tn_adagrad_defaults(void); /* Duchi et al. 2011 */
TN_API tn_optim *tn_adagrad(void *m, tn_adagrad_options options);

typedef struct tn_adadelta_options {
    double lr, rho, eps, weight_decay; /* 1, 0.9, 1e-6, 0 */
    tn_match no_decay;
    bool from_defaults;
} tn_adadelta_options;
TN_API tn_adadelta_options tn_adadelta_defaults(void); /* Zeiler 2012, arXiv:1212.5701 */
TN_API tn_optim *tn_adadelta(void *m, tn_adadelta_options options);

typedef struct tn_adamax_options {
    double lr, beta1, beta2, eps, weight_decay; /* 2e-3, 0.9, 0.999, 1e-8, 0 */
    tn_match no_decay;
    bool from_defaults;
} tn_adamax_options;
TN_API tn_adamax_options tn_adamax_defaults(void); /* Kingma, Ba 2014, arXiv:1412.6980 */
TN_API tn_optim *tn_adamax(void *m, tn_adamax_options options);

typedef struct tn_nadam_options {
    double lr, beta1, beta2, eps, weight_decay, momentum_decay; /* 2e-3, …, 4e-3 */
    tn_match no_decay;
    bool from_defaults;
} tn_nadam_options;
TN_API tn_nadam_options tn_nadam_defaults(void); /* Dozat 2016 */
TN_API tn_optim *tn_nadam(void *m, tn_nadam_options options);

typedef struct tn_radam_options {
    double lr, beta1, beta2, eps, weight_decay; /* 1e-3, 0.9, 0.999, 1e-8, 0 */
    tn_match no_decay;
    bool from_defaults;
} tn_radam_options;
TN_API tn_radam_options tn_radam_defaults(void); /* Liu et al. 2019, arXiv:1908.03265 */
TN_API tn_optim *tn_radam(void *m, tn_radam_options options);

typedef struct tn_asgd_options {
    double lr, lambd, alpha, t0, weight_decay; /* 1e-2, 1e-4, 0.75, 1e6, 0 */
    tn_match no_decay;
    bool from_defaults;
} tn_asgd_options;
TN_API tn_asgd_options tn_asgd_defaults(void); /* Polyak, Juditsky 1992 */
TN_API tn_optim *tn_asgd(void *m, tn_asgd_options options);

typedef struct tn_lion_options {
    double lr, beta1, beta2, weight_decay; /* 1e-4, 0.9, 0.99, 0 */
    tn_match no_decay;
    bool from_defaults;
} tn_lion_options;
TN_API tn_lion_options tn_lion_defaults(void); /* Chen et al. 2023, arXiv:2302.06675 */
TN_API tn_optim *tn_lion(void *m, tn_lion_options options);

typedef struct tn_lamb_options {
    double lr, beta1, beta2, eps, weight_decay; /* 1e-3, 0.9, 0.999, 1e-6, 1e-2 */
    tn_match no_decay;
    bool from_defaults;
} tn_lamb_options;
TN_API tn_lamb_options tn_lamb_defaults(void); /* You et al. 2019, arXiv:1904.00962 */
TN_API tn_optim *tn_lamb(void *m, tn_lamb_options options);

/* The second moments of a matrix are stored as a row and a column. Sharded matrices are gathered
 * for the step. */
typedef struct tn_adafactor_options {
    double lr;           /* 1e-2: the maximum; 1 / sqrt(step) if that is lower */
    double beta2_decay;  /* -0.8 */
    double eps1;         /* 0: the parameter's machine epsilon */
    double eps2;         /* 1e-3: lower bound for the scale of a parameter */
    double d;            /* 1, or more: limits the root mean square of an update */
    double weight_decay; /* 0 */
    tn_match no_decay;
    bool from_defaults;
} tn_adafactor_options;
TN_API tn_adafactor_options tn_adafactor_defaults(void); /* Shazeer, Stern 2018, arXiv:1804.04235 */
TN_API tn_optim *tn_adafactor(void *m, tn_adafactor_options options);

/* Matrices by Muon, the rest by AdamW with the same lr and decay; to give them different rates,
 * split a group and set its lr_scale (tn_optim_split). A convolution's kernel (out, in, …) counts
 * as a matrix of `out` rows. Sharded matrices are gathered for the step. */
typedef struct tn_muon_options {
    double lr, weight_decay, momentum; /* 1e-3, 0.1, 0.95 */
    bool nesterov;                     /* true */
    double ns_a, ns_b, ns_c, eps;      /* 3.4445, -4.775, 2.0315, 1e-7 */
    int ns_steps;                      /* 5 */
    /* Matrices to update by AdamW, such as embeddings and the head; called with user NULL. NULL:
     * none. */
    tn_match adamw;
    double adamw_beta1, adamw_beta2, adamw_eps; /* 0.9, 0.999, 1e-8 */
    tn_match no_decay;
    bool from_defaults;
} tn_muon_options;
TN_API tn_muon_options tn_muon_defaults(void); /* Jordan et al. 2024, kellerjordan.github.io */
TN_API tn_optim *tn_muon(void *m, tn_muon_options options);

/* ---- Parameter groups ------------------------------------------------------------------------ */

/* Group 0 has every parameter that is in no other. The option no_decay makes group 1,
 * with weight decay 0.
 *
 * tn_optim_split moves the parameters for which `match` is true into a new group with the same
 * hyperparameters and returns its index, or -1 after an error. If exactly these parameters were
 * split off before, it returns that group. */
TN_API int tn_optim_split(tn_optim *opt, tn_match match, void *user);

/* A group's hyperparameters, to read and write. */
typedef struct tn_optim_group_options {
    double lr_scale; /* 1: multiplies the optimiser's learning rate */
    double weight_decay;
} tn_optim_group_options;
/* Never NULL: out of range, or after an error, writes are lost (TN_EINDEX, TN_EVALUE). */
TN_API tn_optim_group_options *tn_optim_group(tn_optim *opt, int index);
TN_API int tn_optim_groups(const tn_optim *opt);

/* The learning rate of all groups, from the next step. */
TN_API void tn_optim_set_lr(tn_optim *opt, double lr);
TN_API double tn_optim_lr(const tn_optim *opt);

/* ---- The loop -------------------------------------------------------------------------------- */

/* Parameters without a gradient are left alone. */
TN_API tn_status tn_optim_step(tn_optim *opt);
TN_API void tn_optim_zero_grad(tn_optim *opt);

/* The norm of all gradients together; if it is above max_norm the gradients are scaled down to it:
 * at once (tn_clip_grad_norm), or for free as the next step reads them (tn_optim_clip). Returns the
 * norm before clipping. A NaN or infinite norm is returned and nothing is scaled. */
TN_API double tn_clip_grad_norm(void *m, double max_norm);
TN_API double tn_optim_clip(tn_optim *opt, double max_norm);

/* tn_optim_clip for a host that does not wait for a device: the norm, f64 and 0-dimensional, for a
 * tn_item when it is wanted. The same step, to the bit. Where gradients are on several devices or
 * ranks, and for optimisers without a kernel, the host waits all the same. Inert after an error. */
TN_API tn_tensor *tn_optim_clip_later(tn_optim *opt, double max_norm);
/* Clamps each element of each gradient to [-value, value]. */
TN_API tn_status tn_clip_grad_value(void *m, double value);

TN_API int64_t tn_optim_steps(const tn_optim *opt); /* done so far */

/* State by name, for checkpoints: "h.0.ln_1.weight.exp_avg". f returns false to stop. */
typedef bool (*tn_optim_visitor)(const char *name, tn_tensor *state, void *user);
TN_API void tn_optim_each(tn_optim *opt, tn_optim_visitor f, void *user);
TN_API void tn_optim_set_steps(tn_optim *opt, int64_t steps);
TN_API const char *tn_optim_kind(const tn_optim *opt); /* "adamw" */

/* ---- Loss scaling for f16 -------------------------------------------------------------------- */

/* Gradients in f16 vanish below 6e-8. So the loss is multiplied before backward, and the step
 * divides the gradients as it reads them. A step whose gradients overflowed is skipped and the
 * scale lowered; after `interval` steps without overflow it grows (Micikevicius et al. 2017,
 * arXiv:1710.03740; the rule and its numbers are those of torch.cuda.amp.GradScaler). bf16 needs
 * none of this.
 *
 *     tn_backward(tn_scaler_scale(scaler, loss));
 *     tn_scaler_clip(scaler, opt, 1.0);                       // instead of tn_optim_clip
 *     tn_scaler_step(scaler, opt);                            // instead of tn_optim_step
 *     tn_scaler_update(scaler);
 *
 * All ranks decide the same, since an overflow on any is in everyone's reduced gradients. */
typedef struct tn_scaler tn_scaler;
typedef struct tn_scaler_options {
    double scale;     /* 65536: initially */
    double growth;    /* 2 */
    double backoff;   /* 0.5 */
    int64_t interval; /* 2000 */
    bool enabled;     /* true; false: scale is 1 and no step is skipped */
    bool from_defaults;
} tn_scaler_options;
TN_API tn_scaler_options tn_scaler_defaults(void);
TN_API tn_scaler *tn_scaler_new(tn_scaler_options options); /* NULL after an error */
TN_API void tn_scaler_free(tn_scaler *s);

/* loss times the scale. */
TN_API tn_tensor *tn_scaler_scale(tn_scaler *s, tn_tensor *loss);

/* Like tn_optim_clip, for the unscaled gradients. */
TN_API double tn_scaler_clip(tn_scaler *s, tn_optim *opt, double max_norm);

/* A step of opt, if all its gradients are finite. Several optimisers may step between updates. */
TN_API tn_status tn_scaler_step(tn_scaler *s, tn_optim *opt);

/* Call once after the steps; adjusts the scale by whether one was skipped. TN_ESTATE if there was
 * no step. */
TN_API tn_status tn_scaler_update(tn_scaler *s);

/* Whether a step since the update before the last was skipped. */
TN_API bool tn_scaler_skipped(const tn_scaler *s);

/* Its state, for checkpoints. */
typedef struct tn_scaler_state {
    double scale;
    int64_t streak; /* updates since the scale last changed */
} tn_scaler_state;
TN_API tn_scaler_state tn_scaler_where(const tn_scaler *s);
TN_API tn_status tn_scaler_seek(tn_scaler *s, tn_scaler_state state);

/* ---- Schedules: a learning rate as a function of the step, without state --------------------- */

typedef enum tn_schedule_kind {
    TN_CONSTANT,
    TN_LINEAR,
    TN_COSINE,
    TN_STEP,
    TN_MULTI_STEP,
    TN_EXPONENTIAL,
    TN_WARM_RESTARTS,
    TN_ONE_CYCLE
} tn_schedule_kind;
enum { TN_MILESTONES = 10 };
typedef struct tn_schedule {
    tn_schedule_kind kind;
    double peak;    /* after warm-up */
    double end;     /* at `steps` and after; unused when constant */
    int64_t warmup; /* steps 0 … warmup-1 rise linearly: peak (step + 1) / (warmup + 1) */
    int64_t steps;  /* the whole length, warm-up included */
    /* Only for some kinds: */
    double factor;       /* step, multi-step, exponential: multiplies the rate */
    int64_t every;       /* step: the interval; warm restarts: the length of the first cycle */
    int64_t growth;      /* warm restarts: each cycle is this many times as long as the last */
    double start, rise;  /* one cycle: the first rate, and the fraction of steps that rise */
    int milestone_count; /* multi-step: the rate changes at these steps */
    int64_t milestones[TN_MILESTONES];
} tn_schedule;
TN_API tn_schedule tn_schedule_constant(double lr, int64_t warmup);
/* The warm-up is part of `steps`: a longer one is TN_EVALUE, here and below. */
TN_API tn_schedule tn_schedule_linear(double peak, double end, int64_t warmup, int64_t steps);
/* Loshchilov, Hutter 2016, arXiv:1608.03983, one cycle */
TN_API tn_schedule tn_schedule_cosine(double peak, double end, int64_t warmup, int64_t steps);

/* These have no warm-up unless the field is set; their own steps count from its end. Like PyTorch's
 * StepLR, MultiStepLR, ExponentialLR, CosineAnnealingWarmRestarts and OneCycleLR with a step for an
 * epoch. Up to TN_MILESTONES milestones (TN_EVALUE). */
TN_API tn_schedule tn_schedule_step(double lr, int64_t every, double factor);
TN_API tn_schedule tn_schedule_multi_step(double lr, const int64_t *milestones, int n,
                                          double factor);
TN_API tn_schedule tn_schedule_exponential(double lr, double factor);
/* Loshchilov, Hutter 2016, arXiv:1608.03983: cosines of first, first growth, first growth^2, …
 * steps */
TN_API tn_schedule tn_schedule_warm_restarts(double peak, double end, int64_t first,
                                             int64_t growth);
/* Smith, Topin 2017, arXiv:1708.07120: from peak / 25 up to peak in 0.3 of the steps, and down to
 * peak / 250000. The fields start, end and rise may be set. */
TN_API tn_schedule tn_schedule_one_cycle(double peak, int64_t steps);

TN_API double tn_schedule_at(tn_schedule s, int64_t step);

/* ---- Reducing the rate on a plateau ---------------------------------------------------------- */

/* PyTorch's ReduceLROnPlateau: after more than `patience` values in a row that were no better than
 * the best, the rate is multiplied by `factor`. It has state, which a checkpoint saves (io.h).
 *
 *     tn_plateau plateau = tn_plateau_defaults(0.1);
 *     ... tn_optim_set_lr(opt, tn_plateau_step(&plateau, val_loss)); */
typedef struct tn_plateau_state {
    double lr, best;
    int64_t bad, cooldown; /* values in a row that were no better; values still to be ignored */
    bool any;              /* `best` is set */
} tn_plateau_state;
typedef struct tn_plateau {
    bool larger_is_better; /* false */
    double factor;         /* 0.1 */
    int64_t patience;      /* 10 */
    double threshold;      /* 1e-4: better by less does not count; a fraction of the best */
    bool absolute;         /* false; true: threshold is an absolute number */
    int64_t cooldown;      /* 0: values to ignore after a reduction */
    double min_lr, eps;    /* 0, 1e-8: the minimum rate, and the minimum reduction */
    tn_plateau_state state;
} tn_plateau;
TN_API tn_plateau tn_plateau_defaults(double lr);
/* Call after each validation: returns the rate to use from now on. NaN after an error. */
TN_API double tn_plateau_step(tn_plateau *p, double value);

/* ---- Averages of weights --------------------------------------------------------------------- */

/* An average of a model's weights, kept beside them, which usually generalises better.
 *
 *     tn_average *ema = tn_ema(&net, 0.999);
 *     ... tn_optim_step(opt); tn_average_update(ema); ...
 *     {
 *         TN_AVERAGED(ema);      // until the `}` the model has the average
 *         ... evaluate, save ...
 *     }
 *     tn_average_free(ema);
 *
 * Buffers of floats are averaged too, such as a batch norm's running statistics. tn_update_bn
 * (train.h), in the scope, recomputes these, for as long as the scope lasts.
 *
 * Under FSDP each rank keeps the average of its parts: lay the model on ranks first. A checkpoint
 * saves it (tn_checkpoint.average). */
typedef struct tn_average tn_average;
/* decay old + (1 - decay) new; the first update copies. decay in [0, 1]. */
TN_API tn_average *tn_ema(void *m, double decay);
/* All updates count alike (Izmailov et al. 2018, arXiv:1803.05407). */
TN_API tn_average *tn_swa(void *m);
TN_API tn_status tn_average_update(tn_average *a);
TN_API int64_t tn_average_updates(const tn_average *a);
TN_API void tn_average_free(tn_average *a); /* end its scopes first */
#define TN_AVERAGED(a)                                                                   \
    __attribute__((cleanup(tn_average_end), unused)) tn_average *TN__UNIQUE(tn__mean_) = \
        tn_average_begin(a)
TN_API tn_average *tn_average_begin(tn_average *a);
TN_API void tn_average_end(tn_average **scope);

#ifdef __cplusplus
}
#endif
#endif
