/* This level's table: ref's, with the entries of table.h replaced or left empty. */
#include "backends/backend.h"
#include "backends/cpu/table.h"

#include <pthread.h>

#define TABLE_OF2(level) tn__cpu_table_v##level
#define TABLE_OF(level) TABLE_OF2(level)
#define NAME_OF2(level) "cpu-v" #level
#define NAME_OF(level) NAME_OF2(level)

const tn_backend *TN_CPU(ref);
static tn_backend table;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_table(void) {
    TN_CPU(ref) = tn__ref_table();
    table = *TN_CPU(ref);
    table.name = NAME_OF(TN_CPU_LEVEL);
#define OVERRIDE(entry) table.entry = TN_CPU(entry);
    TN_CPU_ENTRIES(OVERRIDE)
#define EMPTY(entry) table.entry = NULL;
    TN_CPU_EMPTY(EMPTY)
}

const tn_backend *TABLE_OF(TN_CPU_LEVEL)(void) {
    pthread_once(&once, fill_table);
    return &table;
}
