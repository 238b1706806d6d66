/* Loops and walks: the host's part. */
#include "backends/cuda/loop.h"

#include <stdlib.h>

/* ---- Dimensions ------------------------------------------------------------------------------ */

/* Dimensions of size other than 1, innermost first; if there are none, one of size 1. */
static void take_dims(tn__loop *loop, int operands, const tn_desc *const *op) {
    *loop = (tn__loop){.operands = operands, .ndim = 1, .size = {1}};
    int n = 0;
    for (int d = op[0]->ndim - 1; d >= 0; d--) {
        if (op[0]->size[d] == 1) { continue; }
        loop->size[n] = op[0]->size[d];
        for (int k = 0; k < operands; k++) {
            loop->stride[k][n] = op[k]->stride[d];
        }
        n++;
    }
    for (int k = 0; k < operands; k++) {
        loop->data[k] = (char *)op[k]->data;
        loop->element[k] = tn__cuda_element(op[k]->dtype);
        loop->stride[k][0] = n == 0 ? 1 : loop->stride[k][0];
    }
    loop->ndim = n == 0 ? 1 : n;
}

static void swap_dims(tn__loop *loop, int a, int b) {
    int64_t keep = loop->size[a];
    loop->size[a] = loop->size[b];
    loop->size[b] = keep;
    for (int k = 0; k < loop->operands; k++) {
        keep = loop->stride[k][a];
        loop->stride[k][a] = loop->stride[k][b];
        loop->stride[k][b] = keep;
    }
}

static void sort_dims(tn__loop *loop) {
    for (int d = 1; d < loop->ndim; d++) {
        for (int e = d; e > 0 && loop->stride[0][e - 1] > loop->stride[0][e]; e--) {
            swap_dims(loop, e - 1, e);
        }
    }
}

/* Whether dimension d + 1 continues dimension d in every operand. */
static bool dim_merges(const tn__loop *loop, int d) {
    for (int k = 0; k < loop->operands; k++) {
        if (loop->stride[k][d + 1] != loop->stride[k][d] * loop->size[d]) { return false; }
    }
    return true;
}

static void merge_dims(tn__loop *loop) {
    int last = 0;
    for (int d = 1; d < loop->ndim; d++) {
        swap_dims(loop, last + 1, d);
        if (dim_merges(loop, last)) {
            loop->size[last] *= loop->size[last + 1];
        } else {
            last++;
        }
    }
    loop->ndim = last + 1;
}

tn__loop tn__cuda_loop(int operands, const tn_desc *const *op) {
    tn__loop loop;
    take_dims(&loop, operands, op);
    sort_dims(&loop);
    merge_dims(&loop);
    return loop;
}

int64_t tn__cuda_loop_count(const tn__loop *loop) {
    int64_t count = 1;
    for (int d = 0; d < loop->ndim; d++) {
        count *= loop->size[d];
    }
    return count;
}

tn__walk tn__cuda_walk(int operands, const tn_desc *const *op) {
    tn__loop loop;
    take_dims(&loop, operands, op);
    merge_dims(&loop);
    tn__walk walk = {.ndim = loop.ndim, .count = tn__cuda_loop_count(&loop)};
    walk.narrow = walk.count <= INT32_MAX;
    for (int d = 0; d < loop.ndim; d++) {
        walk.size[d] = loop.size[d];
        for (int k = 0; k < operands; k++) {
            walk.stride[k][d] = loop.stride[k][d];
        }
    }
    for (int k = 0; k < operands; k++) {
        walk.data[k] = loop.data[k];
    }
    return walk;
}

/* ---- 32 bits --------------------------------------------------------------------------------- */

/* Tests on the emulator set TERN_EMULATOR_PLACES, so that small loops are cut, too. */
static int64_t most_places(void) {
#ifdef TN_CUDA_EMULATOR
    const char *wish = getenv("TERN_EMULATOR_PLACES");
    long long most = wish ? atoll(wish) : 0;
    return most >= 64 && most < INT32_MAX ? most : INT32_MAX;
#else
    return INT32_MAX;
#endif
}

bool tn__cuda_loop_fits(const tn__loop *loop) {
    int64_t most = most_places();
    bool fits = tn__cuda_loop_count(loop) <= most;
    for (int k = 0; k < loop->operands; k++) {
        int64_t last = 0;
        for (int d = 0; d < loop->ndim; d++) {
            last += (loop->size[d] - 1) * loop->stride[k][d];
        }
        fits = fits && last <= most;
    }
    return fits;
}

/* The dimension with the most elements between its ends. */
static int longest_dim(const tn__loop *loop) {
    int found = 0;
    int64_t most = -1;
    for (int d = 0; d < loop->ndim; d++) {
        for (int k = 0; k < loop->operands; k++) {
            int64_t extent =
                (loop->size[d] - 1) * (loop->stride[k][d] > 0 ? loop->stride[k][d] : 1);
            if (extent > most) {
                most = extent;
                found = d;
            }
        }
    }
    return found;
}

tn__loop tn__cuda_loop_cut(tn__loop *loop) {
    int d = longest_dim(loop);
    int64_t half = loop->size[d] / 2;
    half = d == 0 && half > 16 ? half / 16 * 16 : half; /* packs stay whole and aligned */
    tn__loop second = *loop;
    loop->size[d] = half;
    second.size[d] -= half;
    for (int k = 0; k < loop->operands; k++) {
        second.data[k] += half * loop->stride[k][d] * (int64_t)loop->element[k];
    }
    return second;
}

/* Size 0, a dimension too short for a pack, is never divided by: it has only a rest. */
static tn__divisor divisor_of(uint32_t size) {
    if (size == 0) { return (tn__divisor){0, 0, 0}; }
    tn__divisor d = {size, 0, 0};
    while (((uint64_t)1 << d.shift) < size) {
        d.shift++;
    }
    uint64_t above = ((uint64_t)1 << d.shift) - size;
    d.factor = (uint32_t)((above << 32) / size + 1);
    return d;
}

/* ---- Packs ----------------------------------------------------------------------------------- */

bool tn__cuda_loop_packs(const tn__loop *loop, int v) {
    if (loop->ndim > 1 && loop->size[0] % v != 0) { return false; }
    for (int k = 0; k < loop->operands; k++) {
        size_t align = loop->element[k] * (size_t)v;
        align = align < 16 ? align : 16;
        bool same = loop->stride[k][0] == 0;
        if (loop->stride[k][0] > 1 || (k == 0 && same)) { return false; }
        if (same) { continue; }
        if ((uintptr_t)loop->data[k] % align != 0) { return false; }
        for (int d = 1; d < loop->ndim; d++) {
            if (loop->stride[k][d] % v != 0) { return false; }
        }
    }
    return true;
}

tn__plan tn__cuda_loop_plan(const tn__loop *loop, int v) {
    tn__plan plan = {.ndim = loop->ndim};
    int64_t packs = loop->size[0] / v;
    plan.rest = (uint32_t)(loop->size[0] - packs * v);
    plan.count = (uint32_t)(packs * (tn__cuda_loop_count(loop) / loop->size[0]));
    for (int d = 0; d < loop->ndim; d++) {
        plan.size[d] = divisor_of((uint32_t)(d == 0 ? packs : loop->size[d]));
        for (int k = 0; k < loop->operands; k++) {
            plan.stride[k][d] = (uint32_t)(loop->stride[k][d] * (d == 0 ? v : 1));
        }
    }
    for (int k = 0; k < loop->operands; k++) {
        plan.data[k] = loop->data[k];
        plan.same[k] = loop->stride[k][0] == 0;
    }
    return plan;
}
