/* 0 … n - 1 in random order: a new vector. Durstenfeld's shuffle (1964, "Algorithm 235") inside
 * out: each number goes to a place among those before it, whose number moves to the end. */
#include "backends/random.h"
#include "core/memory.h"
#include "ops/op.h"

#include <stdlib.h>

enum { DRAWN_BITS = 53 }; /* a place is chosen with a bias of less than n 2^-53 */

static tn_status shuffle_places(int64_t *place, int64_t n, tn_random_key key) {
    tn_desc drawn = {.data = place, .dtype = TN_I64, .ndim = 1, .size = {n}, .stride = {1}};
    tn_device cpu = tn_cpu();
    tn_status status = tn_backend_of(cpu)->random(tn_context_of(cpu), &drawn, TN_INTEGER, key, 0,
                                                  (double)(INT64_C(1) << DRAWN_BITS));
    for (int64_t i = 0; i < n; i++) {
        uint64_t word = (uint64_t)place[i] << (64 - DRAWN_BITS);
        int64_t j = (int64_t)tn__below(word, (uint64_t)i + 1);
        place[i] = place[j];
        place[j] = i;
    }
    return status;
}

tn_tensor *tn_randperm(int64_t n) {
    size_t bytes;
    if (!tn__bytes_of(TN_DIMS(n), TN_I64, &bytes, "randperm")) { return tn_inert(); }
    int64_t *place = tn__malloc_for(bytes, "randperm");
    if (!place) { return tn_inert(); }
    tn_status status = shuffle_places(place, n, tn__draw_key(tn_default_generator()));
    tn_tensor *y =
        tn__kernel_ok(status, "randperm") ? tn_from_data(place, TN_DIMS(n), TN_I64) : tn_inert();
    free(place);
    return y;
}
