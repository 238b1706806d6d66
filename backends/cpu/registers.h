/* What this level's registers hold: the bytes of a vector, how many there are, and how many rows of
 * a product stay in them along with two vectors of columns (MR x 2 accumulators, two vectors of B,
 * one of A).
 */
#ifndef TERN_BACKENDS_CPU_REGISTERS_H
#define TERN_BACKENDS_CPU_REGISTERS_H

#ifdef TILES /* gemm_amx.c: two tiles of rows, two of columns */
enum { VBYTES = 64, REGISTERS = 32, MR = 32 };
#elif defined(__aarch64__)
enum { VBYTES = 16, REGISTERS = 32, MR = 12 };
#elif TN_CPU_LEVEL >= 4
enum { VBYTES = 64, REGISTERS = 32, MR = 12 };
#elif TN_CPU_LEVEL == 3
enum { VBYTES = 32, REGISTERS = 16, MR = 6 };
#else
enum { VBYTES = 16, REGISTERS = 16, MR = 6 };
#endif

#endif
