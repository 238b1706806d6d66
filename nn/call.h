/* What happens around a call (call.c), and calls that several modules share. */
#ifndef TERN_NN_CALL_H
#define TERN_NN_CALL_H

#include "nn/module.h"
#include "tern/sys/op.h"

/* Nothing but inert tensors: what a failed call returns. */
tn_values tn__no_values(void);

/* Moves results out of the current scope. */
void tn__return_values(const tn_values *values);

/* Whether a call of m with x would do nothing but run this forward with this weight, and x's device
 * has a kernel of its own for op, which may then stand for the call and what follows it. */
bool tn__may_fuse(const tn_module *m, tn_module_forward forward, const tn_tensor *weight,
                  const tn_tensor *x, const tn_op *op);

/* ---- Hooks around a call: nn/hooks.c --------------------------------------------------------- */

tn_values tn__hooks_before(tn_module *m, tn_values in);
tn_values tn__hooks_after(tn_module *m, tn_values in, tn_values out);

/* One recorded call whose module has backward hooks. */
typedef struct tn__watch tn__watch;

/* NULL when no hook asks for backward or nothing is recorded (or after TN_ENOMEM). Puts identity
 * nodes on *in. */
tn__watch *tn__watch_inputs(tn_module *m, tn_values *in);
/* Puts identity nodes on *out and releases watch, which the nodes then hold. NULL is fine. */
void tn__watch_outputs(tn__watch *watch, tn_values *out);

/* ---- Precision around a call: nn/precision.c ------------------------------------------------- */

/* The policy of m: its own, or the nearest of the modules around it; NULL: none. */
const tn_precision *tn__precision_of(const tn_module *m);

/* Whether a call of m on these inputs has nothing to cast and nothing to lend. */
bool tn__precision_idle(const tn_module *m, const tn_values *in);

/* Casts floating inputs. False after raising. */
bool tn__precision_inputs(const tn_module *m, tn_values *in);

/* Puts copies into the fields of m and of what is below it, and the parameters back. `begin`
 * returns true if it did so; then `end` must follow, even after an error; *ok is false after
 * raising. */
bool tn__precision_begin(tn_module *m, bool *ok);
void tn__precision_end(tn_module_lists *lists);

/* Casts the outputs where the policy of m itself says so. */
void tn__precision_outputs(const tn_module *m, tn_values *out);

#endif
