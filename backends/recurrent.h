/* What kernels of recurrent cells have in common (tn_recurrent in tern/sys/backend.h). */
#ifndef TERN_BACKENDS_RECURRENT_H
#define TERN_BACKENDS_RECURRENT_H

#include "core/inline.h"
#include "tern/sys/backend.h"

/* G, the number of gates with weights, and K, how many values are kept per unit. */
TN__INLINE int tn__cell_gates(tn_cell cell) {
    return cell == TN_CELL_LSTM ? 4 : cell == TN_CELL_GRU ? 3 : 1;
}
TN__INLINE int tn__cell_kept(tn_cell cell) {
    return cell == TN_CELL_LSTM || cell == TN_CELL_GRU ? 4 : 1;
}

/* The time of step i. */
static inline int64_t tn__recurrent_time(const tn_recurrent *r, int64_t i, int64_t times) {
    return r->reverse ? times - 1 - i : i;
}

static inline bool tn__recurrent_lives(const tn_recurrent *r, int64_t t, int64_t b) {
    const tn_desc *l = r->lengths;
    return !l || t < (l->dtype == TN_I64 ? ((const int64_t *)l->data)[b]
                                         : (int64_t)((const int32_t *)l->data)[b]);
}

#endif
