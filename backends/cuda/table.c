/* The plugin's kernels as a tn_backend. */
#include "backends/cuda/cuda.h"

#define ENTRY_OWN(entry) .entry = tn__cuda_##entry,
#define ENTRY_NONE(entry)
#define ENTRY(entry, kind, cpu, cuda) ENTRY_##cuda(entry)

static const tn_backend table = {
    .size = sizeof(tn_backend), .version = TN_BACKEND_VERSION, .name = "cuda", TN_ENTRIES(ENTRY)};

const tn_backend *tn__cuda_kernels(void) {
    return &table;
}
