/* Where the gradients that a kernel makes go, decided here for each input.
 *
 *     FRESH      new memory                                              given to the run
 *     FILL       memory of others, written as a whole: the operation's   given to the run
 *                (tn_op.dx_out), or a leaf's buffer (tn_set_grad_buffer)
 *     ADD        the run's sum so far                                    nothing more to do
 *     CONTINUE   the gradient that an earlier backward left in the leaf  the leaf keeps it
 *
 * A kernel adds (tn_op.adds) to all that it could add to, or to none.
 */
#ifndef TERN_AUTOGRAD_TARGET_H
#define TERN_AUTOGRAD_TARGET_H

#include "autograd/run.h"

typedef enum tn__target {
    TN__TARGET_FRESH,
    TN__TARGET_FILL,
    TN__TARGET_ADD,
    TN__TARGET_CONTINUE
} tn__target;

/* The sum in `dtype` to which a kernel may add the gradient of input i; NULL: there is none. */
tn_tensor *tn__target_sum(tn_op_grad *g, int i, tn_dtype dtype, tn__target *how);

/* Memory on `device` for the gradient of input i. `made`: as for dx_out, which is asked unless it
 * is NULL. Inert after raising. */
tn_tensor *tn__target_memory(tn_op_grad *g, int i, tn_dtype dtype, tn_device device,
                             tn_tensor *const *made, tn__target *how);

/* After the kernel has added to the leaf's gradient behind input i. */
void tn__target_continued(tn_op_grad *g, int i);

/* When the leaf of such a gradient is done: an error if the gradient has been replaced. */
tn_status tn__target_check(const tn__slot *leaf);

#endif
