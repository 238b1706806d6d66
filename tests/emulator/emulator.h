/* What tests can ask of the emulator; libtern_cuda_emulator.so exports it. */
#ifndef TERN_TESTS_EMULATOR_EMULATOR_H
#define TERN_TESTS_EMULATOR_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_EMULATOR_API __attribute__((visibility("default")))

/* The order in which blocks, and threads between two waits, run from now on: "forward", "reverse",
 * "shuffle" or "shuffle:SEED", like $TERN_EMULATOR_ORDER. False for any other text. */
TN_EMULATOR_API bool tern_emulator_set_order(const char *order);

/* The bytes of each device, like $TERN_EMULATOR_MEMORY (4 GiB by default). */
TN_EMULATOR_API void tern_emulator_set_memory(size_t bytes);

/* Drops queued work and sticky errors: new devices, with the old memory. */
TN_EMULATOR_API void tern_emulator_reset(void);

/* As if a kernel had died on the device: its calls fail from now on, with this reason. */
TN_EMULATOR_API void tern_emulator_break(int device, const char *why);

/* For stand-ins of libraries (queue.cc). Queues work in a stream of this device; it can reach the
 * memory of the device, as a kernel can, and is called until it returns true: once by each poll.
 * False: the device has no such stream. */
TN_EMULATOR_API bool tern_emulator_queue(int device, void *stream, bool (*work)(void *user),
                                         void *user);
/* The device that has all these bytes in one allocation; -1: none. */
TN_EMULATOR_API int tern_emulator_owner(const void *memory, size_t bytes);
/* Memory of the calling thread's device, and the number of that device. */
TN_EMULATOR_API void *tern_emulator_alloc(size_t bytes);
TN_EMULATOR_API void tern_emulator_free(void *memory);
TN_EMULATOR_API int tern_emulator_device(void);

/* Writes a line into the file of TERN_EMULATOR_RECORD (record.cc). False: there is none, and the
 * caller has to do the work. */
TN_EMULATOR_API bool tern_emulator_record(const char *line);

#ifdef __cplusplus
}
#endif
#endif
