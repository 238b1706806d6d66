/* Elements in memory that a process shares with its children. */
#include "core/error.h"
#include "tensor/tensor.h"

#include <string.h>
#include <sys/mman.h>

static void unmap_shared(void *data, void *user) {
    munmap(data, (uintptr_t)user);
}

/* Memory of `bytes`, as a tensor that gives it back; inert after raising. */
static tn_tensor *map_shared(size_t bytes) {
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        tn__raise(TN_ENOMEM, "storage_share", "no memory for %zu bytes that are shared", bytes);
        return tn_inert();
    }
    tn_tensor *t = tn_from_memory(data, TN_DIMS((int64_t)bytes), TN_I8, unmap_shared,
                                  (void *)(uintptr_t)bytes);
    if (tn_is_inert(t)) { munmap(data, bytes); }
    return t;
}

tn_status tn_storage_share(tn_tensor *t) {
    if (!tn__usable(t, "storage_share") || tn__pending()) {
        return tn__pending() ? tn_error() : TN_ESTATE;
    }
    tn_storage *storage = t->storage;
    if (storage->device.kind != TN_CPU) {
        return tn__raise(TN_EDEVICE, "storage_share",
                         "%s is on %s, whose memory children do not share", tn_shape_text(t),
                         tn_device_text(storage->device));
    }
    if (storage->bytes == 0 || storage->release == unmap_shared) { return TN_OK; }
    TN_SCOPE;
    tn_tensor *shared = map_shared(storage->bytes);
    if (!tn_is_inert(shared)) {
        memcpy(shared->storage->data, storage->data, storage->bytes);
        tn__storage_swap(storage, shared->storage);
    }
    return tn_error();
}
