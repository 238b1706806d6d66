/* What all files of a run ask of it: whether it is there, how far it is, what its ranks say. */
#include "train/run.h"

TN__ALIVE_LIST(runs, "run");

bool tn__run_here(const tn_run *r, const char *operation) {
    return tn__alive_is(&runs, r, operation);
}

void tn__run_opened(tn_run *r) {
    tn__alive_begin(&runs, r);
}

bool tn__run_closes(tn_run *r) {
    return tn__alive_end(&runs, r, "run_end");
}

bool tn__run_any_rank(const tn_run *r, bool mine) {
    return tn_group_mean(r->world, mine, 1) > 0;
}

int64_t tn_run_step(const tn_run *r) {
    return r && tn__run_here(r, "run_step") ? r->parts.step : 0;
}

bool tn_run_done(const tn_run *r) {
    return r && tn__run_here(r, "run_done") && !r->refused &&
           (r->parts.step >= r->options.steps || r->finished);
}
