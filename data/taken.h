/* Who frees a dataset: what takes one says so here, so that a second owner is noticed.
 *
 * A dataset has keepers + 1 references. `takers` counts those that belong to a loader or to a
 * dataset made of it; the others are the program's. */
#ifndef TERN_DATA_TAKEN_H
#define TERN_DATA_TAKEN_H

#include "tern/data.h"

/* A reference to d becomes the caller's. False after raising, and d keeps its owner: all of its
 * references are taken, or it was freed. NULL is accepted. */
bool tn__dataset_take(tn_dataset *d, const char *operation);

/* Ends what tn__dataset_take began. */
void tn__dataset_give_up(tn_dataset *d);

#endif
