/* The library libtern_wait: idle threads of OpenMP soon sleep.
 *
 * libgomp's threads spin for 3 ms when they wait, which starves everybody on a busy machine: a step
 * of small operations takes ten times as long. How long they spin libgomp reads once from the
 * environment, in its constructor, which runs before those of a library that needs it; and it has
 * no function for that. So this is a library of its own that libtern needs after libgomp: the
 * loader runs the constructors of what a library needs from the last to the first. libtern's own
 * constructor then restores the environment (threads.c). Who has set GOMP_SPINCOUNT or
 * OMP_WAIT_POLICY is obeyed. Where the order is another one
 * (libgomp was there before), nothing happens. */
#define _GNU_SOURCE 1
#include "core/wait.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char setting[] = "GOMP_SPINCOUNT=10000"; /* turns: 0.1 ms */
static char **before, **after;

__attribute__((constructor)) static void set_wait(void) {
    if (!environ || getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) {
        return;
    }
    size_t n = 0;
    while (environ[n]) {
        n++;
    }
    after = malloc((n + 2) * sizeof(*after)); /* another array: nobody's pointers into theirs end */
    if (after) {
        memcpy(after, environ, n * sizeof(*after));
        after[n] = setting;
        after[n + 1] = NULL;
        before = environ;
        environ = after;
    }
}

void tn__wait_restore(void) {
    if (after && environ == after) {
        environ = before;
    }
}
