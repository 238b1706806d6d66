/* The names of all entries of the kernel table, once: ref declares and fills them from here, tests
 * walk them.
 */
#ifndef TERN_BACKENDS_ENTRIES_H
#define TERN_BACKENDS_ENTRIES_H

/* clang-format off */
#define TN_PRIMITIVE_ENTRIES(X)                                                                    \
    X(fill) X(arange) X(copy) X(unary) X(binary) X(compare) X(where) X(reduce) X(argmax) X(matmul) \
    X(gather_rows) X(scatter_add_rows) X(gather) X(scatter_add) X(random) X(dropout) X(adam) X(sgd)

#define TN_FUSED_ENTRIES(X)                                                                        \
    X(linear) X(softmax) X(softmax_backward) X(layer_norm) X(layer_norm_backward) X(rms_norm)      \
    X(rms_norm_backward) X(attention) X(attention_backward) X(cross_entropy)                       \
    X(cross_entropy_backward) X(linear_gelu) X(linear_backward_weight) X(add_layer_norm)           \
    X(add_layer_norm_backward)
/* clang-format on */

#endif
