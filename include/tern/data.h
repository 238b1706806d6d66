/* Data: datasets, samplers and the loader between them and a training loop.
 *
 *     tn_loader *loader = tn_loader_new(tn_text_corpus(text, n, 64), tn_random_sampler(1337), tn_loader_defaults());
 *     tn_batch b;
 *     while (tn_loader_next(loader, &b)) { ... b.x, b.y ... }
 *
 * The loader owns its dataset and sampler. The batches are the same for any number of prefetch threads, and the place in
 * the sequence can be saved in mid-epoch.
 */
#ifndef TERN_DATA_H
#define TERN_DATA_H

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Datasets ------------------------------------------------------------------------------------------------------------------ */

typedef struct tn_dataset tn_dataset;

/* A dataset of one's own: embed this first, fill the pointers. Examples are read from several threads at once. */
struct tn_dataset {
    const char *kind;
    int64_t size; /* examples */
    /* What one example looks like: x and y (y_dims.ndim -1: no y). */
    tn_dims x_dims, y_dims;
    tn_dtype x_dtype, y_dtype;
    /* Writes example i, contiguous, to x and y. TN_OK or a raised error. */
    tn_status (*get)(tn_dataset *self, int64_t i, void *x, void *y);
    void (*free)(tn_dataset *self);
};
TN_API void tn_dataset_free(tn_dataset *d);

/* Rows of x (n, …) and y (n, …; may be NULL), kept, not copied. */
TN_API tn_dataset *tn_tensor_dataset(tn_tensor *x, tn_tensor *y);

/* Windows of a token sequence: example i is x = tokens[i … i+length), y the same shifted by one. n - length examples. The tokens are copied. */
TN_API tn_dataset *tn_token_dataset(const int32_t *tokens, int64_t n, int64_t length);

/* Handwritten digits from the four files of the MNIST distribution (idx, plain or .gz) in a folder: x (1, 28, 28) f32 in [0, 1], y () i64. */
TN_API tn_dataset *tn_mnist(const char *folder, bool train);

/* ---- Text ---------------------------------------------------------------------------------------------------------------------- */

/* The distinct bytes or UTF-8 characters of a text, in code-point order, numbered from 0. */
typedef struct tn_charset tn_charset;
TN_API tn_charset *tn_charset_from_text(const char *text, size_t bytes); /* TN_EFORMAT for text that is not UTF-8 */
TN_API void tn_charset_free(tn_charset *c);
TN_API int tn_charset_size(const tn_charset *c);

/* Tokens of `text` into out (room for `bytes` of them); the count, or -1 and TN_EVALUE for a character that is not in the set. */
TN_API int64_t tn_charset_encode(const tn_charset *c, const char *text, size_t bytes, int32_t *out);

/* One token's UTF-8 text. */
TN_API const char *tn_charset_text(const tn_charset *c, int token);

/* A whole file; *bytes is its length; a 0 follows it. NULL after TN_EIO. The caller frees it with tn_text_free. */
TN_API char *tn_text_read(const char *path, size_t *bytes);
TN_API void tn_text_free(char *text);

/* ---- Samplers: an order of the examples ---------------------------------------------------------------------------------------------- */

typedef enum tn_sampler_kind { TN_SAMPLE_SEQUENTIAL, TN_SAMPLE_SHUFFLED, TN_SAMPLE_REPLACEMENT } tn_sampler_kind;

/* By value; a place in it is (epoch, position): any index can be computed without those before it. */
typedef struct tn_sampling {
    tn_sampler_kind kind;
    uint64_t seed;
    /* Which part of each epoch's order this process takes: indices part, part + parts, …; 0 of 1 unless distributed. */
    int64_t part, parts;
} tn_sampling;
TN_API tn_sampling tn_sequential_sampler(void);
TN_API tn_sampling tn_random_sampler(uint64_t seed);      /* a fresh permutation every epoch */
TN_API tn_sampling tn_replacement_sampler(uint64_t seed); /* independent draws: an epoch has as many as the dataset */

/* The example at `position` of `epoch`. The permutation is a keyed bijection, so nothing of the dataset's size is stored. */
TN_API int64_t tn_sampling_at(const tn_sampling *s, int64_t size, int64_t epoch, int64_t position);

/* ---- Loader ---------------------------------------------------------------------------------------------------------------------- */

typedef struct tn_loader tn_loader;

/* x (B, …), y (B, …) or NULL. Lent until the next call of tn_loader_next: keep what should live longer. */
typedef struct tn_batch {
    tn_tensor *x, *y;
    int64_t epoch, index; /* index: of the batch in its epoch */
} tn_batch;

typedef struct tn_loader_options {
    int64_t batch;     /* 1 */
    int threads;       /* 0: batches are made in the calling thread */
    int prefetch;      /* 2: batches ready in advance, with threads */
    bool drop_last;    /* false: the last batch of an epoch may be short */
    int64_t epochs;    /* 1; 0: without end */
} tn_loader_options;
TN_API tn_loader_options tn_loader_defaults(void);

/* Takes the dataset (freed with the loader, also when this fails). NULL after an error. */
TN_API tn_loader *tn_loader_new(tn_dataset *dataset, tn_sampling sampling, tn_loader_options options);
TN_API void tn_loader_free(tn_loader *l);

/* False at the end, and while an error is pending (one from a worker thread is raised here). */
TN_API bool tn_loader_next(tn_loader *l, tn_batch *batch);

/* The place: the next batch to come. Setting it drops what was prefetched. */
typedef struct tn_loader_state {
    int64_t epoch, index;
} tn_loader_state;
TN_API tn_loader_state tn_loader_where(const tn_loader *l);
TN_API tn_status tn_loader_seek(tn_loader *l, tn_loader_state state);
TN_API int64_t tn_loader_batches(const tn_loader *l); /* of one epoch */
TN_API tn_sampling tn_loader_sampling(const tn_loader *l);

#ifdef __cplusplus
}
#endif
#endif
