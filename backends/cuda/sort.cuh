/* A stable sort of keys with the position that each came from, by CUB's radix sort (sort.cu): for
 * sums whose order must not depend on the machine.
 *
 *     TN__SCRATCH(char, memory, ctx, tn__sort_bytes(count));
 *     tn__sort sort = tn__sort_in(memory, count);
 *     …                                              a kernel fills keys[0] and at[0]
 *     status = tn__sort_run(ctx, &sort, limit);
 */
#ifndef TERN_BACKENDS_CUDA_SORT_CUH
#define TERN_BACKENDS_CUDA_SORT_CUH

#include "backends/cuda/kernel.h"

/* `count` keys in keys[0], their positions in at[0]; the rest is scratch memory. */
struct tn__sort {
    uint64_t *keys[2];
    uint32_t *at[2];
    void *scratch;
    size_t bytes; /* of scratch */
    uint32_t count;
};

/* Bytes of everything for this many keys, at most INT32_MAX. */
size_t tn__sort_bytes(int64_t count);
tn__sort tn__sort_in(void *memory, int64_t count);

/* Sorts by keys in [0, limit), of which 0 means 2^64; the result is in keys[0] and at[0]. */
tn_status tn__sort_run(tn_context *ctx, tn__sort *s, uint64_t limit);

#endif
