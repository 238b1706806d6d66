/* A step on a mesh: micro-batches from a loader, forward and backward, whatever the strategies. */
#include "core/memory.h"
#include "distributed/parallel/spread.h"
#include "models/language.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

/* Whether all n micro-batches were there. Data may end between two steps, not in one. */
static bool all_read(int64_t read, int64_t n) {
    if (read > 0 && read < n) {
        tn__raise(TN_EVALUE, "spread", "the data end after %lld of %lld micro-batches",
                  (long long)read, (long long)n);
    }
    return read == n && !tn__pending();
}

/* ---- Without a pipeline ---------------------------------------------------------------------- */

/* The loss, on the device: reading it here would make the host wait. */
static tn_tensor *micro_step(tn_module *m, const tn_batch *b, int64_t n, tn_scaler *scaler) {
    TN_SCOPE;
    double share = 1.0 / (double)n, ahead = scaler ? share * tn_scaler_where(scaler).scale : share;
    tn_tensor *loss = tn__lm_losses(m, b->x, b->y, TN_MEAN, ahead);
    tn_tensor *part = tn_mul_scalar(loss, share);
    tn_backward(scaler ? tn_scaler_scale(scaler, part) : part);
    return tn_return(tn_cast(tn_detach(loss), TN_F64)); /* so that a sum is that of ranks */
}

static double accumulate_step(tn_spread *s, tn_loader *data, int64_t n, tn_scaler *scaler) {
    TN_SCOPE;
    /* with sharded gradients there is no memory to accumulate whole ones */
    bool keeps = s->options.shard == 1 || s->options.sharding.stage < 2;
    tn_tensor *sum = tn_scalar(0, TN_F64);
    int64_t i = 0;
    for (tn_batch b; i < n && tn_loader_next(data, &b); i++) {
        TN_NO_SYNC(i + 1 < n && keeps ? s->module : NULL);
        tn_add_(sum, micro_step(s->module, &b, n, scaler));
    }
    return all_read(i, n) ? tn_item(sum) / (double)n : NAN;
}

static double evaluate_batches(tn_spread *s, tn_loader *data, int64_t n) {
    double sum = 0;
    int64_t i = 0;
    for (tn_batch b; i < n && tn_loader_next(data, &b); i++) {
        TN_SCOPE;
        sum += tn_item(tn_lm_loss(s->module, b.x, b.y));
    }
    return all_read(i, n) ? sum / (double)n : NAN;
}

/* ---- With one -------------------------------------------------------------------------------- */

/* Copies of the next n micro-batches: the loader lends one at a time. The first stage reads x, the
 * last y. The tensors are the scope's. NULL after an error, or at the end of the data. */
static tn_batch *copy_batches(tn_spread *s, tn_loader *data, int64_t n) {
    tn_group *pp = tn_mesh_group(s->mesh, "pp");
    tn_batch *all = tn__calloc_for((size_t)n, sizeof(*all), "spread");
    int64_t i = 0;
    for (tn_batch b; all && i < n && tn_loader_next(data, &b); i++) {
        all[i].x = tn_group_rank(pp) == 0 ? tn_copy(b.x) : NULL;
        all[i].y = tn_group_rank(pp) == tn_group_size(pp) - 1 ? tn_copy(b.y) : NULL;
    }
    if (all && all_read(i, n)) { return all; }
    free(all);
    return NULL;
}

static double pipeline_step(tn_spread *s, tn_loader *data, int64_t n, tn_scaler *scaler,
                            bool training) {
    TN_SCOPE;
    tn_batch *batches = copy_batches(s, data, n);
    double loss = NAN;
    if (batches || tn__pending()) { /* an error ends the others' wait */
        loss = training ? tn_pipeline_step(s->pipeline, batches, (int)n, scaler)
                        : tn_pipeline_loss(s->pipeline, batches, (int)n);
    }
    free(batches);
    return loss;
}

/* ---- Both ------------------------------------------------------------------------------------ */

static bool call_fits(const tn_spread *s, const tn_loader *data, int64_t n, const char *operation) {
    if (!s || !data || n < 1 || n > INT_MAX) {
        const char *wrong = !s      ? "the spread is NULL"
                            : !data ? "the loader is NULL"
                            : n < 1 ? "n is below 1"
                                    : "n is above 2147483647";
        return tn__fail(TN_EVALUE, operation, "%s", wrong);
    }
    return true;
}

double tn_spread_step(tn_spread *s, tn_loader *data, int64_t n, tn_scaler *scaler) {
    if (!call_fits(s, data, n, "spread_step")) { return NAN; }
    return s->pipeline ? pipeline_step(s, data, n, scaler, true)
                       : accumulate_step(s, data, n, scaler);
}

double tn_spread_loss(tn_spread *s, tn_loader *data, int64_t n) {
    if (!call_fits(s, data, n, "spread_loss")) { return NAN; }
    TN_NO_GRAD;
    tn__modes modes;
    tn__modes_set(s->module, false, "spread_loss", &modes); /* an error ends the others' wait */
    double loss =
        s->pipeline ? pipeline_step(s, data, n, NULL, false) : evaluate_batches(s, data, n);
    tn__modes_restore(s->module, &modes);
    return loss;
}
