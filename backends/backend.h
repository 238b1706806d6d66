/* The tables that this build contains; backend.c chooses among them. */
#ifndef TERN_BACKENDS_BACKEND_H
#define TERN_BACKENDS_BACKEND_H

#include <tern/sys/backend.h>

/* The specification: every entry filled. */
const tn_backend *tn__ref_table(void);

/* ref's table with cpu's overrides, compiled for x86-64-v2, -v3 and -v4, or for aarch64. Only
 * called if the machine can run them. The build defines TN_HAVE_CPU_V2, _V3, _V4, _NEON for those
 * that it compiled. */
const tn_backend *tn__cpu_table_v2(void);
const tn_backend *tn__cpu_table_v3(void);
const tn_backend *tn__cpu_table_v4(void);
const tn_backend *tn__cpu_table_neon(void);

/* The highest level (backend.c numbers them; 1: ref's table) that this process uses: the machine's
 * best, or what TERN_CPU permits. */
int tn__cpu_most(void);

/* The levels of this build and machine, by TERN_CPU's names: "plain v2 v3". Returns `text`. */
enum { TN__CPU_LEVELS = 32 };
TN_API const char *tn__cpu_levels(char *text, size_t size);

#endif
