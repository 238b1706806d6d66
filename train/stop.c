/* Ending a loop after a whole step when Ctrl-C is pressed. */
#include "tern/train.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t asked; /* the signal; 0: none */

static void stop_ask(int signal_number) {
    asked = signal_number;
}

/* SA_RESETHAND: the second signal has its original effect. */
void tn_stop_on_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = stop_ask;
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    sigemptyset(&action.sa_mask);
    asked = 0;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool tn_stop_asked(void) {
    return asked != 0;
}

int tn_stop_status(void) {
    return 128 + (asked ? (int)asked : SIGTERM);
}
