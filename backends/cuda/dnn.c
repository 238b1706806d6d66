/* cuDNN's handles and cached plans: see dnn.h. */
#include "backends/cuda/dnn.h"

#include "backends/cuda/tune.h"

#if TN_HAVE_CUDNN

#include <stdlib.h>
#include <string.h>

enum { MOST_PLANS = 512 };

typedef struct tn__dnn_kept {
    struct tn__dnn_kept *next;
    bool usable; /* false: cuDNN does not take this shape */
    tn__dnn_plan plan;
    size_t bytes;
    unsigned char shape[];
} kept_plan;

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
        tn__dnn *made = calloc(1, sizeof(*made));
        if (made) {
            pthread_mutex_init(&made->lock, NULL);
            open_handle(ctx, made);
            device->dnn = made;
        }
    }
    tn__dnn *state = device->dnn;
    pthread_mutex_unlock(&making);
    if (state) { pthread_mutex_lock(&state->lock); }
    return state;
}

void tn__dnn_close(tn__dnn *dnn) {
    if (dnn) { pthread_mutex_unlock(&dnn->lock); }
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static void destroy_plan(const tn__dnn_plan *p) {
    tn__cudnn()->BackendDestroyDescriptor(p->plan);
}

/* A plan owns its kernels, which may still be queued. */
static void forget_all(const tn_context *ctx, tn__dnn *state) {
    (void)cudaStreamSynchronize(tn__cuda_stream(ctx));
    while (state->plans) {
        kept_plan *k = state->plans;
        state->plans = k->next;
        if (k->usable) { destroy_plan(&k->plan); }
        free(k);
    }
    state->count = 0;
}

typedef struct trial {
    tn__dnn *dnn;
    const tn__dnn_work *work;
    const tn__dnn_plan *plans;
} trial;

static bool try_plan(tn_context *ctx, int i, void *user) {
    const trial *t = user;
    return t->work->run(ctx, t->dnn, t->work, &t->plans[i]) == TN_OK;
}

/* The best of the shape's plans; false: cuDNN has none. */
static bool best_plan(tn_context *ctx, tn__dnn *dnn, const tn__dnn_work *work, tn__dnn_plan *best) {
    char why[TN__DNN_WHY];
    tn__dnn_plan plans[TN__DNN_CHOICES];
    tn__dnn_target target = {.handle = dnn->handle, .major = tn__cuda_device_of(ctx)->major};
    int count = work->make(tn__cudnn(), target, work->shape,
                           tn__cuda_tunes(ctx) ? TN__DNN_CHOICES : 1, plans, why);
    if (count == 0) {
        work->refused(work->shape, why);
        return false;
    }
    trial t = {dnn, work, plans};
    int chosen = count > 1 ? tn__cuda_fastest(ctx, count, try_plan, &t) : 0;
    for (int i = 0; i < count; i++) {
        if (i != chosen) { destroy_plan(&plans[i]); }
    }
    *best = plans[chosen];
    return true;
}

static kept_plan *find_kept(const tn__dnn *state, const tn__dnn_work *work) {
    kept_plan *k = state->plans;
    while (k && (k->bytes != work->bytes || memcmp(k->shape, work->shape, k->bytes) != 0)) {
        k = k->next;
    }
    return k;
}

bool tn__dnn_refused(const tn__dnn *dnn, const tn__dnn_work *work) {
    const kept_plan *k = find_kept(dnn, work);
    return k && !k->usable;
}

tn_status tn__dnn_find(tn_context *ctx, tn__dnn *dnn, const tn__dnn_work *work,
                       const tn__dnn_plan **plan) {
    kept_plan *k = find_kept(dnn, work);
    if (!k) {
        k = calloc(1, sizeof(*k) + work->bytes);
        if (!k) { return TN_ENOMEM; }
        if (dnn->count == MOST_PLANS) { forget_all(ctx, dnn); }
        k->bytes = work->bytes;
        memcpy(k->shape, work->shape, work->bytes);
        k->usable = best_plan(ctx, dnn, work, &k->plan);
        k->next = dnn->plans;
        dnn->plans = k;
        dnn->count++;
    }
    *plan = &k->plan;
    return k->usable ? TN_OK : TN_EUNSUPPORTED;
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
