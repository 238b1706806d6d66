/* Parts of Tern that need a library not every machine has: libtern_NAME.so, loaded on demand.
 *
 * It is searched for next to libtern.so, then in the folders of TERN_PLUGIN_PATH (separated by
 * colons), then where the loader searches. A program that is linked statically has no plugins. */
#ifndef TERN_CORE_PLUGIN_H
#define TERN_CORE_PLUGIN_H

#include "tern/core.h"

/* The address of `symbol` in plugin `name` ("gloo"), which stays loaded. NULL with the loader's
 * message in why[size]; later calls for the same plugin give the same answer at once. Any thread.
 * Raises nothing. */
TN_API void *tn__plugin_symbol(const char *name, const char *symbol, char *why, size_t size);

/* Opens a shared library by its file or soname, as dlopen does. NULL with why[size]: a program that
 * is linked statically has none. */
void *tn__library_open(const char *file, char *why, size_t size);

/* Until they are let go, other threads open no library and do not fork: a child would have one that
 * is half open, which crashes its next dlopen. Both functions above do this; so must whoever opens
 * libraries otherwise or calls what does, with no lock of the library in its hands. One thread may
 * hold them several times, and may fork meanwhile. */
TN_API void tn__libraries_hold(void);
TN_API void tn__libraries_let_go(void);

#endif
