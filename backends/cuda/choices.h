/* What only a measurement on a GPU can decide: `./run gpu choices` times both sides of each and
 * says what the table should hold. TERN_CUDA_CHOICES="gelu_in_product=0,few_queries=16" in the
 * environment is another choice for one run. */
#ifndef TERN_BACKENDS_CUDA_CHOICES_H
#define TERN_BACKENDS_CUDA_CHOICES_H

/* X(name, value): 1 yes, 0 no, except where the line says otherwise.
 *
 *     sums_in_product    the gradient of linear's bias in the product of the weight's (BGRADB), not
 *                        by a reduction
 *     gelu_in_product    linear_gelu in one product, forward (GELU_AUX_BIAS), not a kernel after it
 *     slope_in_product   and gelu's derivative in mlp's backward (DGELU)
 *     tuned              the fastest of cuBLASLt's and cuDNN's candidates also if the context must
 *                        be deterministic: TERN_AUTOTUNE's value where that is not set
 *     cudnn_attention    attention by cuDNN, not by our own kernels
 *     few_queries        attention's forward of up to so many queries by our own kernels: the
 *                        number of keys changes with each token, and cuDNN plans for each
 *     padded_lengths     under a causal mask, attention of any length by the plans of a few lengths
 *                        (sdpa.c), at the price of copies, not by a plan for each
 *     rounded_gradients  f32 gradients of convolutions in bf16 and f16 from cuDNN's gradients in
 *                        that dtype, rounded once, not from f32 copies of the operands */
#define TN__CUDA_CHOICES(X) \
    X(sums_in_product, 1)   \
    X(gelu_in_product, 1)   \
    X(slope_in_product, 1)  \
    X(tuned, 0)             \
    X(cudnn_attention, 1)   \
    X(few_queries, 8)       \
    X(padded_lengths, 1)    \
    X(rounded_gradients, 0)

typedef struct tn__cuda_choices {
#define TN__MEMBER(name, value) int name;
    TN__CUDA_CHOICES(TN__MEMBER)
#undef TN__MEMBER
} tn__cuda_choices;

/* Of this process: read once. */
const tn__cuda_choices *tn__cuda_chosen(void);

#endif
