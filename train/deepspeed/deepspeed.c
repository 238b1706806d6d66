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
#include "core/log.h"
#include "core/memory.h"
#include "distributed/group/agree.h"
#include "train/deepspeed/file.h"

#include <math.h>
#include <stdlib.h>

static const char operation[] = "deepspeed";

struct tn_deepspeed {
    tn__alive alive;
    void *model;
    tn_group *world;
    tn__ds_file file;
    tn_optim *optim; /* NULL: neither the file's nor the program's so far */
    double rate;     /* its learning rate before the schedule's */
    tn_scaler *scaler;
    int64_t backwards; /* since the optimiser's last step */
    bool step_owed;    /* for the last backward */
    double norm;
};

/* ---- Making one ------------------------------------------------------------------------------ */

/* Reads rank 0's file on every rank. False after raising, on all. */
static bool read_file(tn_deepspeed *d, tn_group *world, const char *path) {
    size_t bytes = 0;
    bool first = tn_group_rank(world) == 0;
    void *text = d && first ? tn_text_read(path, &bytes) : NULL;
    if (tn__agree(world, NULL, operation) != TN_OK || !d || !tn__agree_begin(world, operation)) {
        free(text);
        return false;
    }
    tn_broadcast_bytes(world, &text, &bytes, 0);
    bool read =
        !tn__pending() && tn__ds_read(&d->file, operation, path, text, bytes, tn_group_size(world));
    free(text);
    if (read && first && *d->file.unread) {
        tn__log_loud("%s: no effect here: %s", path, d->file.unread);
    }
    return tn__agree(world, NULL, operation) == TN_OK;
}

static void attach_ranks(const tn_deepspeed *d) {
    const tn__ds_file *f = &d->file;
    if (f->stage == 0) {
        tn_module_materialize(d->model);
        tn_ddp(d->model, d->world, TN_WITH(tn_ddp, .sum = f->sum, .find_unused = f->find_unused));
    } else {
        tn_fsdp(d->model, d->world, NULL,
                TN_WITH(tn_fsdp, .stage = (int)f->stage, .sum = f->sum,
                        .find_unused = f->find_unused,
                        .offload = f->offload_optimizer || f->offload_param));
    }
}

/* NULL: the file names none, or after raising. */
static tn_optim *make_optim(const tn_deepspeed *d) {
    const tn__ds_file *f = &d->file;
    tn_adam_options adam = TN_WITH(tn_adam, .lr = f->optimizer.lr, .beta1 = f->optimizer.betas[0],
                                   .beta2 = f->optimizer.betas[1], .eps = f->optimizer.eps,
                                   .weight_decay = f->optimizer.weight_decay);
    switch (f->optimizer.kind) {
    case TN__DS_SGD:
        return tn_sgd(d->model,
                      TN_WITH(tn_sgd, .lr = f->optimizer.lr, .momentum = f->optimizer.momentum,
                              .dampening = f->optimizer.dampening,
                              .weight_decay = f->optimizer.weight_decay,
                              .nesterov = f->optimizer.nesterov));
    case TN__DS_ADAM:
        return tn_adam(d->model, adam);
    case TN__DS_ADAMW:
        return tn_adamw(d->model, adam);
    default:
        return NULL;
    }
}

/* In bf16 the scale is 1; it only skips steps whose gradients overflowed. */
static void make_scaler(tn_deepspeed *d) {
    const tn__ds_file *f = &d->file;
    double first = f->fp16.scale > 0 ? f->fp16.scale : ldexp(1, (int)f->fp16.power);
    tn_scaler_options o = TN_WITH(tn_scaler, .scale = f->bf16.enabled ? 1 : first);
    if (f->fp16.enabled && f->fp16.scale == 0) { o.interval = f->fp16.window; }
    if (f->fp16.enabled || f->bf16.enabled) { d->scaler = tn_scaler_new(o); }
}

/* The schedule begins at the rate that the optimiser has now. */
static void use_optim(tn_deepspeed *d, tn_optim *optim) {
    if (d->optim != optim) { tn_optim_free(d->optim); }
    d->optim = optim;
    d->rate = tn_optim_lr(optim);
    tn_optim_set_lr(optim, tn_deepspeed_lr(d));
}

TN__ALIVE_LIST(engines, "engine of a DeepSpeed file");

tn_deepspeed *tn_deepspeed_new(void *m, tn_group *world, const char *path) {
    if (!tn__agree_begin(world, operation)) { return NULL; }
    if (!m || !path) { tn__raise(TN_EVALUE, operation, "the %s is NULL", m ? "path" : "module"); }
    tn_deepspeed *d = tn__pending() ? NULL : tn__calloc_for(1, sizeof(*d), operation);
    if (d) {
        *d = (tn_deepspeed){.model = m, .world = world, .norm = NAN};
        tn__alive_begin(&engines, d);
    }
    if (read_file(d, world, path) && d) {
        bool f16 = d->file.fp16.enabled;
        if (f16 || d->file.bf16.enabled) {
            tn_module_set_precision(m, TN_WITH(tn_precision, .compute = f16 ? TN_F16 : TN_BF16));
        }
        attach_ranks(d);
        make_scaler(d);
        use_optim(d, make_optim(d));
        if (!tn__pending()) { return d; }
        tn_group_abort(world, tn_error_message()); /* the others may not find it */
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
    if (!d) { tn__raise(TN_EVALUE, what, "it is NULL"); }
    return !tn__pending() && tn__alive_is(&engines, d, what);
}

tn_status tn_deepspeed_set_optim(tn_deepspeed *d, tn_optim *optim) {
    if (!may_use(d, "deepspeed_set_optim")) { return tn_error(); }
    if (!optim || d->backwards > 0 || tn_optim_steps(d->optim) > 0) {
        return tn__raise(optim ? TN_ESTATE : TN_EVALUE, "deepspeed_set_optim", "%s",
                         optim ? "the training has begun" : "the optimiser is NULL");
    }
    use_optim(d, optim);
    return tn_error();
}

bool tn_deepspeed_due(const tn_deepspeed *d) {
    return d && d->backwards + !d->step_owed == d->file.accumulation;
}

tn_status tn_deepspeed_backward(tn_deepspeed *d, tn_tensor *loss) {
    if (!may_use(d, "deepspeed_backward")) { return tn_error(); }
    if (d->step_owed || !d->optim) {
        return tn__raise(TN_ESTATE, "deepspeed_backward", "%s",
                         d->optim ? "tn_deepspeed_step was not called after the last backward"
                                  : "the file has no optimizer, and tn_deepspeed_set_optim was "
                                    "not called");
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

/* A scale given by the file, and bf16's, stays; another has an end below which it is an error. */
static tn_status adjust_scale(tn_deepspeed *d) {
    bool dynamic = d->file.fp16.enabled && d->file.fp16.scale == 0;
    double before = tn_scaler_where(d->scaler).scale, least = d->file.fp16.least;
    tn_scaler_update(d->scaler);
    tn_scaler_state now = tn_scaler_where(d->scaler);
    bool skipped = dynamic && tn_scaler_skipped(d->scaler);
    now.scale = !dynamic ? before : skipped ? fmax(now.scale, least) : now.scale;
    tn_status status = tn_scaler_seek(d->scaler, now);
    if (skipped && before <= least) {
        return tn__raise(TN_ESTATE, "deepspeed_step",
                         "gradients overflow with a loss scale of %g, and fp16.min_loss_scale is "
                         "%g",
                         before, least);
    }
    return status;
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
    if (!may_use(d, "deepspeed_step")) { return tn_error(); }
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
    bool scheduled = d && d->optim && d->file.schedule.kind >= 0;
    return scheduled ? tn__ds_lr(&d->file.schedule, d->rate, tn_optim_steps(d->optim))
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
