/* The entries that this folder has, by file. An entry that is not named here stays NULL in the
 * table: a fused one then runs as its operation's composition, a primitive one is an error that
 * names it. */
#ifndef TERN_BACKENDS_CUDA_TABLE_H
#define TERN_BACKENDS_CUDA_TABLE_H

/* clang-format off */
#define TN_CUDA_ENTRIES(X) \
    /* products.c */ \
    X(matmul) X(linear) X(linear_gelu) X(linear_backward_weight) \
    /* elementwise.cu */ \
    X(unary) X(binary) X(compare) X(where) \
    /* copy.cu */ \
    X(copy) X(fill) X(arange) \
    /* random.cu */ \
    X(random) X(dropout) \
    /* index.cu */ \
    X(gather_rows) X(scatter_add_rows) X(gather) X(scatter_add) \
    /* reduce.cu */ \
    X(reduce) X(argmax) \
    /* softmax.cu */ \
    X(softmax) X(softmax_backward) \
    /* norm.cu */ \
    X(layer_norm) X(layer_norm_backward) X(rms_norm) X(rms_norm_backward) X(add_layer_norm) \
    X(add_layer_norm_backward) \
    /* cross_entropy.cu */ \
    X(cross_entropy) X(cross_entropy_backward) \
    /* optim.cu */ \
    X(adam) X(sgd) \
    /* attention.c */ \
    X(attention) X(attention_backward)
/* clang-format on */

#endif
