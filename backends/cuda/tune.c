/* Timing candidates with events in the compute stream. */
#include "backends/cuda/tune.h"

#include "backends/cuda/choices.h"

#include <pthread.h>
#include <stdlib.h>

enum { REPEATS = 5 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char wish; /* TERN_AUTOTUNE: '1', '0', or anything else */

static void read_wish(void) {
    const char *text = getenv("TERN_AUTOTUNE");
    wish = text && text[0] && !text[1] ? text[0] : 0;
    wish = !wish && tn__cuda_chosen()->tuned ? '1' : wish;
}

bool tn__cuda_tunes(const tn_context *ctx) {
    pthread_once(&once, read_wish);
    return wish == '1' || (wish != '0' && !ctx->deterministic);
}

/* Milliseconds of REPEATS runs, after one warm-up; negative: it does not run. */
static float time_of(tn_context *ctx, int i, tn__cuda_candidate run, void *user,
                     const cudaEvent_t event[2]) {
    float milliseconds = -1;
    bool runs = true;
    for (int k = 0; k <= REPEATS && runs; k++) {
        runs = run(ctx, i, user) &&
               (k > 0 || cudaEventRecord(event[0], tn__cuda_stream(ctx)) == cudaSuccess);
    }
    if (!runs || cudaEventRecord(event[1], tn__cuda_stream(ctx)) != cudaSuccess ||
        cudaEventSynchronize(event[1]) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, event[0], event[1]) != cudaSuccess) {
        return -1;
    }
    return milliseconds;
}

int tn__cuda_fastest(tn_context *ctx, int count, tn__cuda_candidate run, void *user) {
    cudaEvent_t event[2] = {NULL, NULL};
    int best = 0;
    float least = -1;
    if (cudaEventCreate(&event[0]) == cudaSuccess && cudaEventCreate(&event[1]) == cudaSuccess) {
        for (int i = 0; i < count; i++) {
            float milliseconds = time_of(ctx, i, run, user, event);
            if (milliseconds >= 0 && (least < 0 || milliseconds < least)) {
                least = milliseconds;
                best = i;
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        if (event[i]) { cudaEventDestroy(event[i]); }
    }
    return best;
}
