/* Short training runs on a mesh of ranks, threads or processes, and a digest of the results: it
 * depends on the mesh, not on the engine between the ranks. */
#ifndef TERN_TESTS_PARALLEL_MESH_TRAIN_H
#define TERN_TESTS_PARALLEL_MESH_TRAIN_H

#include "tests/parallel/train.h"
#include "tests/support/ranks.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct mesh_digest {
    char digits[33];
} mesh_digest;

/* The digest for a GPT with dropout in f32 and a Llama that computes in bf16; the same on all
 * ranks. After an error, the digest of no bytes. */
static inline mesh_digest mesh_train(tn_group *world, const char *mesh) {
    mesh_digest d;
    train_bits all = {0};
    for (int llama = 0; llama < 2; llama++) {
        train_run run = train_on_mesh(mesh, llama, 2);
        run.model.dropout = llama ? 0 : 0.1;
        run.bf16 = llama;
        run.loader = true;
        train_end end = train_as_rank(world, &run);
        memcpy(train_grow(&all, sizeof(end.losses)), end.losses, sizeof(end.losses));
        memcpy(train_grow(&all, sizeof(end.norms)), end.norms, sizeof(end.norms));
        train_join(&all, end.bits);
    }
    XXH128_hash_t hash = XXH3_128bits(all.data, tn_error() == TN_OK ? all.bytes : 0);
    snprintf(d.digits, sizeof(d.digits), "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    free(all.data);
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
