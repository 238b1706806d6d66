/* Streams other than the compute stream: where groups queue their copies (sys/device.h). */
#include "backends/cuda/cuda.h"

#include <stdlib.h>

typedef struct stream {
    int index;
    cudaStream_t cuda;
} stream;

void *tn__cuda_stream_new(int index) {
    if (!tn__cuda_device_at(index)) { return NULL; }
    stream *s = malloc(sizeof(*s));
    if (!s) {
        tn__cuda_note("no memory for a stream");
        return NULL;
    }
    s->index = index;
    tn_status status = tn__cuda_check(cudaStreamCreateWithFlags(&s->cuda, cudaStreamNonBlocking),
                                      "a stream for transfers");
    if (status != TN_OK) {
        free(s);
        return NULL;
    }
    return s;
}

void tn__cuda_stream_free(void *opaque) {
    stream *s = opaque;
    if (s && tn__cuda_device_at(s->index)) {
        cudaStreamSynchronize(s->cuda);
        cudaStreamDestroy(s->cuda);
    }
    free(s);
}

tn_status tn__cuda_stream_join(void *opaque, void *mark) {
    const stream *s = opaque;
    const tn__cuda_mark *m = mark;
    if (!tn__cuda_device_at(s->index)) { return TN_EDEVICE; }
    return tn__cuda_check(cudaStreamWaitEvent(s->cuda, m->event, 0), "a stream that waits");
}

void *tn__cuda_stream_mark(void *opaque) {
    const stream *s = opaque;
    tn__cuda_mark *mark = tn__cuda_mark_in(s->index, s->cuda);
    if (mark) { mark->beside = true; }
    return mark;
}

tn_status tn__cuda_stream_copy(void *opaque, void *to, const void *from, size_t bytes) {
    const stream *s = opaque;
    if (!tn__cuda_device_at(s->index)) { return TN_EDEVICE; }
    return tn__cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->cuda),
                          "a copy for a group");
}
