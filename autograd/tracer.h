/* Notes operations as they run: a trace of a forward, for a file in another library's format
 * (io/onnx/onnx.c). A tracer is one thread's, and sees each call of tn_apply after its shape rule,
 * views included, recorded or not.
 *
 * A call whose operation it does not know can be opened: the composition runs instead, and its
 * calls are seen.
 */
#ifndef TERN_AUTOGRAD_TRACER_H
#define TERN_AUTOGRAD_TRACER_H

#include "tern/sys/op.h"

typedef enum tn__tracer_choice {
    TN__TRACER_PASS, /* run, and not noted */
    TN__TRACER_NOTE, /* run, and then noted */
    TN__TRACER_OPEN, /* the operation's composition, which it has, instead */
    TN__TRACER_FAIL  /* what was raised */
} tn__tracer_choice;

typedef struct tn__tracer tn__tracer;
struct tn__tracer {
    tn__tracer_choice (*choose)(tn__tracer *tracer, const tn_op_call *c);
    bool (*note)(tn__tracer *tracer, const tn_op_call *c); /* false after raising */
    /* an x that y will become a part of is changed in place, by no call; false after raising */
    bool (*change)(tn__tracer *tracer, const tn_tensor *y, const char *operation);
};

/* From now on in this thread; NULL: none. Returns the one before. */
tn__tracer *tn__tracer_begin(tn__tracer *tracer);

/* Reports to the tracer that something becomes a function of y in place. False after raising. */
bool tn__tracer_change(const tn_tensor *y, const char *operation);

/* ---- A call's arguments by their names (tn_op.fields) ---------------------------------------- */

/* The operation must have the field: an error of ours, TN_ESTATE, if it does not. */
int64_t tn__arg_whole(const tn_op_call *c, const char *name); /* numbers and bools */
double tn__arg_real(const tn_op_call *c, const char *name);
tn_dims tn__arg_dims(const tn_op_call *c, const char *name); /* an array of int64_t, too */

#endif
