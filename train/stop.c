/* Ending a loop after a whole step when Ctrl-C is pressed. */
#include "tern/train.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t asked; /* the signal; 0: none */

static void stop_ask(int signal_number) {
    asked = signal_number;
}

/* SA_RESETHAND: a second Ctrl-C has its original effect. SIGTERM comes twice where Slurm sends it
 * to every process of a step, and the launcher among them passes it on. */
void tn_stop_on_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = stop_ask;
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    sigemptyset(&action.sa_mask);
    asked = 0;
    sigaction(SIGINT, &action, NULL);
    action.sa_flags = SA_RESTART;
    sigaction(SIGTERM, &action, NULL);
}

bool tn_stop_asked(void) {
    return asked != 0;
}

int tn_stop_status(void) {
    return 128 + (asked ? (int)asked : SIGTERM);
}
