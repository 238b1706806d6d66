/* cuDNN's handles and cached plans: see dnn.h. */
#include "backends/cuda/dnn.h"

#if TN_HAVE_CUDNN

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PLANS = 512 };

typedef struct dnn_state {
    tn__dnn base; /* comes first */
    pthread_mutex_t lock;
} dnn_state;

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

/* The handle stays NULL if cuDNN is missing or does not start, which is said. */
static void open_handle(tn_context *ctx, tn__dnn *state) {
    static bool said;
    const tn__cudnn_table *dnn = tn__cudnn();
    if (!dnn) {
        tn__cuda_say_once(&said, "attention and convolutions run on slower kernels: %s",
                          tn__cudnn_why());
        return;
    }
    cudnnStatus_t status = dnn->Create(&state->handle);
    if (status != CUDNN_STATUS_SUCCESS) {
        state->handle = NULL;
    } else if ((status = dnn->SetStream(state->handle, tn__cuda_stream(ctx))) !=
               CUDNN_STATUS_SUCCESS) {
        dnn->Destroy(state->handle);
        state->handle = NULL;
    }
    if (!state->handle) {
        tn__cuda_say_once(
            &said, "attention and convolutions run on slower kernels: cuDNN %s does not start: %s",
            dnn->version, dnn->GetErrorString(status));
    }
}

const char *tn__dnn_trouble(void) {
    const tn__cudnn_table *dnn = tn__cudnn();
    cudnnHandle_t handle = NULL;
    if (!dnn) { return NULL; }
    cudnnStatus_t status = dnn->Create(&handle);
    if (status != CUDNN_STATUS_SUCCESS) { return dnn->GetErrorString(status); }
    dnn->Destroy(handle);
    return NULL;
}

tn__dnn *tn__dnn_open(tn_context *ctx) {
    tn__cuda_device *device = tn__cuda_device_of(ctx);
    pthread_mutex_lock(&making);
    if (!device->dnn) {
        dnn_state *made = calloc(1, sizeof(*made));
        if (made) {
            pthread_mutex_init(&made->lock, NULL);
            open_handle(ctx, &made->base);
            device->dnn = made;
        }
    }
    dnn_state *state = device->dnn;
    pthread_mutex_unlock(&making);
    if (!state) { return NULL; }
    pthread_mutex_lock(&state->lock);
    return &state->base;
}

void tn__dnn_close(tn__dnn *dnn) {
    if (dnn) { pthread_mutex_unlock(&((dnn_state *)dnn)->lock); }
}

/* A plan owns its kernels, which may still be queued. */
static void forget_all(const tn_context *ctx, tn__dnn *state) {
    (void)cudaStreamSynchronize(tn__cuda_stream(ctx));
    while (state->plans) {
        tn__dnn_kept *k = state->plans;
        state->plans = k->next;
        if (k->plan) { k->plan_free(tn__cudnn(), k->plan); }
        free(k);
    }
    state->count = 0;
}

tn__dnn_kept *tn__dnn_find(tn__dnn *dnn, const void *key, size_t bytes) {
    for (tn__dnn_kept *k = dnn->plans; k; k = k->next) {
        if (k->bytes == bytes && memcmp(k->key, key, bytes) == 0) { return k; }
    }
    return NULL;
}

tn__dnn_kept *tn__dnn_keep(tn_context *ctx, tn__dnn *dnn, const void *key, size_t bytes,
                           void (*plan_free)(const tn__cudnn_table *dnn, void *plan)) {
    tn__dnn_kept *k = calloc(1, sizeof(*k) + bytes);
    if (!k) { return NULL; }
    if (dnn->count == MOST_PLANS) { forget_all(ctx, dnn); }
    k->plan_free = plan_free;
    k->bytes = bytes;
    memcpy(k->key, key, bytes);
    k->next = dnn->plans;
    dnn->plans = k;
    dnn->count++;
    return k;
}

tn_status tn__dnn_status(tn_context *ctx, cudnnStatus_t status, const char *what) {
    if (status == CUDNN_STATUS_SUCCESS) { return tn__cuda_launched(ctx, what); }
    tn__cuda_note("%s: %s", what, tn__cudnn()->GetErrorString(status));
    return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                   status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
               ? TN_ENOMEM
               : TN_EDEVICE;
}

#else

const char *tn__dnn_trouble(void) {
    return NULL;
}

#endif
