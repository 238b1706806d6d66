#include "distributed/rpc/functions.h"

#include "core/error.h"
#include "core/memory.h"

#include <string.h>

void tn__functions_init(tn__functions *fs) {
    pthread_mutex_init(&fs->lock, NULL);
}

void tn__functions_finish(tn__functions *fs) {
    for (tn__function *f = fs->first, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    pthread_mutex_destroy(&fs->lock);
}

/* Under the lock. */
static tn__function *find_function(const tn__functions *fs, const char *name, size_t bytes) {
    for (tn__function *f = fs->first; f; f = f->next) {
        if (strlen(f->name) == bytes && memcmp(f->name, name, bytes) == 0) { return f; }
    }
    return NULL;
}

const tn__function *tn__functions_find(tn__functions *fs, const char *name, size_t bytes) {
    pthread_mutex_lock(&fs->lock);
    const tn__function *f = find_function(fs, name, bytes);
    pthread_mutex_unlock(&fs->lock);
    return f;
}

tn_status tn__functions_add(tn__functions *fs, const char *name, tn_rpc_function f, void *user) {
    size_t length = strlen(name);
    tn__function *entry = tn__calloc_for(1, sizeof(*entry) + length + 1, "rpc_register");
    if (!entry) { return tn_error(); }
    entry->f = f;
    entry->user = user;
    memcpy(entry->name, name, length + 1);
    pthread_mutex_lock(&fs->lock);
    bool taken = find_function(fs, name, length) != NULL;
    if (!taken) {
        entry->next = fs->first;
        fs->first = entry;
    }
    pthread_mutex_unlock(&fs->lock);
    if (taken) {
        free(entry);
        return tn__raise(TN_ESTATE, "rpc_register", "\"%s\" is registered already", name);
    }
    return TN_OK;
}
