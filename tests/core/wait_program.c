/* Prints the GOMP_SPINCOUNT that it sees. */
#include <stdio.h>
#include <stdlib.h>
#include <tern/core.h>

int main(void) {
    const char *spins = getenv("GOMP_SPINCOUNT");
    tn_threads();
    printf("program: %s\n", spins ? spins : "unset");
    return 0;
}
