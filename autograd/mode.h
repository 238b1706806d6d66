/* What autograd keeps per thread, and the process's anomaly switch. */
#ifndef TERN_AUTOGRAD_MODE_H
#define TERN_AUTOGRAD_MODE_H

#include "tern/autograd.h"

typedef struct tn__after {
    struct tn__after *next;
    void (*f)(void *user);
    void *user;
} tn__after;

typedef struct tn__grad_thread {
    bool off;           /* nothing is recorded */
    int backward_depth; /* nested runs */
    int ending;         /* ended outermost runs whose functions are being called */
    int accumulating;   /* of them, those that add to leaves */
    int recompute_depth;
    int first_pass_depth; /* forwards that will be run again, recorded */
    /* What a strategy notes about the forward that is running, to know it when backward runs a part
     * of it again. */
    int note;
    /* a backward rule is running: its NaNs are reported as its own, not as those of what it
     * calls */
    bool in_rule;
    tn__after *after;          /* for the end of the outermost run, in order */
    struct tn__tracer *tracer; /* tracer.h; NULL: operations are not traced */
} tn__grad_thread;

extern _Thread_local tn__grad_thread tn__grad_self __attribute__((tls_model("initial-exec")));
extern bool tn__anomaly;

/* Whether operations are recorded, now or when they run again in backward. */
static inline bool tn__will_record(void) {
    return !tn__grad_self.off || tn__grad_self.first_pass_depth > 0;
}

/* Raises when t has a NaN. `what` and `where` complete the message; where may be NULL. */
bool tn__anomaly_check(tn_tensor *t, const char *operation, const char *what, const char *where);

#endif
