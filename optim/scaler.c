/* The scale of a loss in f16: torch.cuda.amp.GradScaler's rule.
 *
 * One reduction over the gradients, which clipping needs anyway, tells whether all are finite: the
 * sum of their squares, in double, is finite if and only if they are. There is no other pass over
 * them, since the step divides by the scale as it reads them.
 */
#include "optim/optim.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>

struct tn_scaler {
    tn__alive alive;
    tn_scaler_options options;
    tn_scaler_state state;
    const tn_optim *clipped; /* whose norm is known: tn_scaler_clip was called before the step */
    double norm;             /* of its gradients, with the scale */
    int steps;               /* since the last update, including skipped ones */
    bool overflow;           /* one of them was skipped */
    bool skipped;            /* the same, until the next step after an update */
};

TN__ALIVE_LIST(scalers, "scaler");

tn_scaler_options tn_scaler_defaults(void) {
    return (tn_scaler_options){.scale = 65536.0,
                               .growth = 2.0,
                               .backoff = 0.5,
                               .interval = 2000,
                               .enabled = true,
                               .from_defaults = true};
}

/* A scale must be finite in f32, the dtype it multiplies. */
static bool scale_fits(double scale) {
    return scale > 0.0 && isfinite((float)scale);
}

static bool options_fit(const tn_scaler_options *o) {
    const char *wrong = TN__BEYOND({"interval", o->interval, 1, 0});
    if (!scale_fits(o->scale)) {
        tn__raise(TN_EVALUE, "scaler", "scale is %g (it must be positive, and finite in f32)",
                  o->scale);
    } else if (!(o->growth > 1.0 && isfinite(o->growth))) {
        tn__raise(TN_EVALUE, "scaler", "growth is %g (it must be above 1, and finite)", o->growth);
    } else if (!(o->backoff > 0.0 && o->backoff < 1.0)) {
        tn__raise(TN_EVALUE, "scaler", "backoff is %g (it must be between 0 and 1)", o->backoff);
    } else if (wrong) {
        tn__raise(TN_EVALUE, "scaler", "%s", wrong);
    } else {
        return true;
    }
    return false;
}

tn_scaler *tn_scaler_new(tn_scaler_options options) {
    if (tn__pending() || !tn__options_made(options.from_defaults, "scaler", "tn_scaler") ||
        !options_fit(&options)) {
        return NULL;
    }
    tn_scaler *s = tn__malloc_for(sizeof(*s), "scaler");
    if (!s) { return NULL; }
    *s = (tn_scaler){.options = options, .state = {.scale = options.enabled ? options.scale : 1.0}};
    tn__alive_begin(&scalers, s);
    return s;
}

const tn_field tn__scaler_fields[] = {
    TN_FIELD_OPTION(tn_scaler, growth),
    TN_FIELD_OPTION(tn_scaler, backoff),
    TN_FIELD_OPTION(tn_scaler, interval),
    TN_FIELD_OPTION(tn_scaler, enabled),
    {0},
};

void tn_scaler_free(tn_scaler *s) {
    if (s && tn__alive_end(&scalers, s, "scaler_free")) { free(s); }
}

/* False after raising, and while an error is pending. */
static bool scaler_usable(const tn_scaler *s, const tn_optim *opt, const char *operation) {
    if (tn__pending()) { return false; }
    if (!s || !opt) {
        return tn__fail(TN_EVALUE, operation, "the %s is NULL", s ? "optimiser" : "scaler");
    }
    return tn__alive_is(&scalers, s, operation) && tn__optim_here(opt, operation);
}

tn_tensor *tn_scaler_scale(tn_scaler *s, tn_tensor *loss) {
    if (!s) {
        tn__raise(TN_EVALUE, "scaler_scale", "the scaler is NULL");
        return tn_inert();
    }
    if (!tn__usable(loss, "scaler_scale") || !tn__alive_is(&scalers, s, "scaler_scale")) {
        return tn_inert();
    }
    return s->options.enabled ? tn_mul_scalar(loss, s->state.scale) : loss;
}

double tn_scaler_clip(tn_scaler *s, tn_optim *opt, double max_norm) {
    if (!scaler_usable(s, opt, "scaler_clip")) { return NAN; }
    if (!(max_norm >= 0.0)) {
        tn__raise(TN_EVALUE, "scaler_clip", "max_norm is %g (must not be negative)", max_norm);
        return NAN;
    }
    s->clipped = opt;
    s->norm = tn__optim_norm(opt, "scaler_clip");
    tn__optim_scale(opt, tn__clip_scale(s->norm / s->state.scale, max_norm));
    return s->norm / s->state.scale;
}

tn_status tn_scaler_step(tn_scaler *s, tn_optim *opt) {
    if (!scaler_usable(s, opt, "scaler_step")) { return tn_error(); }
    if (!s->options.enabled) {
        s->steps++;
        return tn_optim_step(opt);
    }
    double norm = s->clipped == opt ? s->norm : tn__optim_norm(opt, "scaler_step");
    s->clipped = NULL;
    if (tn__pending()) { return tn_error(); }
    s->overflow |= !isfinite(norm);
    s->skipped = s->overflow;
    tn_status status = TN_OK;
    if (isfinite(norm)) {
        opt->grad_scale /= s->state.scale;
        status = tn_optim_step(opt);
    } else {
        tn__optim_scale(opt, 1.0);
    }
    s->steps += status == TN_OK;
    return status;
}

tn_status tn_scaler_update(tn_scaler *s) {
    if (tn__pending() || !s) { return tn__raise(TN_EVALUE, "scaler_update", "the scaler is NULL"); }
    if (!tn__alive_is(&scalers, s, "scaler_update")) { return tn_error(); }
    if (s->steps == 0) {
        return tn__raise(TN_ESTATE, "scaler_update", "no step since the last update");
    }
    tn_scaler_state *state = &s->state;
    if (!s->options.enabled) {
        s->steps = 0;
        return TN_OK;
    }
    if (s->overflow) {
        state->scale *= s->options.backoff;
        state->streak = 0;
    } else if (++state->streak >= s->options.interval) {
        double larger = state->scale * s->options.growth;
        state->scale = scale_fits(larger) ? larger : state->scale;
        state->streak = 0;
    }
    s->steps = 0;
    s->overflow = false;
    return TN_OK;
}

bool tn_scaler_skipped(const tn_scaler *s) {
    return s && tn__alive_is(&scalers, s, "scaler_skipped") && s->skipped;
}

tn_scaler_state tn_scaler_where(const tn_scaler *s) {
    bool here = s && tn__alive_is(&scalers, s, "scaler_where");
    return here ? s->state : (tn_scaler_state){.scale = 1.0};
}

tn_status tn_scaler_seek(tn_scaler *s, tn_scaler_state state) {
    if (!s || tn__pending()) { return tn__raise(TN_EVALUE, "scaler_seek", "the scaler is NULL"); }
    if (!tn__alive_is(&scalers, s, "scaler_seek")) { return tn_error(); }
    if (!scale_fits(state.scale) || state.streak < 0) {
        return tn__raise(TN_EVALUE, "scaler_seek", "scale %g, streak %lld", state.scale,
                         (long long)state.streak);
    }
    s->state = state;
    return TN_OK;
}
