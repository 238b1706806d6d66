/* Small language models on a mesh of ranks, which are threads. Sizes are irregular: of a vocabulary
 * of 29 the last rank of tp has fewer rows than the others. */
#ifndef TERN_TESTS_PARALLEL_MESH_MODEL_H
#define TERN_TESTS_PARALLEL_MESH_MODEL_H

#include "tests/distributed/rank_check.h"

#include <tern/tern.h>

#include <math.h>
#include <stdlib.h>

typedef union mesh_model {
    tn_module base;
    tn_gpt gpt;
    tn_llama llama;
} mesh_model;

typedef struct mesh_shape {
    bool llama;
    int64_t vocab, width;
    int layers, heads, kv_heads; /* kv_heads: llama only */
    bool bias;                   /* gpt only */
    bool tied;                   /* llama only; a gpt always is */
    double dropout;              /* gpt only */
    int64_t length;              /* the context */
    int64_t hidden;              /* llama only */
} mesh_shape;

enum { MESH_LENGTH = 8 };

static inline mesh_shape mesh_shape_of(bool llama) {
    return (mesh_shape){.llama = llama,
                        .vocab = 29,
                        .width = 16,
                        .layers = 2,
                        .heads = llama ? 8 : 4,
                        .kv_heads = 4,
                        .bias = true,
                        .hidden = 24,
                        .length = MESH_LENGTH};
}

/* The ranks of a mesh that leaves none out. */
static inline int mesh_ranks(const char *mesh) {
    tn_spread_options o = tn_spread_defaults();
    assert_int_equal(tn_spread_read(&o, mesh), TN_OK);
    return o.pp * (o.dp ? o.dp : 1) * o.shard * o.cp * o.tp;
}

static inline void mesh_init_gpt(tn_gpt *m, const mesh_shape *s) {
    tn_gpt_options o =
        TN_WITH(tn_gpt, .vocab = s->vocab, .context = s->length, .layers = s->layers,
                .heads = s->heads, .width = s->width, .bias = s->bias, .dropout = s->dropout);
    tn_gpt_init(m, o);
}

static inline void mesh_init_llama(tn_llama *m, const mesh_shape *s) {
    tn_llama_options o = TN_WITH(tn_llama, .vocab = s->vocab, .context = s->length,
                                 .layers = s->layers, .heads = s->heads, .kv_heads = s->kv_heads,
                                 .width = s->width, .hidden = s->hidden, .tied = s->tied);
    tn_llama_init(m, o);
}

static inline void mesh_init(mesh_model *m, const mesh_shape *s, uint64_t seed, bool deferred) {
    tn_seed(seed);
    if (deferred) {
        TN_DEFER_INIT;
        s->llama ? mesh_init_llama(&m->llama, s) : mesh_init_gpt(&m->gpt, s);
    } else {
        s->llama ? mesh_init_llama(&m->llama, s) : mesh_init_gpt(&m->gpt, s);
    }
    tn_seed(5);
}

/* mesh: as for --mesh. Free the result with tn_spread_free after the model is finished; NULL after
 * an error. */
static inline tn_spread *mesh_spread(void *m, tn_group *world, const char *mesh) {
    tn_spread_options o = tn_spread_defaults();
    return tn_spread_read(&o, mesh) == TN_OK ? tn_spread_new(m, world, o) : NULL;
}

/* Tokens (or targets) of batch `number`, the same on any rank. */
static inline tn_tensor *mesh_tokens_of(const mesh_shape *s, int64_t rows, int64_t number) {
    int64_t *at = malloc(sizeof(*at) * (size_t)(rows * s->length));
    tn_generator g = {.seed = 11, .stream = (uint64_t)number};
    for (int64_t i = 0; i < rows * s->length; i++) {
        at[i] = tn_random_below(&g, s->vocab);
    }
    tn_tensor *t = tn_from_data(at, TN_DIMS(rows, s->length), TN_I64);
    free(at);
    return t;
}

static inline tn_tensor *mesh_tokens(int64_t vocab, int64_t rows, int64_t number) {
    return mesh_tokens_of(&(mesh_shape){.vocab = vocab, .length = MESH_LENGTH}, rows, number);
}

/* ---- From a loader --------------------------------------------------------------------------- */

/* Targets are unevenly spread over positions. */
static inline tn_status mesh_get(tn_dataset *self, tn_example e, void *x, void *y) {
    tn_generator g = {.seed = 11, .stream = (uint64_t)e.index};
    for (int i = 0; i < MESH_LENGTH; i++) {
        ((int64_t *)x)[i] = tn_random_below(&g, 29);
        ((int64_t *)y)[i] = i == e.index % MESH_LENGTH ? -100 : tn_random_below(&g, 29);
    }
    return TN_OK;
}

static inline void mesh_free(tn_dataset *self) {
    free(self);
}

/* Endless batches of `rows` sequences with tokens below 29: a rank's share of one order. */
static inline tn_loader *mesh_loader(tn_group *data, int64_t rows) {
    tn_dataset *d = calloc(1, sizeof(*d));
    *d = (tn_dataset){.kind = "tokens",
                      .size = 32,
                      .x_dims = {1, {MESH_LENGTH}},
                      .y_dims = {1, {MESH_LENGTH}},
                      .x_dtype = TN_I64,
                      .y_dtype = TN_I64,
                      .get = mesh_get,
                      .free = mesh_free};
    return tn_loader_new(d, tn_distributed_sampler(data, tn_sequential_sampler(), true),
                         TN_WITH(tn_loader, .batch = rows, .epochs = 0));
}

/* ---- Writing --------------------------------------------------------------------------------- */

enum { MESH_WRITTEN = 24 };

/* Continues two prompts beyond the context, where the caches begin again. */
static inline void mesh_write(mesh_model *m, double temperature, int32_t ids[2][MESH_WRITTEN]) {
    const int32_t first[] = {3, 1, 4}, second[] = {2};
    tn_prompt prompts[] = {{first, 3}, {second, 1}};
    tn_generated out[2];
    tn_generate_options o =
        TN_WITH(tn_generate, .max_new = MESH_WRITTEN, .temperature = temperature, .seed = 6);
    tn_module_train(m, false);
    CHECK(tn_generate(m, prompts, 2, o, out) == TN_OK);
    tn_module_train(m, true);
    for (int i = 0; i < 2 && !tn_error(); i++) {
        int64_t count = out[i].tokens.count;
        CHECK(count >= MESH_WRITTEN);
        memcpy(ids[i], out[i].tokens.ids + count - MESH_WRITTEN, sizeof(ids[i]));
    }
    tn_generated_free(out, 2);
}

#endif
