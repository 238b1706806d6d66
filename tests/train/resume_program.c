/* The character GPT, killed at the call that TERN_TEST_KILL_AT counts to. */
#include "tests/support/kill_at.h"

#include "examples/04_char_gpt.c"

__attribute__((constructor)) static void read_place(void) {
    const char *call = getenv("TERN_TEST_KILL_AT");
    kill_at_call = call ? atol(call) : 0;
}
