/* Random numbers under data parallelism.
 *
 * The stream of the default generator is the number of the global micro-batch, 1 for the first. In
 * round k the ranks 0, 1, … N-1 have the micro-batches k N + 1, k N + 2, …; one rank that
 * accumulates N of them draws the same numbers in turn. So both draw the same dropout.
 *
 * A round ends with the outermost backward. The stream is read as "somewhere in round k" before
 * every forward, so a generator that was seeded again, or loaded from rank 0's checkpoint, is keyed
 * as well. A recomputed forward finds the generator as it was before the first run, perhaps not yet
 * keyed, and keys it to the same.
 */
#include "distributed/parallel/base.h"

tn__round tn__round_of(const tn_group *outer, const tn_group *inner) {
    int size = tn_group_size(inner);
    return (tn__round){.ranks = tn_group_size(outer) * size,
                       .rank = tn_group_rank(outer) * size + tn_group_rank(inner)};
}

void tn__round_begin(tn__round r) {
    tn_generator *generator = tn_default_generator();
    uint64_t ranks = (uint64_t)r.ranks, rank = (uint64_t)r.rank;
    if (generator->stream == 0) { /* what was drawn so far belongs to no micro-batch */
        generator->call = 0;
        generator->stream = 1;
    }
    generator->stream = (generator->stream - 1) / ranks * ranks + rank + 1;
}

/* How many ranks the round ending with the current backward has; 0: no round. */
static _Thread_local int ending;

static void next_round(void *unused) {
    tn_default_generator()->stream += (uint64_t)ending;
    tn_default_generator()->call = 0;
    ending = 0;
}

tn_status tn__round_end(tn__round r) {
    if (ending > 0) { return TN_OK; }
    tn_status status = tn_after_backward(next_round, NULL);
    ending = status == TN_OK ? r.ranks : 0;
    return status;
}
