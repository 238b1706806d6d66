/* What loaders and checkpoints need from samplers besides the rule itself. */
#ifndef TERN_DATA_SAMPLER_H
#define TERN_DATA_SAMPLER_H

#include "tern/data.h"

/* The first 64 bits of tn_philox. */
static inline uint64_t tn__draw_word(uint64_t seed, uint64_t epoch, uint64_t call, uint64_t index) {
    tn_random4 r = tn_philox(seed, epoch, call, index);
    return (uint64_t)r.word[1] << 32 | r.word[0];
}

/* Where `position` of this part, a valid one, is in the whole order of an epoch. */
int64_t tn__sampler_place(const tn_sampler *s, int64_t size, int64_t position);

/* What identifies a sampler with a table: the table's digest and, for a bucketed one, how many
 * examples a step has in all parts together. */
void tn__sampler_identify(const tn_sampler *s, char digest[33], int64_t *step);

/* The example at `place` of the permutation by which tn_random_split draws. */
int64_t tn__split_index(uint64_t seed, int64_t size, int64_t place);

#endif
