/* A learning rate that falls when a metric stops improving (PyTorch's ReduceLROnPlateau). */
#include "optim/optim.h"

tn_plateau tn_plateau_defaults(double lr) {
    return (tn_plateau){
        .factor = 0.1, .patience = 10, .threshold = 1e-4, .eps = 1e-8, .state = {.lr = lr}};
}

static bool is_better(const tn_plateau *p, double value) {
    double best = p->state.best, margin = p->absolute ? p->threshold : p->threshold * best;
    if (!p->state.any) { return isfinite(value); }
    return p->larger_is_better ? value > best + margin : value < best - margin;
}

double tn_plateau_step(tn_plateau *p, double value) {
    if (!p) {
        tn__raise(TN_EVALUE, "plateau_step", "the plateau is NULL");
        return NAN;
    }
    tn_plateau_state *s = &p->state;
    if (is_better(p, value)) {
        s->best = value;
        s->any = true;
        s->bad = 0;
    } else {
        s->bad++;
    }
    if (s->cooldown > 0) {
        s->cooldown--;
        s->bad = 0;
    }
    if (s->bad > p->patience) {
        double lr = fmax(s->lr * p->factor, p->min_lr);
        s->lr = s->lr - lr > p->eps ? lr : s->lr;
        s->cooldown = p->cooldown;
        s->bad = 0;
    }
    return s->lr;
}
