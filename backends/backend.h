/* The tables that this build contains; backend.c chooses among them. */
#ifndef TERN_BACKENDS_BACKEND_H
#define TERN_BACKENDS_BACKEND_H

#include <tern/sys/backend.h>

/* The specification: every entry filled. */
const tn_backend *tn__ref_table(void);

/* ref's table with cpu's overrides, compiled for x86-64-v2, -v3 and -v4, or for aarch64. Only
 * called if the machine can run them. The build defines TN_HAVE_CPU_V2, _V3, _V4, _NEON for those
 * that it compiled. `tiles`: the one whose bf16 products run on tiles: of v4 "cpu-amx", of the
 * others its twin, "cpu-amx-twin". */
const tn_backend *tn__cpu_table_v2(bool tiles);
const tn_backend *tn__cpu_table_v3(bool tiles);
const tn_backend *tn__cpu_table_v4(bool tiles);
const tn_backend *tn__cpu_table_neon(bool tiles);

/* Whether the table in use is one with tiles. */
extern bool tn__cpu_tiles;

/* The levels of this build and machine, by TERN_CPU's names: "plain v2 v3". Without amx-twin, which
 * every machine has (backends/cpu/tiles.h) and no program wants. Returns `text`. */
enum { TN__CPU_LEVELS = 32 };
TN_API const char *tn__cpu_levels(char *text, size_t size);

#endif
