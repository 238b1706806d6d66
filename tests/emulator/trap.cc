/* A kernel that touches memory which it has not ends its launch, as on a GPU, and not the process.
 *
 * The handler of SIGSEGV is there only while a launch runs, and only for the thread that runs it:
 * what the host touches wrongly ends the program as ever. It leaves the kernel's stack for good, so
 * SIGSEGV must not stay blocked. Under AddressSanitizer there is none:
 * its report names the kernel's line.
 */
#include "tests/emulator/block.h"

#include "tests/emulator/fibre.h"
#include "tests/emulator/runtime.h"

#include <pthread.h>
#include <signal.h>

namespace tn_emulator {

#ifdef TN_FIBRE_ASAN

void trap_begin() {}
void trap_end() {}

#else

static pthread_t runner;
static struct sigaction before;

static void trapped(int, siginfo_t *info, void *) {
    if (!pthread_equal(pthread_self(), runner)) {
        sigaction(SIGSEGV, &before, nullptr); /* the access is made again, and then without us */
        return;
    }
    char text[160];
    describe_address(info->si_addr, text, sizeof(text));
    fail_of(cudaErrorIllegalAddress, "touches %s", text);
}

void trap_begin() {
    struct sigaction own = {};
    own.sa_sigaction = trapped;
    own.sa_flags = SA_SIGINFO | SA_NODEFER;
    runner = pthread_self();
    sigaction(SIGSEGV, &own, &before);
}

void trap_end() {
    sigaction(SIGSEGV, &before, nullptr);
}

#endif

} // namespace tn_emulator
