/* The plugin's kernels as a tn_backend. */
#include "backends/cuda/cuda.h"

#define ENTRY(entry, ...) .entry = tn__cuda_##entry,

static const tn_op_kernel *const fused[TN_FUSED_COUNT] = {
#define TN_OP(folder, ...) TN__DEVICES(__VA_ARGS__, , , )
#define TN__ON_CPU(name)
#define TN__ON_CUDA(name) [TN_FUSED(name)] = &tn__cuda_op_##name,
#include "ops/list.h"
};

static const tn_backend table = {.size = sizeof(tn_backend),
                                 .version = TN_BACKEND_VERSION,
                                 .name = "cuda",
                                 .fused = fused,
                                 TN_ENTRIES(ENTRY)};

const tn_backend *tn__cuda_kernels(void) {
    return &table;
}
