/* The roofline, measured: a large copy, a large product.
 *
 * Sizes grow until one call takes a while, so that this is quick on a slow device and right on a
 * fast one. Kernels are called directly, so none of this is profiled.
 */
#include "profile/roofline.h"

#include "core/clock.h"
#include "core/fork.h"
#include "tern/sys/backend.h"
#include "tern/sys/device.h"

#include <pthread.h>

enum { KINDS = 2, TIMES = 5 };
static const double LONG_ENOUGH = 5e-3; /* seconds that a measured call must take */

/* The lock is not held while one thread measures and others wait: kernels take locks of their own,
 * and a child of fork must find it free. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t measured = PTHREAD_COND_INITIALIZER;
static bool measuring;
static tn__roofline given, found[KINDS];
static bool known[KINDS];

/* The threads that measure and wait stayed in the parent. */
static void begin_child(void) {
    measured = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    measuring = false;
}

__attribute__((constructor)) static void care_for_fork(void) {
    tn__fork_takes(&lock);
    pthread_atfork(NULL, NULL, begin_child);
}

typedef struct probe {
    const tn_backend *kernels;
    tn_context *ctx;
    tn_desc y, a, b;
    bool product;
} probe;

static double once_through(probe *p) {
    const tn_device_table *devices = tn__device_table(p->ctx->device);
    double begin = tn__now();
    tn_status status = p->product ? p->kernels->matmul(p->ctx, &p->y, &p->a, &p->b, 1, 0)
                                  : p->kernels->copy(p->ctx, &p->y, &p->a);
    if (devices && status == TN_OK) { status = devices->synchronize(p->ctx->device.index); }
    return status == TN_OK ? tn__now() - begin : 0;
}

/* Seconds of the fastest of some calls on n numbers, or with matrices of n x n; 0: it failed. */
static double fastest_of(probe *p, tn_dtype dtype, int64_t n) {
    int64_t count = p->product ? n * n : n;
    size_t bytes = (size_t)count * tn_dtype_size(dtype);
    char *memory = p->ctx->workspace(p->ctx, 3 * bytes);
    if (!memory) { return 0; }
    tn_desc all = {.dtype = dtype, .ndim = 1, .size = {3 * count}, .stride = {1}, .data = memory};
    tn_desc one =
        p->product
            ? (tn_desc){.dtype = dtype, .ndim = 3, .size = {1, n, n}, .stride = {n * n, n, 1}}
            : (tn_desc){.dtype = dtype, .ndim = 1, .size = {n}, .stride = {1}};
    p->y = p->a = p->b = one;
    p->y.data = memory;
    p->a.data = memory + bytes;
    p->b.data = memory + 2 * bytes;
    double best = p->kernels->fill(p->ctx, &all, 1.0) == TN_OK ? once_through(p) : 0;
    for (int i = 0; i < TIMES && best > LONG_ENOUGH / 4; i++) {
        double seconds = once_through(p);
        best = seconds < best ? seconds : best;
    }
    p->ctx->workspace_free(p->ctx, memory, 3 * bytes);
    return best;
}

/* Doubles n until a call takes long enough. Seconds of the fastest then; 0: it failed. */
static double grow_probe(probe *p, tn_dtype dtype, int64_t *n, int64_t most) {
    double seconds = fastest_of(p, dtype, *n);
    while (seconds > 0 && seconds < LONG_ENOUGH && *n < most) {
        *n *= 2;
        seconds = fastest_of(p, dtype, *n);
    }
    return seconds;
}

static double measure_flops(probe *p, tn_dtype dtype, bool host) {
    int64_t n = 64;
    p->product = true;
    double seconds = grow_probe(p, dtype, &n, host ? 2048 : 8192);
    return seconds > 0 ? 2.0 * (double)n * (double)n * (double)n / seconds : 0;
}

static double measure_bytes(probe *p, bool host) {
    int64_t n = 1 << 18;
    p->product = false;
    double seconds = grow_probe(p, TN_F32, &n, host ? 1 << 24 : 1 << 27);
    return seconds > 0 ? 2.0 * (double)n * (double)tn_dtype_size(TN_F32) / seconds : 0;
}

static tn__roofline measure_limits(tn_device device, tn__roofline limits) {
    bool host = device.kind == TN_CPU;
    probe p = {.kernels = tn_backend_of(device), .ctx = tn_context_of(device)};
    if (!p.kernels || !p.ctx) { return limits; }
    limits.bytes = limits.bytes > 0 ? limits.bytes : measure_bytes(&p, host);
    limits.flops = limits.flops > 0 ? limits.flops : measure_flops(&p, TN_F32, host);
    limits.half_flops =
        limits.half_flops > 0 ? limits.half_flops : measure_flops(&p, TN_BF16, host);
    return limits;
}

static bool same_limits(tn__roofline a, tn__roofline b) {
    return a.bytes == b.bytes && a.flops == b.flops && a.half_flops == b.half_flops;
}

/* Under the lock, which is released meanwhile. If `given` changes then, the result is not kept. */
static tn__roofline measure_alone(tn_device device) {
    tn__roofline wanted = given;
    measuring = true;
    pthread_mutex_unlock(&lock);
    tn__roofline limits = measure_limits(device, wanted);
    pthread_mutex_lock(&lock);
    measuring = false;
    pthread_cond_broadcast(&measured);
    found[device.kind] = limits;
    known[device.kind] = same_limits(wanted, given);
    return limits;
}

tn__roofline tn__roofline_of(tn_device device) {
    tn__roofline limits = {0};
    if ((unsigned)device.kind < KINDS) {
        pthread_mutex_lock(&lock);
        while (measuring && !known[device.kind]) {
            pthread_cond_wait(&measured, &lock);
        }
        limits = known[device.kind] ? found[device.kind] : measure_alone(device);
        pthread_mutex_unlock(&lock);
    }
    return limits;
}

bool tn__roofline_known(tn_device_kind kind, tn__roofline *limits) {
    pthread_mutex_lock(&lock);
    bool there = (unsigned)kind < KINDS && known[kind];
    *limits = there ? found[kind] : (tn__roofline){0};
    pthread_mutex_unlock(&lock);
    return there;
}

void tn__roofline_give(tn__roofline limits) {
    pthread_mutex_lock(&lock);
    bool same = same_limits(limits, given);
    given = limits;
    for (int i = 0; i < KINDS && !same; i++) {
        known[i] = false;
    }
    pthread_mutex_unlock(&lock);
}
