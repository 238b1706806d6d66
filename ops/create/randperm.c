/* 0 … n - 1 in random order: a new vector. Shuffled as by Durstenfeld (1964, "Algorithm 235"): each
 * position, from the last down, is swapped with one up to it. */
#include "backends/random.h"
#include "core/memory.h"
#include "ops/op.h"

#include <stdlib.h>

static void shuffle_places(int64_t *place, int64_t n, tn_random_key key) {
    for (int64_t i = 0; i < n; i++) {
        place[i] = i;
    }
    for (int64_t i = n - 1; i > 0; i--) {
        tn_random4 r = tn_philox(key.seed, key.stream, key.call, (uint64_t)i);
        int64_t j = (int64_t)tn__below(tn__word64(r.word[0], r.word[1]), (uint64_t)i + 1);
        int64_t moved = place[i];
        place[i] = place[j];
        place[j] = moved;
    }
}

tn_tensor *tn_randperm(int64_t n) {
    size_t bytes;
    if (!tn__bytes_of(TN_DIMS(n), TN_I64, &bytes, "randperm")) {
        return tn_inert();
    }
    int64_t *place = tn__malloc(bytes ? bytes : 1);
    if (!place) {
        tn__raise(TN_ENOMEM, "randperm", "no memory for %lld places", (long long)n);
        return tn_inert();
    }
    shuffle_places(place, n, tn__draw_key(tn_default_generator()));
    tn_tensor *y = tn_from_data(place, TN_DIMS(n), TN_I64);
    free(place);
    return y;
}
