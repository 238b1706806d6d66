/* A random network of dump_onnx_random.c: what its steps have, and how they draw their numbers. */
#ifndef TERN_TESTS_IO_RANDOM_NETWORK_H
#define TERN_TESTS_IO_RANDOM_NETWORK_H

#include <stdio.h>
#include <stdlib.h>

#include <tern/tern.h>

enum { MOST_STEPS = 8, MOST_TRIES = 60, MOST_PARTS = 120, LARGEST = 4000 };

typedef struct network {
    tn_module base;
    tn_generator draw;
    uint64_t seed;
    bool batched, first_run;
    uint64_t step;               /* the one that runs: its stream of numbers */
    int kept[MOST_STEPS], count; /* the steps that are in the network */
    const char *names[MOST_STEPS];
    /* Weights and layers, each of one step, in the order in which the step asks for them. */
    struct {
        uint64_t step;
        int place;
        tn_tensor *weight;
        tn_rnn *layer, *exact; /* exact: the same in f64 */
    } parts[MOST_PARTS];
    int part_count, place;
    tn_tensor *before[MOST_STEPS + 1]; /* what each step was given */
    int before_count;
} network;

typedef tn_tensor *(*network_step)(network *n, tn_tensor *x); /* NULL: it does not fit x */

/* ---- Drawing --------------------------------------------------------------------------------- */

/* From low to high, both included. */
static inline int64_t pick_integer(network *n, int64_t low, int64_t high) {
    return low + tn_random_below(&n->draw, high - low + 1);
}

static inline bool toss_coin(network *n) {
    return pick_integer(n, 0, 1) == 1;
}

static inline double pick_real(network *n, double low, double high) {
    return low + (high - low) * tn_random_uniform(&n->draw);
}

/* One of x's dimensions that steps may touch; -1: there is none. */
static inline int any_dim(network *n, tn_tensor *x) {
    int first = n->batched ? 1 : 0;
    return tn_ndim(x) > first ? (int)pick_integer(n, first, tn_ndim(x) - 1) : -1;
}

/* The step's next part: the one that an earlier run made, or a new one without anything. */
static inline int next_part(network *n) {
    int place = n->place++;
    for (int i = 0; i < n->part_count; i++) {
        if (n->parts[i].step == n->step && n->parts[i].place == place) {
            return i;
        }
    }
    if (n->part_count == MOST_PARTS) {
        fprintf(stderr, "dump_onnx_random: MOST_PARTS is too small\n");
        exit(1);
    }
    n->parts[n->part_count].step = n->step;
    n->parts[n->part_count].place = place;
    return n->part_count++;
}

/* A parameter of the network, in x's dtype. */
static inline tn_tensor *next_weight(network *n, tn_tensor *x, tn_dims dims) {
    int i = next_part(n);
    if (!n->parts[i].weight) {
        char name[32];
        snprintf(name, sizeof(name), "w%d", i);
        tn_tensor *t = tn_mul_scalar(tn_randn(dims, TN_F32), 0.5);
        tn_module_param(n, name, &n->parts[i].weight, t);
    }
    return tn_cast(n->parts[i].weight, tn_dtype_of(x));
}

/* The same above 0; the same, or nothing half of the time. */
static inline tn_tensor *positive_weight(network *n, tn_tensor *x, tn_dims dims) {
    return tn_add_scalar(tn_square(next_weight(n, x, dims)), 0.5);
}
static inline tn_tensor *optional_weight(network *n, tn_tensor *x, tn_dims dims) {
    return toss_coin(n) ? next_weight(n, x, dims) : NULL;
}

/* x's shape, or one that broadcasts to it, in which dimension 0 of a batch is 1. */
static inline tn_dims broadcastable_dims(network *n, tn_tensor *x) {
    tn_dims dims = tn_shape(x);
    int gone = dims.ndim > 0 && toss_coin(n) ? (int)pick_integer(n, 0, dims.ndim - 1) : 0;
    for (int i = 0; i < dims.ndim; i++) {
        if ((i == 0 && n->batched) || pick_integer(n, 0, 3) == 0) {
            dims.size[i] = 1;
        }
    }
    return tn_dims_from(dims.ndim - gone, dims.size + gone);
}

#endif
