/* The library's operations, found by position or by name. The table is made from list.h. */
#include "ops/op.h"

#include <string.h>

static const tn_op *const all[] = {
#define TN_OP(folder, name, ...) &tn__op_##name,
#include "ops/list.h"
#undef TN_OP
};

int tn_op_count(void) {
    return (int)(sizeof all / sizeof *all);
}

const tn_op *tn_op_at(int i) {
    return i >= 0 && i < tn_op_count() ? all[i] : NULL;
}

const tn_op *tn_op_named(const char *name) {
    for (int i = 0; name && i < tn_op_count(); i++) {
        if (strcmp(all[i]->name, name) == 0) { return all[i]; }
    }
    return NULL;
}
