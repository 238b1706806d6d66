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
    if (!mark) { return TN_OK; }
    s->mark = NULL;
    tn_status status = table_of(s)->mark_wait(mark);
    table_of(s)->mark_free(mark);
    return status;
}

/* What is sent from now on waits for the compute stream's work so far. */
static tn_status follow_compute(tn__stage *s) {
    const tn_device_table *table = table_of(s);
    s->stream = s->stream ? s->stream : table->stream_new(s->device.index);
    void *now = s->stream ? table->mark(s->device.index) : NULL;
    if (!now) { return TN_EDEVICE; }
    tn_status status = table->stream_join(s->stream, now);
    table->mark_free(now);
    return status;
}

void *tn__stage_begin(tn__stage *s, tn_device device, size_t bytes) {
    tn_status status = stage_settle(s);
    if (status == TN_OK &&
        (!s->memory || bytes > s->bytes || !tn__same_device(device, s->device))) {
        tn__stage_free(s);
        s->device = device;
        bytes = bytes ? bytes : 1;
        s->memory = table_of(s)->host_alloc(bytes);
        if (!s->memory) {
            tn__raise(TN_ENOMEM, "loader", "no page-locked memory for a batch of %zu bytes", bytes);
            return NULL;
        }
        s->bytes = bytes;
    }
    status = status == TN_OK ? follow_compute(s) : status;
    if (status != TN_OK) {
        tn__device_failed(s->device, status, "loader");
        return NULL;
    }
    return s->memory;
}

tn_status tn__stage_send(tn__stage *s, tn_tensor *t, const void *from) {
    size_t bytes = (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t));
    if (bytes == 0) { return TN_OK; }
    s->sends = true;
    tn_status status = table_of(s)->stream_copy(s->stream, tn__address(t), from, bytes);
    return status == TN_OK ? TN_OK : tn__device_failed(s->device, status, "loader");
}

tn_status tn__stage_end(tn__stage *s) {
    s->sends = false;
    s->joined = false;
    s->mark = table_of(s)->stream_mark(s->stream);
    return s->mark ? TN_OK : tn__device_failed(s->device, TN_EDEVICE, "loader");
}

tn_status tn__stage_join(tn__stage *s) {
    if (s->sends && tn__stage_end(s) != TN_OK) { /* a batch that failed halfway */
        return tn_error();
    }
    if (!s->mark || s->joined) { return TN_OK; }
    tn_status status = table_of(s)->mark_join(s->device.index, s->mark);
    s->joined = status == TN_OK;
    return s->joined ? TN_OK : tn__device_failed(s->device, status, "loader");
}

void tn__stage_free(tn__stage *s) {
    stage_settle(s);
    if (s->stream) { table_of(s)->stream_free(s->stream); }
    if (s->memory) { table_of(s)->host_free(s->memory, s->bytes); }
    *s = (tn__stage){.memory = NULL};
}
