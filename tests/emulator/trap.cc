/* Accesses that fault: the first to a piece of device memory opens it (memory.cc). A kernel's
 * invalid access ends its launch, as on a GPU, and not the process.
 *
 * The SIGSEGV handler is installed only while devices work, and only acts for the thread that does
 * their work: the host's invalid accesses end the program as usual. It may leave the kernel's stack
 * for good, so SIGSEGV must not stay blocked. Under AddressSanitizer a kernel's invalid access goes
 * to its handler: the report names the line.
 */
#include "tests/emulator/block.h"

#include "tests/emulator/fibre.h"
#include "tests/emulator/runtime.h"

#include <pthread.h>
#include <signal.h>

namespace tn_emulator {

static pthread_t runner;
static struct sigaction before;
static sigset_t mask_before;

static bool can_end_launch() {
#ifdef TN_FIBRE_ASAN
    return false;
#else
    return is_running();
#endif
}

static void handle_fault(int, siginfo_t *info, void *) {
    bool own = pthread_equal(pthread_self(), runner);
    if (own && open_piece(info->si_addr)) { return; }
    if (own && can_end_launch()) {
        char text[160];
        describe_address(info->si_addr, text, sizeof(text));
        fail_of(cudaErrorIllegalAddress, "touches %s", text);
    }
    sigaction(SIGSEGV, &before, nullptr); /* the access is repeated, without our handler */
}

/* Threads of a library may have all signals blocked, and a blocked fault ends the process. */
void trap_begin() {
    struct sigaction own = {};
    own.sa_sigaction = handle_fault;
    own.sa_flags = SA_SIGINFO | SA_NODEFER;
    runner = pthread_self();
    sigaction(SIGSEGV, &own, &before);
    sigset_t fault;
    sigemptyset(&fault);
    sigaddset(&fault, SIGSEGV);
    pthread_sigmask(SIG_UNBLOCK, &fault, &mask_before);
}

void trap_end() {
    sigaction(SIGSEGV, &before, nullptr);
    pthread_sigmask(SIG_SETMASK, &mask_before, nullptr);
}

} // namespace tn_emulator
