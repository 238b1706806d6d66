/* The kernels as a tn_backend: the entries of table.h. */
#include "backends/cuda/table.h"

#include "backends/cuda/cuda.h"

#define ENTRY(name) .name = tn__cuda_##name,

static const tn_backend table = {.size = sizeof(tn_backend),
                                 .version = TN_BACKEND_VERSION,
                                 .name = "cuda",
                                 TN_CUDA_ENTRIES(ENTRY)};

const tn_backend *tn__cuda_kernels(void) {
    return &table;
}
