/* The in-memory store: a table, a mutex, and a condition that every change signals. For ranks that
 * are threads of one process, and for tests. */
#include "distributed/store/store.h"

#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"

#include <errno.h>
#include <pthread.h>

typedef struct memory_store {
    tn_store base;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* on the monotonic clock */
    tn__table table;
} memory_store;

static memory_store *enter_memory(tn_store *s) {
    memory_store *m = (memory_store *)s;
    pthread_mutex_lock(&m->lock);
    return m;
}

static tn_status leave_memory(memory_store *m, tn_status status) {
    pthread_mutex_unlock(&m->lock);
    return status;
}

static tn_status leave_changed(memory_store *m, tn_status status) {
    pthread_cond_broadcast(&m->changed);
    return leave_memory(m, status);
}

static tn_status memory_set(tn_store *s, const char *key, const void *data, size_t bytes,
                            double deadline, char *why) {
    memory_store *m = enter_memory(s);
    return leave_changed(m, tn__table_set(&m->table, key, data, bytes, why));
}

static tn_status memory_get(tn_store *s, const char *key, tn_store_value *value, double deadline,
                            char *why) {
    double begin = tn__now();
    struct timespec until = tn__timespec(deadline);
    memory_store *m = enter_memory(s);
    const tn_store_value *found;
    int waited = 0;
    while (!(found = tn__table_find(&m->table, key)) && waited != ETIMEDOUT) {
        waited = pthread_cond_timedwait(&m->changed, &m->lock, &until);
    }
    if (!found) {
        return leave_memory(m, tn__why(why, TN_EPEER, "\"%.120s\" was not set within %.1f seconds",
                                       key, tn__now() - begin));
    }
    return leave_memory(m, tn__value_copy(found, value, why));
}

static tn_status memory_add(tn_store *s, const char *key, int64_t amount, int64_t *result,
                            double deadline, char *why) {
    memory_store *m = enter_memory(s);
    return leave_changed(m, tn__table_add(&m->table, key, amount, result, why));
}

static tn_status memory_compare_set(tn_store *s, const char *key, const tn_store_value *expected,
                                    const tn_store_value *desired, tn_store_value *now,
                                    double deadline, char *why) {
    memory_store *m = enter_memory(s);
    tn_store_value found;
    tn_status status = tn__table_compare_set(&m->table, key, expected, desired, &found, why);
    if (status == TN_OK) { status = tn__value_copy(&found, now, why); }
    return leave_changed(m, status);
}

static tn_status memory_check(tn_store *s, const char *key, bool *exists, double deadline,
                              char *why) {
    memory_store *m = enter_memory(s);
    *exists = tn__table_find(&m->table, key) != NULL;
    return leave_memory(m, TN_OK);
}

static tn_status memory_remove(tn_store *s, const char *key, bool *existed, double deadline,
                               char *why) {
    memory_store *m = enter_memory(s);
    *existed = tn__table_remove(&m->table, key);
    return leave_memory(m, TN_OK);
}

static void memory_destroy(tn_store *s) {
    memory_store *m = (memory_store *)s;
    tn__table_clear(&m->table);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

tn_store *tn_memory_store(void) {
    memory_store *m = tn__pending() ? NULL : tn__calloc_for(1, sizeof(*m), "memory_store");
    if (!m) { return NULL; }
    m->base = (tn_store){.kind = "memory",
                         .refs = 1,
                         .process = tn__process(),
                         .set = memory_set,
                         .get = memory_get,
                         .add = memory_add,
                         .compare_set = memory_compare_set,
                         .check = memory_check,
                         .remove = memory_remove,
                         .destroy = memory_destroy};
    pthread_mutex_init(&m->lock, NULL);
    tn__condition_init(&m->changed);
    return &m->base;
}
