/* ref's table. */
#include "backends/backend.h"
#include "backends/ref/ref.h"

#define ENTRY(entry, ...) .entry = tn__ref_##entry,

static const tn_backend table = {
    .size = sizeof(tn_backend), .version = TN_BACKEND_VERSION, .name = "ref", TN_ENTRIES(ENTRY)};

const tn_backend *tn__ref_table(void) {
    return &table;
}
