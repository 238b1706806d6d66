/* 11_gpt2, killed at the call that TERN_TEST_KILL_AT counts to: the rank TERN_TEST_KILL_RANK, until
 * the launcher has started it again. */
#include "tests/support/kill_at.h"

#include "examples/11_gpt2.c"

#include <stdlib.h>

__attribute__((constructor)) static void read_place(void) {
    const char *call = getenv("TERN_TEST_KILL_AT"), *victim = getenv("TERN_TEST_KILL_RANK");
    const char *rank = getenv("RANK"), *restarts = getenv("TERN_RESTART_COUNT");
    bool mine = atol(rank ? rank : "0") == atol(victim ? victim : "0") &&
                atol(restarts ? restarts : "0") == 0;
    kill_at_call = call && mine ? atol(call) : 0;
}
