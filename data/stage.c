/* Page-locked memory between a loader and a device: see stage.h. */
#include "data/stage.h"

#include "core/error.h"
#include "tern/sys/tensor.h"

static const tn_device_table *table_of(const tn__stage *s) {
    return tn__device_table(s->device);
}

/* Waits until nothing reads the memory any more. */
static tn_status stage_settle(tn__stage *s) {
    void *mark = s->mark;
    if (!mark) {
        return TN_OK;
    }
    s->mark = NULL;
    tn_status status = table_of(s)->mark_wait(mark);
    table_of(s)->mark_free(mark);
    return status;
}

void *tn__stage_begin(tn__stage *s, tn_device device, size_t bytes) {
    tn_status status = stage_settle(s);
    if (status != TN_OK) {
        tn__device_failed(s->device, status, "loader");
        return NULL;
    }
    if (s->memory && bytes <= s->bytes && tn__same_device(device, s->device)) {
        return s->memory;
    }
    tn__stage_free(s);
    s->device = device;
    bytes = bytes ? bytes : 1;
    s->memory = table_of(s)->host_alloc(bytes);
    if (!s->memory) {
        tn__raise(TN_ENOMEM, "loader", "no page-locked memory for a batch of %zu bytes", bytes);
        return NULL;
    }
    s->bytes = bytes;
    return s->memory;
}

tn_status tn__stage_send(tn__stage *s, tn_tensor *t, const void *from) {
    size_t bytes = (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t));
    return tn__copy_bytes(s->device, tn__address(t), tn_cpu(), from, bytes, "loader");
}

tn_status tn__stage_end(tn__stage *s) {
    s->mark = table_of(s)->mark(s->device.index);
    return s->mark ? TN_OK : tn__device_failed(s->device, TN_EDEVICE, "loader");
}

void tn__stage_free(tn__stage *s) {
    stage_settle(s);
    if (s->memory) {
        table_of(s)->host_free(s->memory, s->bytes);
    }
    *s = (tn__stage){.memory = NULL};
}
