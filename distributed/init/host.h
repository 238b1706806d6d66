/* What this process knows about the machine that it runs on. */
#ifndef TERN_DISTRIBUTED_INIT_HOST_H
#define TERN_DISTRIBUTED_INIT_HOST_H

#include "tern/core.h"

enum { TN__HOST_KEY = 160, TN__CPUS = 1024 / 4 + 1, TN__KINDS = 96 };

/* The same for two processes when they can share memory and see each other: boot, process and
 * network namespaces, /dev/shm. TERN_HOST overrides it, so that one machine can pose as several. No
 * spaces. */
void tn__host_key(char key[TN__HOST_KEY]);

/* The same for two processes when they reach each other on 127.0.0.1: boot and network namespace.
 */
void tn__host_network(char key[TN__HOST_KEY]);

/* The cores that this process may use, as hexadecimal digits, core 0 in the first. */
void tn__host_cpus(char cpus[TN__CPUS]);
int tn__cpus_count(const char *cpus);
bool tn__cpus_overlap(const char *a, const char *b);

/* What results depend on beside the sources, in words: the processor's kind, and the levels of the
 * CPU's kernels up to the one that this process may use, "x86_64:plain,v2,v3". Levels of the same
 * word, and no others, give the same bits: a sum has as many chains as a register has lanes. */
void tn__host_kinds(char kinds[TN__KINDS]);
/* From now on computes at the level of this word, one of `kinds`, this process's own. */
void tn__host_compute_at(const char *kinds, const char *word);

/* "name:pid" for messages. */
void tn__host_who(char *who, size_t size);

/* The pid of the mpirun process that has started this one, even through a shell. */
int64_t tn__host_launcher(void);

#endif
