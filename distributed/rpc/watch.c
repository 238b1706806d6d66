/* Who ends before it has connected. Each rank tells the store which process it is when its rpc is
 * made. Ranks on the same host then hold a descriptor of that process (pidfd), which the kernel
 * marks when it ends, however it ends: so nobody waits for it until the deadline. Ranks of other
 * hosts, and threads of this process, are not watched. */
#define _GNU_SOURCE
#include "distributed/rpc/watch.h"

#include "core/descriptor.h"
#include "distributed/group/engine/shm/shm.h"
#include "distributed/init/host.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void name_key(char key[64], int rank) {
    snprintf(key, 64, "process/%d", rank);
}

tn_status tn__watch_announce(tn_store *s, int rank, double deadline, char *why) {
    char key[64], host[TN__HOST_KEY], text[TN__HOST_KEY + 64];
    tn__shm_process process = tn__shm_this_process();
    tn__host_key(host);
    name_key(key, rank);
    int length =
        snprintf(text, sizeof(text), "%s %d %" PRIu64, host, (int)process.pid, process.start);
    return s->set(s, key, text, (size_t)length + 1, deadline, why);
}

/* What the rank has announced, if it is a process of this host. */
static bool find_process(tn_store *s, int rank, tn__watched *w, double deadline,
                         tn__shm_process *process) {
    char key[64], host[TN__HOST_KEY], mine[TN__HOST_KEY], why[TN_STORE_WHY];
    bool exists = false;
    tn_store_value value = {0};
    int pid = 0;
    name_key(key, rank);
    if (s->check(s, key, &exists, deadline, why) != TN_OK || !exists ||
        s->get(s, key, &value, deadline, why) != TN_OK) {
        return false;
    }
    w->known = true;
    tn__host_key(mine);
    const char *text = value.data;
    bool fine = value.bytes > 0 && !text[value.bytes - 1] &&
                sscanf(text, "%159s %d %" SCNu64, host, &pid, &process->start) == 3 &&
                strcmp(host, mine) == 0 && pid != getpid();
    process->pid = pid;
    free(value.data);
    return fine;
}

bool tn__watch_ended(tn_store *s, int rank, tn__watched *w, double deadline) {
    tn__shm_process process;
    if (!w->known && tn__now() < deadline && find_process(s, rank, w, deadline, &process)) {
        int fd = tn__above_streams((int)syscall(SYS_pidfd_open, process.pid, 0));
        /* by now the number may be another process's */
        w->ended = fd >= 0 ? tn__shm_start(process.pid) != process.start : errno == ESRCH;
        w->fd = fd;
        w->has_fd = fd >= 0;
    }
    struct pollfd polled = {.fd = w->has_fd ? w->fd : -1, .events = POLLIN};
    w->ended |= poll(&polled, 1, 0) > 0;
    return w->ended;
}

void tn__watch_end(tn__watched *w) {
    if (w->has_fd) {
        close(w->fd);
        w->has_fd = false;
    }
}
