/* Who frees a dataset: whatever takes one registers here, so that a second owner is noticed.
 *
 * A dataset has keepers + 1 references. `takers` counts those that belong to a loader or to a
 * dataset made from it; the others are the program's. */
#ifndef TERN_DATA_TAKEN_H
#define TERN_DATA_TAKEN_H

#include "tern/data.h"

/* A reference to d becomes the caller's. False after raising if all references are taken or d was
 * freed; then it keeps its owner. NULL is accepted. */
bool tn__dataset_take(tn_dataset *d, const char *operation);

/* Drops a reference that tn__dataset_take took. */
void tn__dataset_give_up(tn_dataset *d);

/* A dataset whose examples look like d's, as many of them; it has no functions, fields or owners.
 */
static inline tn_dataset tn__dataset_like(const tn_dataset *d, const char *kind) {
    return (tn_dataset){.kind = kind,
                        .size = d->size,
                        .x_dims = d->x_dims,
                        .y_dims = d->y_dims,
                        .x_dtype = d->x_dtype,
                        .y_dtype = d->y_dtype,
                        .classes = d->classes};
}

#endif
