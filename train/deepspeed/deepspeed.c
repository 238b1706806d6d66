/* A run by DeepSpeed's file: builds what the file asks for (file.c reads it) from Tern's parts, and
 * has the step that goes with it.
 *
 *     backward   loss / accumulation, times the loss scale; before the last micro-batch nothing is
 *                sent, unless gradients are in parts: then whole ones have no memory
 *     step       after the last micro-batch: the learning rate, the norm, the optimiser, the loss
 *                scale
 *
 * The same calls written by hand give the same bits.
 */
#include "tern/deepspeed.h"

#include "core/alive.h"
#include "core/memory.h"
#include "train/deepspeed/file.h"

#include <math.h>
#include <stdlib.h>

static const char operation[] = "deepspeed";

struct tn_deepspeed {
    tn__alive alive;
    void *model;
    tn_group *world;
    tn__ds_file file;
    tn_optim *optim;
    tn_scaler *scaler;
    int64_t patience;  /* overflows until the loss scale falls */
    int64_t backwards; /* since the optimiser's last step */
    bool step_owed;    /* for the last backward */
    double norm;
};

/* ---- Making one ------------------------------------------------------------------------------ */

/* Rank 0's file on every rank, malloc'ed. NULL after raising, on all. */
static void *share_text(tn_group *world, const char *path, size_t *bytes) {
    void *text = NULL;
    if (tn_group_rank(world) == 0) {
        text = tn_text_read(path, bytes);
    }
    tn_broadcast_bytes(world, &text, bytes, 0); /* rank 0's error ends the others' wait */
    if (tn__pending()) {
        free(text);
        text = NULL;
    }
    return text;
}

/* False after raising. */
static bool read_file(tn_deepspeed *d, const char *path) {
    tn__keys keys = {.operation = operation, .file = path};
    size_t bytes = 0;
    void *text = share_text(d->world, path, &bytes);
    bool done = text && tn__ds_read(&d->file, &keys, text, bytes, tn_group_size(d->world));
    free(text);
    if (done && *keys.idle && tn_group_rank(d->world) == 0) {
        tn_log_write(TN_LOG_INFO, "%s: no effect here: %s", path, keys.idle);
    }
    return done;
}

static void set_precision(tn_deepspeed *d) {
    bool f16 = d->file.fp16.enabled;
    if (f16 || d->file.bf16.enabled) {
        tn_precision policy = tn_precision_defaults();
        policy.compute = f16 ? TN_F16 : TN_BF16;
        tn_module_set_precision(d->model, policy);
    }
}

static void attach_ranks(tn_deepspeed *d) {
    const tn__ds_file *f = &d->file;
    if (f->stage == 0) {
        tn_ddp_options o = tn_ddp_defaults();
        o.sum = f->sum;
        o.find_unused = f->find_unused;
        tn_module_materialize(d->model);
        tn_ddp(d->model, d->world, o);
    } else {
        tn_fsdp_options o = tn_fsdp_defaults();
        o.stage = (int)f->stage;
        o.sum = f->sum;
        o.find_unused = f->find_unused;
        o.offload = f->offload_optimizer || f->offload_param;
        tn_fsdp(d->model, d->world, NULL, o);
    }
}

static void make_optim(tn_deepspeed *d) {
    tn_sgd_options sgd = tn_sgd_defaults();
    sgd.lr = d->file.optimizer.lr;
    sgd.momentum = d->file.optimizer.momentum;
    sgd.dampening = d->file.optimizer.dampening;
    sgd.weight_decay = d->file.optimizer.weight_decay;
    sgd.nesterov = d->file.optimizer.nesterov;
    tn_adam_options adam = tn_adam_defaults();
    adam.lr = d->file.optimizer.lr;
    adam.beta1 = d->file.optimizer.betas[0];
    adam.beta2 = d->file.optimizer.betas[1];
    adam.eps = d->file.optimizer.eps;
    adam.weight_decay = d->file.optimizer.weight_decay;
    switch ((tn__ds_optimizer)d->file.optimizer.kind) {
    case TN__DS_SGD:
        d->optim = tn_sgd(d->model, sgd);
        break;
    case TN__DS_ADAM:
        d->optim = tn_adam(d->model, adam);
        break;
    case TN__DS_ADAMW:
        d->optim = tn_adamw(d->model, adam);
        break;
    }
}

/* In bf16 the scale is 1; it only skips steps whose gradients overflowed. */
static void make_scaler(tn_deepspeed *d) {
    const tn__ds_file *f = &d->file;
    tn_scaler_options o = tn_scaler_defaults();
    o.interval = INT64_MAX; /* adjust_scale decides */
    o.scale = f->bf16.enabled     ? 1
              : f->fp16.scale > 0 ? f->fp16.scale
                                  : ldexp(1, (int)f->fp16.power);
    if (f->fp16.enabled || (f->bf16.enabled && f->bf16.check_overflow)) {
        d->scaler = tn_scaler_new(o);
    }
    d->patience = f->fp16.hysteresis;
}

TN__ALIVE_LIST(engines, "engine of a DeepSpeed file");

static tn_deepspeed *make_one(void *m, tn_group *world) {
    tn_deepspeed *d = tn__calloc_for(1, sizeof(*d), operation);
    if (!d) {
        return NULL;
    }
    *d = (tn_deepspeed){.model = m, .world = world, .norm = NAN};
    tn__alive_begin(&engines, d);
    return d;
}

tn_deepspeed *tn_deepspeed_new(void *m, tn_group *world, const char *path) {
    if (!m || !path) {
        tn__raise(TN_EVALUE, operation, "the %s is NULL", m ? "path" : "module");
    }
    tn_deepspeed *d = tn__pending() ? NULL : make_one(m, world);
    bool done = d && read_file(d, path), alike = d && !done && tn_error() != TN_ENOMEM;
    if (done) {
        set_precision(d);
        attach_ranks(d);
        make_optim(d);
        make_scaler(d);
    }
    if (!tn__pending()) {
        tn_optim_set_lr(d->optim, tn_deepspeed_lr(d));
        return d;
    }
    if (!alike) { /* all ranks find what is wrong with the file, but not this */
        tn_group_abort(world, tn_error_message());
    }
    tn_deepspeed_free(d);
    return NULL;
}

void tn_deepspeed_free(tn_deepspeed *d) {
    if (d && tn__alive_end(&engines, d, "deepspeed_free")) {
        tn_optim_free(d->optim);
        tn_scaler_free(d->scaler);
        free(d);
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* False after raising, or with an error pending. */
static bool may_use(const tn_deepspeed *d, const char *what) {
    if (!d) {
        tn__raise(TN_EVALUE, what, "it is NULL");
    }
    return !tn__pending() && tn__alive_is(&engines, d, what);
}

bool tn_deepspeed_due(const tn_deepspeed *d) {
    return d && d->backwards + !d->step_owed == d->file.accumulation;
}

tn_status tn_deepspeed_backward(tn_deepspeed *d, tn_tensor *loss) {
    if (!may_use(d, "deepspeed_backward")) {
        return tn_error();
    }
    if (d->step_owed) {
        return tn__raise(TN_ESTATE, "deepspeed_backward",
                         "tn_deepspeed_step was not called after the last backward");
    }
    TN_SCOPE;
    tn_tensor *share = tn_mul_scalar(loss, 1.0 / (double)d->file.accumulation);
    share = d->scaler ? tn_scaler_scale(d->scaler, share) : share;
    if (tn_deepspeed_due(d) || d->file.stage >= 2) {
        tn_backward(share);
    } else {
        TN_NO_SYNC(d->model);
        tn_backward(share);
    }
    d->step_owed = !tn__pending();
    d->backwards += d->step_owed;
    return tn_error();
}

/* ---- Step ------------------------------------------------------------------------------------ */

/* DeepSpeed's rule for the loss scale. It falls when overflows have used up the hysteresis, and
 * grows after `window` + 1 steps without one, then after every further `window`; tn_scaler counts
 * them. A scale given by the file stays fixed. */
static tn_status adjust_scale(tn_deepspeed *d) {
    const tn__ds_file *f = &d->file;
    double before = tn_scaler_where(d->scaler).scale, least = f->fp16.least;
    tn_scaler_update(d->scaler);
    tn_scaler_state now = tn_scaler_where(d->scaler);
    bool overflow = tn_scaler_skipped(d->scaler), dynamic = f->fp16.enabled && f->fp16.scale == 0;
    bool falls = dynamic && overflow && d->patience == 1;
    bool grows = dynamic && now.streak > 1 && (now.streak - 1) % f->fp16.window == 0;
    now.scale = falls ? fmax(before / 2, least) : grows ? fmin(before * 2, 0x1p127) : before;
    if (grows || (f->fp16.refill && !overflow)) {
        d->patience = f->fp16.hysteresis;
    } else if (overflow && !falls) {
        d->patience--;
    }
    tn_scaler_seek(d->scaler, now);
    if (falls && before <= least) {
        return tn__raise(TN_ESTATE, "deepspeed_step",
                         "gradients overflow with a loss scale of %g, and fp16.min_loss_scale is "
                         "%g",
                         before, least);
    }
    return tn_error();
}

static void step_optim(tn_deepspeed *d) {
    double most = d->file.clipping > 0 ? d->file.clipping : INFINITY;
    tn_optim_set_lr(d->optim, tn_deepspeed_lr(d));
    if (d->scaler) {
        d->norm = tn_scaler_clip(d->scaler, d->optim, most);
        tn_scaler_step(d->scaler, d->optim);
        adjust_scale(d);
    } else {
        d->norm = tn_optim_clip(d->optim, most);
        tn_optim_step(d->optim);
    }
    tn_optim_zero_grad(d->optim);
}

tn_status tn_deepspeed_step(tn_deepspeed *d) {
    if (!may_use(d, "deepspeed_step")) {
        return tn_error();
    }
    if (!d->step_owed) {
        return tn__raise(TN_ESTATE, "deepspeed_step",
                         "tn_deepspeed_backward was not called after the last step");
    }
    bool due = tn_deepspeed_due(d);
    d->step_owed = false;
    if (due) {
        d->backwards = 0;
        step_optim(d);
    }
    return tn_error();
}

/* ---- What a program asks --------------------------------------------------------------------- */

tn_deepspeed_sizes tn_deepspeed_batch(const tn_deepspeed *d) {
    return d ? (tn_deepspeed_sizes){d->file.batch, d->file.micro_batch, d->file.accumulation}
             : (tn_deepspeed_sizes){0};
}

double tn_deepspeed_lr(const tn_deepspeed *d) {
    bool scheduled = d && d->file.schedule.kind != TN__DS_NO_SCHEDULER;
    return scheduled ? tn__ds_lr(&d->file.schedule, tn_optim_steps(d->optim))
           : d       ? tn_optim_lr(d->optim)
                     : 0;
}

double tn_deepspeed_norm(const tn_deepspeed *d) {
    return d ? d->norm : NAN;
}

tn_optim *tn_deepspeed_optim(tn_deepspeed *d) {
    return d ? d->optim : NULL;
}

tn_checkpoint tn_deepspeed_checkpoint(const tn_deepspeed *d) {
    return d ? (tn_checkpoint){.model = d->model,
                               .optim = d->optim,
                               .scaler = d->scaler,
                               .step = tn_optim_steps(d->optim)}
             : (tn_checkpoint){0};
}
