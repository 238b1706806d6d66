#include "backends/machine.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whether the processor has tiles of bf16 and the system lets this process use them: it wants to be
 * asked, since a signal's stack then needs 8 KB more. */
static bool tiles_allowed(void) {
    enum { LEAF = 7, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, REQUEST = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    return __get_cpuid_count(LEAF, 0, &a, &b, &c, &d) && (d & AMX_BF16) && (d & AMX_TILE) &&
           syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#endif

/* Whether this machine (and its operating system, for the wide registers) runs code for x86-64-v2,
 * -v3, -v4. Every machine with AVX2 and FMA also has the rest of v3 (F16C, LZCNT, MOVBE), which not
 * every compiler can test for. */
bool tn__machine_runs(int level) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") &&
              __builtin_cpu_supports("popcnt");
    bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    return level == 2   ? v2
           : level == 3 ? v3
                        : v4 && (level == 4 || (level == AMX && tiles_allowed()));
#elif defined(__aarch64__)
    return level == NEON; /* part of the architecture */
#else
    return level == 2; /* other architectures: compiled for the compiler's default target */
#endif
}
