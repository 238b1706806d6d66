/* Exercise 9: a distributed sampler: who sees which sample. The page is 09_sampler.md. */
#include "../tiny/tiny.c"
#include "judge.h"

/* Writes this rank's samples of an epoch into `mine`, in their order, and returns how many there
 * are. Each of the samples 0 … count - 1 belongs to one rank. The ranks' numbers of samples differ
 * by at most 1. `order_seed` is the same on all ranks; `seed`, of uniform(), is not. */
long sampler(long *mine, long count, uint64_t order_seed, long epoch) {
    long n = 0;
    /* ---- yours ---- */
    (void)mine, (void)count, (void)order_seed, (void)epoch;
    /* ---- end ---- */
    return n;
}

/* ---- The judge ---- */

enum { MOST = 1000 };
int refuse(long count, const char *what) {
    return differs("%ld samples on %d ranks: %s", count, world, what);
}

/* One epoch on all ranks. owner[i] becomes the rank of sample i, first[r] rank r's first one.
 * `alike` counts the steps that are as long as a rank's first one. */
long alike, steps;
int epoch_of(long count, uint64_t order_seed, long epoch, int *owner, long *first) {
    long mine[MOST * RANKS], least = MOST, most = 0;
    char what[200];
    for (long i = 0; i < count; i++) { owner[i] = -1; }
    for (rank = 0; rank < world; rank++) {
        uint64_t before = seed = 12345 + 77 * (uint64_t)rank;
        for (long i = 0; i < MOST * RANKS; i++) { mine[i] = -7; }
        long n = sampler(mine, count, order_seed, epoch);
        if (seed != before) {
            return refuse(count, "the seed of uniform() is not put back (is it set from "
                                 "order_seed and epoch, and kept before?)");
        }
        for (long i = 0; i < n; i++) {
            if (mine[i] < 0 || mine[i] >= count) {
                snprintf(what, 200, "rank %d, place %ld: expected a sample, got %ld", rank, i,
                         mine[i]);
                return refuse(count, what);
            }
            if (owner[mine[i]] >= 0) {
                snprintf(what, 200,
                         "sample %ld comes twice, on ranks %d and %d (another order on "
                         "each rank, or a last part that is filled up?)",
                         mine[i], owner[mine[i]], rank);
                return refuse(count, what);
            }
            owner[mine[i]] = rank;
            if (i > 1) {
                steps++, alike += (mine[i] - mine[i - 1] - mine[1] + mine[0]) % count == 0;
            }
        }
        first[rank] = mine[0];
        least = n < least ? n : least, most = n > most ? n : most;
    }
    for (long i = 0; i < count; i++) {
        snprintf(what, 200, "sample %ld: expected on one rank, got on none", i);
        if (owner[i] < 0) { return refuse(count, what); }
    }
    snprintf(what, 200, "parts of %ld and %ld samples: expected at most 1 more", least, most);
    return most - least > 1 ? refuse(count, what) : 0;
}

int main(void) {
    int owner[2][MOST];
    long first[2][RANKS];
    for (int trial = 0; trial < 200; trial++) {
        seed = (uint64_t)trial;
        long count = trial < 20 ? trial : 50 + (long)(uniform() * (MOST - 50));
        world = 1 + trial % 8;
        for (long epoch = 0; epoch < 2; epoch++) {
            if (epoch_of(count, 99 + (uint64_t)trial, epoch, owner[epoch], first[epoch])) {
                return 1;
            }
        }
        if (count < 50) { continue; }
        if (first[0][0] == first[1][0] && first[0][world - 1] == first[1][world - 1]) {
            return refuse(count, "epochs 0 and 1 begin with the same sample (where is `epoch`?)");
        }
        if (world > 1 && memcmp(owner[0], owner[1], sizeof(int) * (size_t)count) == 0) {
            return refuse(count, "a rank sees the same samples in each epoch, only in another "
                                 "order (cut after the shuffle)");
        }
        epoch_of(count, 99 + (uint64_t)trial, 1, owner[0], first[0]);
        if (memcmp(owner[0], owner[1], sizeof(int) * (size_t)count) != 0) {
            return refuse(count, "the same epoch again is not the same");
        }
        for (long epoch = 0; epoch < 2; epoch++) {
            epoch_of(count, 100 + (uint64_t)trial, epoch, owner[0], first[0]);
            if (memcmp(owner[0], owner[1], sizeof(int) * (size_t)count) != 0) { continue; }
            if (memcmp(first[0], first[1], sizeof(long) * (size_t)world) != 0) { continue; }
            return refuse(count, epoch ? "another order_seed gives the same order"
                                       : "epoch 1 has the order of the next order_seed's epoch 0 "
                                         "(is their sum the seed?)");
        }
    }
    if (alike > steps / 3) {
        return differs("%ld of %ld steps from a sample to the next are equally long: is the order "
                       "shuffled?",
                       alike, steps);
    }
    return pass();
}
