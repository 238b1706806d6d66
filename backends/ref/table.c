/* ref's table. */
#include "backends/ref/ref.h"
#include "backends/backend.h"

#define FILL(entry) .entry = tn__ref_##entry,

/* clang-format off */
static const tn_backend table = {
    .size = sizeof(tn_backend),
    .version = TN_BACKEND_VERSION,
    .name = "ref",
    TN_PRIMITIVE_ENTRIES(FILL)
    TN_FUSED_ENTRIES(FILL)
};
/* clang-format on */

const tn_backend *tn__ref_table(void) {
    return &table;
}
