/* Whether the gloo plugin was built here; tests of it are skipped where it was not. */
#ifndef TERN_TESTS_SUPPORT_GLOO_H
#define TERN_TESTS_SUPPORT_GLOO_H

#include "core/plugin.h"
#include "distributed/group/engine/gloo/gloo.h"

#include <stdio.h>

static inline bool gloo_is_here(void) {
    char why[512];
    bool here = tn__plugin_symbol("gloo", TN__GLOO_SYMBOL, why, sizeof(why)) != NULL;
    if (!here) { fprintf(stderr, "NOT TESTED: %s\n", why); }
    return here;
}

#endif
