/* The CPU's levels, and which of them this machine runs. */
#ifndef TERN_BACKENDS_MACHINE_H
#define TERN_BACKENDS_MACHINE_H

#include <stdbool.h>

/* 2, 3 and 4 are x86-64's; 1 is scalar C, ref's table. AMX is v4 with tiles; its twin in plain C,
 * with the same bits in products, is for tests alone and must be asked for by its name. */
enum { PLAIN = 1, AMX = 5, NEON, LEVELS = NEON, TWIN };

/* Of the levels above PLAIN, without TWIN. */
bool tn__machine_runs(int level);

#endif
