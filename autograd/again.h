/* Forwards that backward runs again (recompute.c, nn/reversible.c). The first time they are not
 * recorded; the second time they are, and must find everything as it was. */
#ifndef TERN_AUTOGRAD_AGAIN_H
#define TERN_AUTOGRAD_AGAIN_H

#include "autograd/halves.h"
#include "autograd/mode.h"

/* Begins a forward that is not recorded, since it will run again (`again`) or since nothing is.
 * Returns what `end` restores. */
static inline bool tn__first_pass_begin(bool again) {
    tn__grad_self.first_pass_depth += again;
    return tn_grad_mode_begin(tn_grad_mode() && !again);
}
static inline void tn__first_pass_end(bool again, bool before) {
    tn_grad_mode_end(&before);
    tn__grad_self.first_pass_depth -= again;
}

/* What the forward depends on beside its inputs. */
typedef struct tn__moment {
    tn_generator generator;
    int note; /* tn__grad_thread.note */
} tn__moment;

static inline tn__moment tn__moment_now(void) {
    return (tn__moment){*tn_default_generator(), tn__grad_self.note};
}
static inline void tn__moment_set(const tn__moment *m) {
    *tn_default_generator() = m->generator;
    tn__grad_self.note = m->note;
}

typedef struct tn__replay {
    tn__moment after;
    bool recorded;
} tn__replay;

/* Begins the second run of a forward that first ran at moment `m`, recorded or not. Returns what
 * `end` restores. */
static inline tn__replay tn__replay_begin(const tn__moment *m, bool record) {
    tn__replay before = {.after = tn__moment_now()};
    tn__moment_set(m);
    tn__grad_self.recompute_depth++;
    before.recorded = tn_grad_mode_begin(record);
    return before;
}
static inline void tn__replay_end(const tn__replay *before) {
    tn_grad_mode_end(&before->recorded);
    tn__grad_self.recompute_depth--;
    tn__moment_set(&before->after);
}

/* Gives the gradients of a node whose forward, or composition (rule.c), has run again, from `in` to
 * `out`. `in` are its first inputs, NULL where `out` does not lead to one; the others are
 * parameters. rest: as of tn__rule_rest, or NULL. */
void tn__give_again(tn_op_grad *g, tn_values in, tn_values out, tn__run **rest);

#endif
