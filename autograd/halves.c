/* A backward in two halves (halves.h): the engine's runs, kept in between. */
#include "autograd/halves.h"
#include "autograd/run.h"
#include "core/memory.h"

#include <stdlib.h>

/* On the heap, for the second half; NULL after raising. */
static tn__run *halved_run(tn_tensor *const *roots, tn_tensor *const *grads, int n,
                           bool accumulate) {
    const char *operation = accumulate ? "backward" : "grad";
    if (!tn__check_roots(roots, grads, n, operation)) { return NULL; }
    tn__run *run = tn__calloc_for(1, sizeof(*run), operation);
    if (!run || !tn__run_enter(operation)) {
        free(run);
        return NULL;
    }
    *run = (tn__run){.accumulate = accumulate, .halved = true};
    return run;
}

void tn__rest_free(tn__run *rest) {
    if (rest) {
        tn__run_finish(rest);
        free(rest);
    }
}

/* The run, for its second half; NULL if the first has failed. */
static tn__run *rest_of(tn__run *run) {
    if (!tn__pending()) { return run; }
    tn__rest_free(run);
    return NULL;
}

static bool enter_rest(tn__run *rest, const char *operation) {
    rest->second = true;
    return !tn__pending() && tn__run_enter(operation);
}

tn__run *tn__backward_input(tn_tensor *root, tn_tensor *grad, tn_tensor *input) {
    tn__run *run = halved_run(&root, &grad, 1, true);
    if (run) { tn__run_accumulate(run, &root, &grad, 1, input); }
    return rest_of(run);
}

tn_status tn__backward_rest(tn__run *rest) {
    if (enter_rest(rest, "backward")) { tn__run_accumulate(rest, NULL, NULL, 0, NULL); }
    tn__rest_free(rest);
    return tn_error();
}

tn__run *tn__grad_inputs(tn_tensor *const *roots, tn_tensor *const *grads, int n,
                         tn_tensor *const *inputs, int inputs_n, tn_tensor *const *later,
                         int later_n, tn_tensor **results) {
    tn__run *run = halved_run(roots, grads, n, false);
    if (run) {
        run->later = tn__calloc_for((size_t)later_n + 1, sizeof(tn_tensor *), "grad");
        for (int i = 0; i < later_n && run->later; i++) {
            run->later[run->later_n++] = tn_keep(later[i]);
        }
        tn__run_capture(run, roots, grads, n, inputs, inputs_n, results, true);
    }
    return rest_of(run);
}

tn_status tn__grad_rest(tn__run *rest, tn_tensor **results) {
    if (enter_rest(rest, "grad")) {
        tn__run_capture(rest, NULL, NULL, 0, rest->later, rest->later_n, results, true);
    }
    tn__rest_free(rest);
    return tn_error();
}
