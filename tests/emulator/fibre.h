/* Fibres: stacks that one thread of the host switches between.
 *
 * Nothing here knows of kernels; block.cc gives each thread of a block that has to wait a fibre.
 * All of them run under the emulator's lock, so never more than one is on its way.
 */
#ifndef TERN_TESTS_EMULATOR_FIBRE_H
#define TERN_TESTS_EMULATOR_FIBRE_H

#include <stddef.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#define TN_FIBRE_UCONTEXT
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define TN_FIBRE_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TN_FIBRE_ASAN
#endif
#endif

namespace tn_emulator {

struct fibre {
#ifdef TN_FIBRE_UCONTEXT
    ucontext_t context;
#else
    void *top; /* the stack pointer while another fibre runs */
#endif
    const void *stack; /* its lowest byte; NULL: none yet, or the host thread's own */
    size_t size;
    void *shelter;   /* AddressSanitizer's, while another fibre runs */
    void (*entry)(); /* never returns */
};

/* Makes a fibre that starts in `entry`; also of one that ran before, wherever it was left. False:
 * there is no memory for its stack. */
bool fibre_prepare(fibre *f, void (*entry)());

/* Leaves `from`, which is the running one, and continues in `to`. `last`: no one comes back to
 * `from`. */
void fibre_switch(fibre *from, fibre *to, bool last = false);

} // namespace tn_emulator

#endif
