/* The in-memory store: a table, a mutex, and a condition that every change signals. For ranks that
 * are threads of one process, and for tests. */
#include "distributed/store/store.h"

#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"

#include <pthread.h>
#include <string.h>

typedef struct memory_store {
    tn_store base;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* on the monotonic clock */
    tn__table table;
} memory_store;

/* The answer becomes the caller's. */
static tn_status copy_answer(tn_store_call *c) {
    const void *from = c->value.data;
    c->value.data = c->value.bytes ? tn__malloc(c->value.bytes) : NULL;
    if (c->value.bytes && !c->value.data) {
        return tn__why(c->why, TN_ENOMEM, "no memory for a value of %zu bytes", c->value.bytes);
    }
    if (c->value.bytes) { memcpy(c->value.data, from, c->value.bytes); }
    return TN_OK;
}

static tn_status run_here(tn_store *s, tn_store_call *c) {
    memory_store *m = (memory_store *)s;
    double begin = tn__now();
    struct timespec until = tn__timespec(c->deadline);
    bool late = c->kind != TN_STORE_GET;
    pthread_mutex_lock(&m->lock);
    while (!late && !tn__table_find(&m->table, c->key)) {
        late = pthread_cond_timedwait(&m->changed, &m->lock, &until) != 0;
    }
    tn_status status = tn__table_run(&m->table, c);
    if (status == TN_OK) {
        status = copy_answer(c);
    } else if (c->kind == TN_STORE_GET) {
        tn__store_late(c, tn__now() - begin);
    }
    if (c->kind != TN_STORE_GET && c->kind != TN_STORE_CHECK) {
        pthread_cond_broadcast(&m->changed);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
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
                         .run = run_here,
                         .destroy = memory_destroy};
    pthread_mutex_init(&m->lock, NULL);
    tn__condition_init(&m->changed);
    return &m->base;
}
