/* Short training runs on a mesh of ranks, threads or processes, and a digest of the results: it
 * depends on the mesh, not on the engine between the ranks. */
#ifndef TERN_TESTS_PARALLEL_MESH_TRAIN_H
#define TERN_TESTS_PARALLEL_MESH_TRAIN_H

#include "tests/parallel/mesh_model.h"
#include "tests/parallel/train.h"
#include "tests/support/ranks.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct mesh_digest {
    char digits[33];
} mesh_digest;

enum { MESH_STEPS = 2, MESH_MICROS = 2, MESH_ROWS = 2 };

/* One step of two micro-batches of this rank's data; appends loss and norm. */
static inline void mesh_step(tn_spread *spread, tn_loader *loader, tn_optim *opt,
                             train_bits *bits) {
    double told[2] = {tn_spread_step(spread, loader, MESH_MICROS, NULL)};
    told[0] = tn_group_mean(tn_spread_data(spread), told[0], 1);
    told[1] = tn_optim_clip(opt, 0.5);
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
    memcpy(train_grow(bits, sizeof(told)), told, sizeof(told));
}

/* Losses, norms and all parameters, malloc'ed. */
static inline train_bits mesh_bits(tn_group *world, const mesh_shape *s, bool bf16,
                                   const char *mesh) {
    TN_SCOPE;
    train_bits bits = {0};
    mesh_model m;
    mesh_init(&m, s, 3 + (uint64_t)tn_group_rank(world), false); /* rank 0's weights are used */
    if (bf16) {
        tn_module_set_precision(&m, tn_precision_defaults());
    }
    tn_spread *spread = mesh_spread(&m, world, mesh);
    tn_optim *opt = spread ? tn_adamw(&m, TN_WITH(tn_adamw, .lr = 1e-2)) : NULL;
    tn_loader *loader = spread ? mesh_loader(tn_spread_data(spread), MESH_ROWS) : NULL;
    for (int step = 0; step < MESH_STEPS && !tn_error(); step++) {
        mesh_step(spread, loader, opt, &bits);
    }
    train_join(&bits, train_whole(&m, world));
    tn_loader_free(loader);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_spread_free(spread);
    return bits;
}

/* The digest for a GPT with dropout in f32 and a Llama that computes in bf16; the same on all
 * ranks. After an error, the digest of no bytes. */
static inline mesh_digest mesh_train(tn_group *world, const char *mesh) {
    mesh_digest d;
    mesh_shape gpt = mesh_shape_of(false), llama = mesh_shape_of(true);
    gpt.dropout = 0.1;
    train_bits bits = mesh_bits(world, &gpt, false, mesh);
    train_join(&bits, mesh_bits(world, &llama, true, mesh));
    XXH128_hash_t hash = XXH3_128bits(bits.data, tn_error() == TN_OK ? bits.bytes : 0);
    snprintf(d.digits, sizeof(d.digits), "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    free(bits.data);
    return d;
}

/* ---- The meshes, and the results of ranks as threads ----------------------------------------- */

static const char *const meshes_of_two[] = {"tp=2",      "tp=2,sequence", "cp=2",
                                            "cp=2,keys", "pp=2",          NULL};
static const char *const meshes_of_four[] = {"tp=2,shard=2",
                                             "tp=2,dp=2,sequence",
                                             "cp=2,shard=2,stage=2",
                                             "cp=2,dp=2,keys",
                                             "tp=2,cp=2",
                                             "pp=2,tp=2,sequence",
                                             "pp=4",
                                             "pp=2,shard=2,stage=1",
                                             NULL};

typedef struct mesh_threads {
    const char *mesh;
    tn_device device;
    mesh_digest of[RANKS_MOST];
} mesh_threads;

static inline void mesh_thread(tn_group *world, void *user) {
    mesh_threads *t = user;
    int rank = tn_group_rank(world);
    tn_set_default_device(t->device.kind == TN_CPU ? t->device : tn_cuda(rank % 2));
    t->of[rank] = mesh_train(world, t->mesh);
}

/* "MESH DIGEST MESH DIGEST …": the argument of mesh_expected. */
static inline const char *mesh_expectation(int ranks, tn_device device, const char *const *meshes) {
    static char text[1024];
    int at = 0;
    for (int i = 0; meshes[i]; i++) {
        mesh_threads t = {.mesh = meshes[i], .device = device};
        run_ok(ranks, mesh_thread, &t);
        for (int r = 1; r < ranks; r++) {
            assert_string_equal(t.of[r].digits, t.of[0].digits);
        }
        for (int k = 0; k < i; k++) { /* the digests must differ */
            assert_null(strstr(text, t.of[0].digits));
        }
        at += snprintf(text + at, sizeof(text) - (size_t)at, "%s%s %s", i ? " " : "", meshes[i],
                       t.of[0].digits);
        assert_true(at < (int)sizeof(text));
    }
    return text;
}

/* In a rank: whether training on each mesh has the expected digest. */
static inline bool mesh_expected(tn_group *world, const char *expectation) {
    char mesh[64];
    mesh_digest want;
    bool good = true;
    for (int length; sscanf(expectation, " %63s %32s%n", mesh, want.digits, &length) == 2;
         expectation += length) {
        mesh_digest is = mesh_train(world, mesh);
        if (strcmp(is.digits, want.digits) != 0) {
            fprintf(stderr, "%s: differs from ranks as threads (%s)\n", mesh, tn_error_message());
            good = false;
        }
    }
    return good;
}

#endif
