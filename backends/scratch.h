/* Scratch memory of a kernel, on any device: from here to the end of the block. It is aligned to 64
 * bytes.
 *
 *     TN__SCRATCH(float, sums, ctx, n);
 *     if (!sums) { return TN_ENOMEM; }
 */
#ifndef TERN_BACKENDS_SCRATCH_H
#define TERN_BACKENDS_SCRATCH_H

#include "core/inline.h"
#include "tern/sys/backend.h"

typedef struct tn__workspace {
    tn_context *ctx;
    void *memory; /* NULL: there is none left, or none was wanted */
    size_t bytes;
} tn__workspace;

/* An address even for 0 bytes; nothing without a context. */
TN__INLINE tn__workspace tn__workspace_take(tn_context *ctx, size_t bytes) {
    bytes = bytes > 0 ? bytes : 1;
    tn__workspace s = {ctx, ctx ? ctx->workspace(ctx, bytes) : NULL, bytes};
    return s;
}

TN__INLINE void tn__workspace_end(tn__workspace *s) {
    if (s->memory) { s->ctx->workspace_free(s->ctx, s->memory, s->bytes); }
}

#define TN__SCRATCH(type, name, ctx, count)                                    \
    __attribute__((cleanup(tn__workspace_end))) tn__workspace name##_scratch = \
        tn__workspace_take((ctx), (size_t)(count) * sizeof(type));             \
    type *name = (type *)name##_scratch.memory

/* Without the condition nothing is taken, and `name` is NULL. */
#define TN__SCRATCH_IF(condition, type, name, ctx, count) \
    TN__SCRATCH(type, name, (condition) ? (ctx) : NULL, count)

#endif
