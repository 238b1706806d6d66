/* Tensors that the host reads and writes, whatever the thread's default device is. */
#ifndef TERN_DISTRIBUTED_ON_CPU_H
#define TERN_DISTRIBUTED_ON_CPU_H

#include "tern/tensor.h"

/* Until the '}', new tensors of this thread are on the CPU. */
#define TN__ON_CPU \
    __attribute__((cleanup(tn__on_cpu_end), unused)) tn_device tn__default_was = tn__on_cpu()

static inline tn_device tn__on_cpu(void) {
    tn_device before = tn_default_device();
    tn_set_default_device(tn_cpu());
    return before;
}

static inline void tn__on_cpu_end(tn_device *before) {
    tn_set_default_device(*before);
}

#endif
