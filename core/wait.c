/* The library libtern_wait: makes idle OpenMP threads sleep sooner.
 *
 * libgomp's threads spin for 3 ms when they wait, which starves other processes on a busy machine:
 * a step of small operations takes ten times as long. libgomp reads the spin time only once, from
 * the environment, in its constructor, which runs before those of a library that needs it; no
 * function sets it. So this is a separate library that libtern needs after libgomp: the loader runs
 * the constructors of a library's dependencies from last to first. libtern's own constructor then
 * restores the environment (threads.c). GOMP_SPINCOUNT and OMP_WAIT_POLICY are respected if set. If
 * libgomp was loaded earlier, this has no effect. */
#define _GNU_SOURCE 1
#include "core/wait.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char setting[] = "GOMP_SPINCOUNT=10000"; /* iterations: 0.1 ms */
static char **before, **after;

__attribute__((constructor)) static void set_wait(void) {
    if (!environ || getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) { return; }
    size_t n = 0;
    while (environ[n]) {
        n++;
    }
    after = malloc((n + 2) * sizeof(*after)); /* a new array: others may point into the old one */
    if (after) {
        memcpy(after, environ, n * sizeof(*after));
        after[n] = setting;
        after[n + 1] = NULL;
        before = environ;
        environ = after;
    }
}

void tn__wait_restore(void) {
    if (after && environ == after) { environ = before; }
}
