/* Collating: the examples at some positions of an epoch become the tensors of one batch. */
#ifndef TERN_DATA_COLLATE_H
#define TERN_DATA_COLLATE_H

#include "data/stage.h"
#include "tern/data.h"

/* The tensors of a batch. */
typedef enum tn__batch_part {
    TN__BATCH_X,
    TN__BATCH_Y,
    TN__BATCH_VALID,
    TN__BATCH_LENGTHS,
    TN__BATCH_Y_LENGTHS,
    TN__BATCH_PARTS
} tn__batch_part;

typedef struct tn__collated {
    tn_tensor *part[TN__BATCH_PARTS]; /* one reference each; NULL: the batch has no such part */
    tn__stage stage;                  /* unused on the CPU */
} tn__collated;

/* What to read, and for which device. */
typedef struct tn__collator {
    tn_dataset *dataset;
    tn_sampler sampler;
    tn_device device;
    char x_pad[8], y_pad[8]; /* one element of x, and of y */
} tn__collator;

/* Whether examples differ in their first dimension. */
static inline bool tn__dims_vary(tn_dims dims) {
    return dims.ndim > 0 && dims.size[0] == -1;
}

/* Makes `mine` describe both; false if they differ in more than the first size of sequences. */
bool tn__dims_join(tn_dims *mine, tn_dims other, bool sequences);

/* Sets x_pad and y_pad. False after raising. */
bool tn__collator_pads(tn__collator *c, double x_pad, double y_pad);

/* The examples at positions first … first + count - 1 of the sampler's epoch; no tensors after an
 * error. */
void tn__collate(const tn__collator *c, int64_t epoch, int64_t first, int64_t count,
                 tn__collated *into);

/* Releases the tensors; the stage stays. Before the tensors are used: tn__stage_join. */
void tn__collated_release(tn__collated *b);

#endif
