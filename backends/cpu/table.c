/* This level's table: ref's, with this folder's entries swapped in; and the same under another
 * name, with which bf16 products run on tiles (gemm_bf16.c). */
#include "backends/backend.h"
#include "backends/cpu/cpu.h"

#include <pthread.h>

#define NAME_OF(level) "cpu-" TN_CPU_NAME(level)

const tn_backend *TN_CPU(ref);
static tn_backend table, with_tiles;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const tn_op_kernel *const fused[TN_FUSED_COUNT] = {
#define TN_OP(folder, ...) TN__DEVICES(__VA_ARGS__, , , )
#define TN__ON_CPU(name) [TN_FUSED(name)] = &TN_CPU(op_##name),
#define TN__ON_CUDA(name)
#include "ops/list.h"
};

static void fill_table(void) {
    TN_CPU(ref) = tn__ref_table();
    table = *TN_CPU(ref);
    table.name = NAME_OF(TN_CPU_LEVEL);
    table.fused = fused;
#define FILL_OWN(entry) table.entry = TN_CPU(entry);
#define FILL_REF(entry)
#define FILL(entry, cpu) FILL_##cpu(entry)
    TN_ENTRIES(FILL)
    with_tiles = table;
    with_tiles.name = TN_CPU_LEVEL >= 4 ? "cpu-amx" : "cpu-amx-twin";
}

const tn_backend *TN_CPU(table)(bool tiles) {
    pthread_once(&once, fill_table);
    return tiles ? &with_tiles : &table;
}
