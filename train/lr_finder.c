/* Finds a learning rate by trying: it rises at each step of a short training, and the loss shows
 * where it is large enough and where too large (Smith 2015, arXiv:1506.01186). Afterwards weights
 * and optimiser are restored.
 */
#include "core/alive.h"
#include "core/error.h"
#include "core/memory.h"
#include "tern/train.h"

#include <math.h>
#include <stdlib.h>

/* A tensor of the model or the optimiser, and its old value. */
typedef struct kept_tensor {
    tn_tensor *tensor, *was;
} kept_tensor;

struct tn_lr_finder {
    tn__alive alive;
    tn_lr_finder_options options;
    tn_optim *optim;
    kept_tensor *kept;
    int count;
    int64_t capacity;
    double lr; /* the rate and steps of the optimiser before */
    int64_t optim_steps;
    double *x, *y, *mean; /* [done]: log10 of the rate, the loss, its moving average */
    int64_t done;
    double moving, best;
    bool ended; /* everything is restored */
};

tn_lr_finder_options tn_lr_finder_defaults(void) {
    return (tn_lr_finder_options){.low = 1e-7,
                                  .high = 10.0,
                                  .steps = 100,
                                  .smooth = 0.05,
                                  .diverges = 5.0,
                                  .from_defaults = true};
}

/* ---- Keeping the old state ------------------------------------------------------------------- */

static bool keep_tensor(tn_lr_finder *f, tn_tensor *t) {
    if (!tn__grow(&f->kept, f->count + 1, &f->capacity, sizeof(*f->kept), "lr_finder")) {
        return false;
    }
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *was = tn_copy(tn_detach(t));
    if (tn_is_inert(was)) {
        return false;
    }
    f->kept[f->count++] = (kept_tensor){tn_keep(t), tn_keep(was)};
    return true;
}

static bool keep_entry(const tn_entry *entry, void *user) {
    return keep_tensor(user, entry->stored);
}

static bool keep_state(const char *name, tn_tensor *state, void *user) {
    return keep_tensor(user, state);
}

static void put_back(tn_lr_finder *f) {
    if (f->ended) {
        return;
    }
    f->ended = true;
    TN_SCOPE;
    TN_NO_GRAD;
    for (int i = 0; i < f->count; i++) {
        tn_copy_(f->kept[i].tensor, f->kept[i].was);
        tn_release(f->kept[i].tensor);
        tn_release(f->kept[i].was);
    }
    f->count = 0;
    tn_optim_zero_grad(f->optim);
    tn_optim_set_lr(f->optim, f->lr);
    tn_optim_set_steps(f->optim, f->optim_steps);
}

/* ---- Trying ---------------------------------------------------------------------------------- */

static bool finder_options_fit(const tn_lr_finder_options *o) {
    const char *wrong = TN__BEYOND({"steps", o->steps, 2, 1000000});
    if (!(o->low > 0 && o->high > o->low && isfinite(o->high))) {
        tn__raise(TN_EVALUE, "lr_finder", "low is %g but high is %g (it must rise, from above 0)",
                  o->low, o->high);
    } else if (wrong) {
        tn__raise(TN_EVALUE, "lr_finder", "%s", wrong);
    } else if (!(o->smooth > 0 && o->smooth <= 1)) {
        tn__raise(TN_EVALUE, "lr_finder", "smooth is %g (it must be above 0, at most 1)",
                  o->smooth);
    } else if (!(o->diverges > 1)) {
        tn__raise(TN_EVALUE, "lr_finder", "diverges is %g (it must be above 1)", o->diverges);
    } else {
        return true;
    }
    return false;
}

TN__ALIVE_LIST(finders, "finder");

tn_lr_finder *tn_lr_finder_new(void *m, tn_optim *optim, tn_lr_finder_options options) {
    if (tn__pending() || !tn__options_made(options.from_defaults, "lr_finder", "tn_lr_finder") ||
        !finder_options_fit(&options)) {
        return NULL;
    }
    if (!m || !optim) {
        tn__raise(TN_EVALUE, "lr_finder", "the %s is NULL", m ? "optimiser" : "module");
        return NULL;
    }
    tn_lr_finder *f = tn__calloc(1, sizeof(*f));
    double *numbers = f ? tn__calloc(3 * (size_t)options.steps, sizeof(*numbers)) : NULL;
    if (!numbers) {
        tn__raise(TN_ENOMEM, "lr_finder", "no memory for %lld steps", (long long)options.steps);
        free(f);
        return NULL;
    }
    *f = (tn_lr_finder){.options = options,
                        .optim = optim,
                        .lr = tn_optim_lr(optim),
                        .optim_steps = tn_optim_steps(optim),
                        .x = numbers,
                        .y = numbers + options.steps,
                        .mean = numbers + 2 * options.steps};
    tn__alive_begin(&finders, f);
    tn_module_each(m, (tn_walk){.buffers = true}, keep_entry, f);
    tn_optim_each(optim, keep_state, f);
    if (tn__pending()) {
        tn_lr_finder_free(f);
        return NULL;
    }
    return f;
}

static bool has_diverged(const tn_lr_finder *f) {
    double mean = f->done > 0 ? f->mean[f->done - 1] : 0.0;
    return isinf(mean) || (f->best > 0 && mean > f->options.diverges * f->best);
}

bool tn_lr_finder_next(tn_lr_finder *f) {
    if (!f || !tn__alive_is(&finders, f, "lr_finder_next") || f->ended || tn__pending()) {
        return false;
    }
    const tn_lr_finder_options *o = &f->options;
    if (f->done == o->steps || has_diverged(f)) {
        put_back(f);
        return false;
    }
    double part = (double)f->done / (double)(o->steps - 1);
    double lr = o->low * pow(o->high / o->low, part);
    tn_optim_set_lr(f->optim, lr);
    f->x[f->done] = log10(lr);
    f->y[f->done] = f->mean[f->done] = NAN;
    f->done++;
    return true;
}

void tn_lr_finder_log(tn_lr_finder *f, double loss) {
    if (!f || f->done == 0 || f->ended) {
        return;
    }
    int64_t at = f->done - 1;
    f->moving = at == 0 ? loss : f->moving + f->options.smooth * (loss - f->moving);
    f->moving = isfinite(f->moving) ? f->moving : INFINITY;
    f->y[at] = loss;
    f->mean[at] = f->moving;
    f->best = at == 0 || f->moving < f->best ? f->moving : f->best;
}

/* Uses central differences, so that no single step decides. */
double tn_lr_finder_suggest(const tn_lr_finder *f) {
    int64_t steepest = -1;
    double least = 0;
    for (int64_t i = 1; f && i + 1 < f->done; i++) {
        double slope = f->mean[i + 1] - f->mean[i - 1];
        if (slope < least) {
            least = slope;
            steepest = i;
        }
    }
    return steepest < 0 ? NAN : pow(10.0, f->x[steepest]);
}

/* ---- Looking --------------------------------------------------------------------------------- */

static tn_plot plot_trials(const tn_lr_finder *f, tn_curve curves[2]) {
    curves[0] =
        (tn_curve){.name = "each step", .x = f->x, .y = f->y, .count = f->done, .faint = true};
    curves[1] = (tn_curve){.name = "moving average", .x = f->x, .y = f->mean, .count = f->done};
    return (tn_plot){.title = "Loss by learning rate",
                     .x_label = "log10 of the learning rate",
                     .curves = curves,
                     .count = 2};
}

void tn_lr_finder_draw(const tn_lr_finder *f, FILE *file) {
    if (f && file) {
        tn_curve curves[2];
        tn_plot plot = plot_trials(f, curves);
        tn_plot_text(&plot, file, 80, 18);
    }
}

tn_status tn_lr_finder_svg(const tn_lr_finder *f, const char *path) {
    if (!f) {
        return tn__raise(TN_EVALUE, "lr_finder_svg", "the finder is NULL");
    }
    tn_curve curves[2];
    tn_plot plot = plot_trials(f, curves);
    return tn_plot_svg(&plot, path);
}

void tn_lr_finder_free(tn_lr_finder *f) {
    if (f && tn__alive_end(&finders, f, "lr_finder_free")) {
        tn_error_record record;
        bool failed = tn_error_take(&record); /* the old values are restored even then */
        put_back(f);
        if (failed) {
            tn_error_give(&record);
        }
        free(f->kept);
        free(f->x);
        free(f);
    }
}
