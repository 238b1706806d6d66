/* What pooling operations share: windows over up to three dimensions after samples and channels.
 */
#ifndef TERN_OPS_POOL_H
#define TERN_OPS_POOL_H

#include "backends/pool.h"
#include "ops/host.h"

enum { POOL_SPATIAL = 3 };

typedef tn_pool_args tn__pool_args;

/* The arguments as samples name them; the others are tn__pool_plain's: two dimensions, step 1. */
#define TN__POOL_FIELDS                                                                     \
    TN_FIELD(tn__pool_args, spatial), TN_FIELD(tn__pool_args, adaptive),                    \
        TN_FIELD(tn__pool_args, count_include_pad),                                         \
        TN_FIELD_AS("divisor_override", tn__pool_args, divisor),                            \
        TN_FIELD_AS("kernel_size", tn__pool_args, kernel), TN_FIELD(tn__pool_args, stride), \
        TN_FIELD(tn__pool_args, padding), TN_FIELD(tn__pool_args, dilation),                \
        TN_FIELD_AS("given", tn__pool_args, in), TN_FIELD_AS("size", tn__pool_args, out)
extern const tn__pool_args tn__pool_plain;

/* One plane, a channel of a sample, of an operand (N, C, …). */
typedef struct tn__planes {
    void *data;
    tn_dtype dtype;
    int64_t channels;             /* planes are numbered sample by sample */
    int64_t sample, channel;      /* strides between planes … */
    int64_t stride[POOL_SPATIAL]; /* … and within them */
} tn__planes;
tn__planes tn__planes_of(const tn_desc *x, int spatial);
static inline int64_t tn__plane_at(const tn__planes *p, int64_t i) {
    return i / p->channels * p->sample + i % p->channels * p->channel;
}

/* One call: where planes come from and go to. */
typedef struct tn__pool_job {
    const tn__pool_args *args;
    tn__planes x, y, index;
} tn__pool_job;

static inline int64_t tn__pool_volume(const int64_t *size) {
    return tn_dims_count(tn_dims_from(POOL_SPATIAL, size));
}

/* Steps of a call: args->in from x (N, C, …); then the window's numbers (any padding) and
 * args->out. False after raising. */
bool tn__pool_sizes(const char *name, tn__pool_args *args, tn_tensor *x);
bool tn__pool_window(const char *name, tn__pool_args *args, tn_dims kernel,
                     const tn_pool_options *options);

/* Calls an operation on x, a batch or one sample, with windows over `spatial` dimensions: sliding
 * ones, or, without options, those for a result of size `kernel`. Errors are raised as `name`. */
tn_tensor *tn__pool_call(const tn_op *op, const char *name, int spatial, tn_tensor *x,
                         tn_dims kernel, const tn_pool_options *options);

/* Shape rule: checks that input 0, of floats, has sizes `in`; and makes the result, with `out`. */
bool tn__pool_fits(const tn_op_call *c, const int64_t *in);
bool tn__pool_shape(tn_op_call *c, const int64_t *in, const int64_t *out);

/* Runs piece, whose job is a tn__pool_job, over all planes. index: of max_pool, or NULL. */
tn_status tn__pool_host(const tn__pool_args *args, const tn_desc *x, const tn_desc *y,
                        const tn_desc *index, tn__host_piece *piece);

/* x (N, C, sizes) as (N, C, other sizes), the last args->spatial of size[3]. */
tn_dims tn__pool_dims(tn_dims x, int spatial, const int64_t *size);

#endif
