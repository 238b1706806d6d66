#define _GNU_SOURCE
#include "distributed/init/host.h"

#include "backends/backend.h"
#include "core/descriptor.h"
#include "tern/sys/device.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { ANCESTORS = 32 };

/* A small file's contents; "" when it cannot be read. */
static void read_file(const char *path, char *text, size_t size) {
    int fd = tn__above_streams(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t got = fd >= 0 ? read(fd, text, size - 1) : 0;
    text[got > 0 ? got : 0] = 0;
    if (fd >= 0) { close(fd); }
}

static void read_link(const char *path, char *text, size_t size) {
    ssize_t got = readlink(path, text, size - 1);
    text[got > 0 ? got : 0] = 0;
}

static void replace_spaces(char *text) {
    for (; *text; text++) {
        *text = (unsigned char)*text <= ' ' || *text == 127 ? '_' : *text;
    }
}

void tn__host_key(char key[TN__HOST_KEY]) {
    const char *given = getenv("TERN_HOST");
    char boot[40], pids[40], network[40];
    struct stat memory = {0};
    if (given && *given) {
        snprintf(key, TN__HOST_KEY, "%s", given);
    } else {
        read_file("/proc/sys/kernel/random/boot_id", boot, sizeof(boot));
        boot[strcspn(boot, "\n")] = 0;
        read_link("/proc/self/ns/pid", pids, sizeof(pids));
        read_link("/proc/self/ns/net", network, sizeof(network));
        stat("/dev/shm", &memory);
        snprintf(key, TN__HOST_KEY, "%s/%s/%s/%llx", boot, pids, network,
                 (unsigned long long)memory.st_dev);
    }
    replace_spaces(key);
}

void tn__host_network(char key[TN__HOST_KEY]) {
    char boot[64] = "", network[40];
    read_file("/proc/sys/kernel/random/boot_id", boot, sizeof(boot));
    if (!*boot) { gethostname(boot, sizeof(boot) - 1); }
    boot[strcspn(boot, "\n")] = 0;
    read_link("/proc/self/ns/net", network, sizeof(network));
    snprintf(key, TN__HOST_KEY, "%s %s", boot, network);
}

/* ---- Cores ----------------------------------------------------------------------------------- */

void tn__host_cpus(char cpus[TN__CPUS]) {
    cpu_set_t set;
    size_t digits = 1;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) { CPU_SET(0, &set); }
    for (size_t digit = 0; digit < TN__CPUS - 1; digit++) {
        int bits = 0;
        for (size_t bit = 0; bit < 4 && 4 * digit + bit < CPU_SETSIZE; bit++) {
            bits |= CPU_ISSET(4 * digit + bit, &set) ? 1 << bit : 0;
        }
        cpus[digit] = "0123456789abcdef"[bits];
        digits = bits ? digit + 1 : digits;
    }
    cpus[digits] = 0;
}

static int bits_of(char digit) {
    return digit >= 'a' ? digit - 'a' + 10 : digit - '0';
}

int tn__cpus_count(const char *cpus) {
    int count = 0;
    for (; *cpus; cpus++) {
        count += __builtin_popcount((unsigned)bits_of(*cpus) & 15u);
    }
    return count;
}

bool tn__cpus_overlap(const char *a, const char *b) {
    for (; *a && *b; a++, b++) {
        if (bits_of(*a) & bits_of(*b)) { return true; }
    }
    return false;
}

/* ---- Levels ---------------------------------------------------------------------------------- */

/* The level of this word, "v4-bf16" for example; NULL: this process may not use it. */
static const tn_backend *level_of(const char *word) {
    char name[32];
    int length = (int)strcspn(word, "-");
    snprintf(name, sizeof(name), "cpu-%.*s", length < 20 ? length : 20, word);
    return tn_backend_named(strcmp(word, "plain") == 0 ? "ref" : name);
}

void tn__host_kinds(char kinds[TN__KINDS]) {
    struct utsname system = {.machine = "?"};
    uname(&system);
    const char *rest = "", *pairs = "";
#if defined(__x86_64__)
    /* without FMA glibc's functions of doubles have other bits, at every level; cpu/gemm_bf16.c
     * multiplies pairs of bf16 where the processor does */
    rest = __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2") ? "" : "-no-fma";
    pairs = __builtin_cpu_supports("avx512bf16") ? "-bf16" : "";
#endif
    char levels[TN__CPU_LEVELS], *left = levels, *level;
    tn__cpu_levels(levels, sizeof(levels));
    size_t used = (size_t)snprintf(kinds, TN__KINDS, "%.40s%s:", system.machine, rest);
    for (bool first = true; (level = strtok_r(left, " ", &left)); first = false) {
        if (level_of(level) && used < TN__KINDS) {
            used += (size_t)snprintf(kinds + used, TN__KINDS - used, "%s%s%s", first ? "" : ",",
                                     level, strcmp(level, "v4") == 0 ? pairs : "");
        }
    }
}

void tn__host_compute_at(const char *kinds, const char *word) {
    static bool lowered;
    size_t all = strlen(kinds), own = strlen(word);
    bool highest = own < all && strcmp(kinds + all - own, word) == 0 &&
                   (kinds[all - own - 1] == ',' || kinds[all - own - 1] == ':');
    if (!highest || lowered) { tn_backend_use(highest ? NULL : level_of(word)); }
    lowered = !highest;
}

/* ---- Processes ------------------------------------------------------------------------------- */

void tn__host_who(char *who, size_t size) {
    char name[65] = "";
    gethostname(name, sizeof(name) - 1);
    replace_spaces(name);
    snprintf(who, size, "%s:%d", name, (int)getpid());
}

/* A process's name and parent. */
static bool look_up(int64_t pid, char name[32], int64_t *parent) {
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
    read_file(path, text, sizeof(text));
    char *open = strchr(text, '('), *close = strrchr(text, ')');
    if (!open || !close || close[1] != ' ') { return false; }
    *close = 0;
    snprintf(name, 32, "%.31s", open + 1);
    *parent = strtoll(close + 4, NULL, 10); /* after the state, one letter */
    return true;
}

int64_t tn__host_launcher(void) {
    char name[32];
    int64_t parent;
    int64_t pid = getppid();
    for (int i = 0; i < ANCESTORS && pid > 1 && look_up(pid, name, &parent); i++) {
        if (strcmp(name, "hydra_pmi_proxy") == 0) { return pid; }
        pid = parent;
    }
    return getppid();
}
