/* A library that the CUDA driver loads into a program (CUDA_INJECTION64_PATH). It writes each
 * kernel, copy and fill that the GPU ran to $KERNEL_TIMES, as a line "START END NAME" in ns. The
 * macro KERNEL is the newest of CUPTI's structs for kernels (bench/gpu_step.py finds its name). */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

int InitializeInjection(void);

static FILE *out;

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *records) {
    *bytes = (size_t)8 << 20;
    *buffer = aligned_alloc(64, *bytes);
    *records = 0; /* as many as fit */
}

static void put_line(uint64_t start, uint64_t end, const char *name) {
    fprintf(out, "%llu %llu %s\n", (unsigned long long)start, (unsigned long long)end, name);
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes,
                                 size_t valid) {
    CUpti_Activity *record = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const KERNEL *k = (const KERNEL *)record;
            put_line(k->start, k->end, k->name);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const CUpti_ActivityMemcpy *c = (const CUpti_ActivityMemcpy *)record;
            put_line(c->start, c->end, "[copy]");
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const CUpti_ActivityMemset *s = (const CUpti_ActivityMemset *)record;
            put_line(s->start, s->end, "[fill]");
        }
    }
    free(buffer);
}

static void write_rest(void) {
    cuptiActivityFlushAll(1);
    fclose(out);
}

int InitializeInjection(void) {
    const char *path = getenv("KERNEL_TIMES");
    out = path ? fopen(path, "w") : NULL;
    if (!out) { return 0; }
    cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    atexit(write_rest);
    return 1;
}
