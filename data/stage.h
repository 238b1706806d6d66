/* Staging: page-locked host memory in which a batch for a device is made and from which it is
 * copied to the device while host and device do something else: in a stream of its own. The compute
 * stream waits for the copies when the batch is used (tn__stage_join). The copies wait for what the
 * compute stream had queued when the memory was filled, since that may still use the memory which
 * the batch's tensors now have.
 */
#ifndef TERN_DATA_STAGE_H
#define TERN_DATA_STAGE_H

#include "tern/sys/device.h"

/* Zeros to begin with. Used by one thread at a time. */
typedef struct tn__stage {
    tn_device device;
    void *memory;
    size_t bytes;
    void *stream; /* of the copies */
    bool sends;   /* copies were queued, and have no mark yet */
    void *mark;   /* after the last copy out of memory; NULL: no copy is running */
    bool joined;  /* the compute stream waits for the mark */
} tn__stage;

/* Memory of at least `bytes` to fill for a device that is not the CPU, once there are tensors for
 * it: waits until the last copy out of it is done. NULL after raising. */
void *tn__stage_begin(tn__stage *s, tn_device device, size_t bytes);

/* Queues a copy from the filled memory to t, which is contiguous and on the device. */
tn_status tn__stage_send(tn__stage *s, tn_tensor *t, const void *from);

/* After the last tn__stage_send: the memory is in use until the copies are done. */
tn_status tn__stage_end(tn__stage *s);

/* Lets the compute stream wait for the copies: before the tensors are used, and before they are
 * freed. */
tn_status tn__stage_join(tn__stage *s);

/* Waits for the copies. */
void tn__stage_free(tn__stage *s);

#endif
