/* Fibres: stacks that one host thread switches between.
 *
 * Nothing here knows about kernels; block.cc gives a fibre to each thread of a block that has to
 * wait. All run under the emulator's lock, so at most one runs at a time.
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

/* Makes a fibre that starts in `entry`, also from one that ran before, wherever it was left. False:
 * there is no memory for its stack. */
bool fibre_prepare(fibre *f, void (*entry)());

/* Leaves `from`, which is the running one, and continues in `to`. `last`: nothing switches back to
 * `from`. */
void fibre_switch(fibre *from, fibre *to, bool last = false);

} // namespace tn_emulator

#endif
