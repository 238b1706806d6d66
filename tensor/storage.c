/* Storages: the reference-counted bytes of tensors, which can be emptied and refilled while tensors
 * hold them. */
#include "core/allocator.h"
#include "core/memory.h"
#include "tensor/recipe.h"
#include "tern/sys/device.h"

#include <stdlib.h>

/* NULL for the host, whose memory is the library's own. */
static inline const tn_device_table *table_of(tn_device device) {
    return device.kind == TN_CPU ? NULL : tn__device_table(device);
}

/* Bytes on a device; NULL for 0 bytes, and after raising TN_ENOMEM. */
static void *alloc_bytes(size_t bytes, tn_device device, const char *operation) {
    const tn_device_table *table = table_of(device);
    void *data = table ? table->alloc(device.index, bytes) : tn__alloc(bytes);
    if (data || bytes == 0) { return data; }
    if (table) {
        char text[512];
        table->memory_text(device.index, text, sizeof(text));
        tn__raise(TN_ENOMEM, operation, "no memory for %zu bytes on %s (%s)", bytes,
                  tn_device_text(device), text);
    } else {
        tn__raise(TN_ENOMEM, operation, "no memory for %zu bytes (%lld are in tensors)", bytes,
                  (long long)tn_memory().allocated);
    }
    return NULL;
}

tn_storage *tn__storage_new(size_t bytes, tn_device device, const char *operation) {
    tn_storage *storage = tn__struct_alloc(sizeof(*storage));
    if (!storage) {
        tn__raise(TN_ENOMEM, operation, "no memory for a storage");
        return NULL;
    }
    void *data = alloc_bytes(bytes, device, operation);
    if (bytes > 0 && !data) {
        tn__struct_free(storage, sizeof(*storage));
        return NULL;
    }
    *storage = (tn_storage){.refs = 1, .device = device, .data = data, .bytes = bytes};
    return storage;
}

void tn__storage_keep(tn_storage *storage) {
    if (__atomic_load_n(&storage->refs, __ATOMIC_RELAXED) != TN__IMMORTAL) {
        __atomic_fetch_add(&storage->refs, 1, __ATOMIC_RELAXED);
    }
}

/* Returns the bytes to where they came from. */
static void free_bytes(tn_storage *storage) {
    void (*release)(void *, void *) = storage->release;
    void *data = storage->data;
    storage->data = NULL;
    storage->release = NULL;
    if (release) {
        release(data, storage->user);
        return;
    }
    const tn_device_table *table = table_of(storage->device);
    if (table) {
        table->free(storage->device.index, data, storage->bytes);
    } else {
        tn__free(data, storage->bytes);
    }
}

void tn__storage_release(tn_storage *storage) {
    if (storage && tn__last_reference(&storage->refs)) {
        free_bytes(storage);
        free(storage->recipe);
        tn__struct_free(storage, sizeof(*storage));
    }
}

void tn__storage_swap(tn_storage *a, tn_storage *b) {
    tn_storage old = *a;
    a->data = b->data;
    a->emptied = b->emptied;
    a->release = b->release;
    a->user = b->user;
    b->data = old.data;
    b->emptied = old.emptied;
    b->release = old.release;
    b->user = old.user;
}

/* Whether t's storage may be changed now: not while an error is pending, since this is an effect.
 */
static tn_status storage_changeable(const tn_tensor *t, const char *operation) {
    if (!tn__readable(t, operation) || tn__pending()) {
        return tn__pending() ? tn_error() : TN_ESTATE;
    }
    return TN_OK;
}

void tn__storage_drop_bytes(tn_storage *storage) {
    if (!storage->emptied) {
        storage->emptied = true;
        free_bytes(storage);
    }
}

tn_status tn_storage_empty(tn_tensor *t) {
    tn_status status = storage_changeable(t, "storage_empty");
    if (status == TN_OK) { tn__storage_drop_bytes(t->storage); }
    return status;
}

tn_status tn_storage_refill(tn_tensor *t) {
    tn_status status = storage_changeable(t, "storage_refill");
    if (status != TN_OK || !t->storage->emptied) { return status; }
    tn_storage *storage = t->storage;
    void *data = alloc_bytes(storage->bytes, storage->device, "storage_refill");
    if (!data && storage->bytes > 0) { return TN_ENOMEM; }
    storage->data = data;
    storage->emptied = false;
    tn__recipe_drop(t);
    return TN_OK;
}

bool tn_storage_is_empty(const tn_tensor *t) {
    return tn__readable(t, "storage_is_empty") && t->storage->emptied;
}
