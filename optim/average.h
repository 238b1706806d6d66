/* What checkpoints need of an average of weights. */
#ifndef TERN_OPTIM_AVERAGE_H
#define TERN_OPTIM_AVERAGE_H

#include "optim/optim.h"

/* Visits each parameter's average, like tn__optim_each. */
void tn__average_each(tn_average *a, tn__optim_visitor *f, void *user);
void tn__average_set_updates(tn_average *a, int64_t updates);
extern const tn_field tn__average_fields[]; /* its options */

#endif
