/* How a launch runs: block after block, the threads of a block as fibres.
 *
 *     kernel.h    what kernels see
 *     block.cc    threads, barriers, warps, orders
 *     shared.cc   shared memory
 *     trap.cc     invalid accesses
 *     fibre.cc    stacks
 *     runtime.cc  devices and streams: when a launch runs
 */
#ifndef TERN_TESTS_EMULATOR_BLOCK_H
#define TERN_TESTS_EMULATOR_BLOCK_H

#include "tests/emulator/kernel.h"

#include <stdarg.h>

namespace tn_emulator {

enum {
    MOST_THREADS = 1024,
    WARP = 32,
    MOST_STATIC = 48 << 10,  /* bytes of shared memory that a kernel declares */
    MOST_SHARED = 227 << 10, /* and in total */
};

/* As tern_emulator_set_order (emulator.h). */
bool set_order(const char *text);

/* Runs a whole launch. After an error `why` names the kernel, block and thread. Under the
 * emulator's lock. */
cudaError_t run(const launch &l, char *why, size_t size);

/* Ends the launch from inside one of its threads, with cudaErrorLaunchFailure; fail_of names the
 * thread first. */
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void fail_of(cudaError_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Whether a launch's threads run. */
bool is_running();

/* Between these the calling thread can touch the memory of the opened devices, and an invalid
 * access by a kernel ends the launch. */
void trap_begin();
void trap_end();

/* Shared memory of one block after another. `shared_finish` returns the name of a piece that was
 * written beyond its ends; NULL: none was. */
void shared_start(size_t dynamic_bytes);
const char *shared_finish();

} // namespace tn_emulator

#endif
