/* Staging: page-locked host memory in which a batch for a device is made and from which it is
 * copied to the device while the host does something else.
 */
#ifndef TERN_DATA_STAGE_H
#define TERN_DATA_STAGE_H

#include "tern/sys/device.h"

/* Zeros to begin with. Used by one thread at a time. */
typedef struct tn__stage {
    tn_device device;
    void *memory;
    size_t bytes;
    void *mark; /* after the last copy out of memory; NULL: no copy is running */
} tn__stage;

/* Memory of at least `bytes` to fill for a device that is not the CPU: waits until the last copy
 * out of it is done. NULL after raising. */
void *tn__stage_begin(tn__stage *s, tn_device device, size_t bytes);

/* Queues a copy from the filled memory to t, which is contiguous and on the device. */
tn_status tn__stage_send(tn__stage *s, tn_tensor *t, const void *from);

/* After the last tn__stage_send: the memory is in use until the copies are done. */
tn_status tn__stage_end(tn__stage *s);

/* Waits for the copies. */
void tn__stage_free(tn__stage *s);

#endif
