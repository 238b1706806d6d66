/* The memory of the engine "shm": blocks without a name (memfd) that the ranks of one host map.
 *
 * Nothing is in /dev/shm, which is small in containers, and nothing is left over when the ranks are
 * killed. A rank opens another one's block through /proc, and trusts it when process and memory are
 * this user's, the process is the very one that was named (pids are reused), and the size is
 * sealed: a file that someone else truncated would mean SIGBUS. Pages are allocated when a block is
 * made: running out of memory is then an error of that call and not SIGBUS at the first touch.
 *
 * Memory of alloc is a region: a part for each rank, mapped by all. A rank that frees its part
 * keeps the mapping until all have freed theirs, since the others may still be moving bytes between
 * theirs, and name them by region and offset. A forked child reads its parent's regions; what it
 * writes is private (such as gradients in the parent's buckets).
 */
#define _GNU_SOURCE 1 /* memfd_create, fallocate */
#include "core/allocator.h"
#include "core/descriptor.h"
#include "core/fork.h"
#include "core/memory.h"
#include "distributed/group/engine/shm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* Allocating more pages than there are would invoke the kernel's OOM killer before it fails. */
static bool fits_machine(size_t bytes) {
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages <= 0 || bytes / (size_t)size < (size_t)pages;
}

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

int tn__shm_create(size_t bytes) {
    if (!fits_machine(bytes)) {
        errno = ENOMEM;
        return -1;
    }
    int fd = tn__above_streams(memfd_create("tern", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd >= 0 && (ftruncate(fd, (off_t)bytes) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0)) {
        int reason = errno;
        close(fd);
        errno = reason;
        fd = -1;
    }
    return fd;
}

int tn__shm_reserve(int fd, size_t offset, size_t bytes) {
    int failed;
    do {
        failed = fallocate(fd, 0, (off_t)offset, (off_t)bytes) ? errno : 0;
    } while (failed == EINTR);
    return failed;
}

/* The start time of the process whose /proc folder is open; 0: it has ended. */
static uint64_t read_start(int folder) {
    char text[1024];
    unsigned long long start = 0;
    int fd = tn__above_streams(openat(folder, "stat", O_RDONLY | O_CLOEXEC));
    ssize_t got = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
    if (fd >= 0) { close(fd); }
    text[got > 0 ? got : 0] = 0;
    const char *at = strrchr(text, ')'); /* the name before it may contain anything; see proc(5) */
    for (int field = 2; at && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    return at && sscanf(at, "%llu", &start) == 1 ? start : 0;
}

static int open_process(int pid) {
    char path[32];
    snprintf(path, sizeof(path), "/proc/%d", pid);
    return tn__above_streams(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

uint64_t tn__shm_start(int pid) {
    int folder = open_process(pid);
    uint64_t start = folder >= 0 ? read_start(folder) : 0;
    if (folder >= 0) { close(folder); }
    return start;
}

tn__shm_process tn__shm_this_process(void) {
    int pid = getpid();
    return (tn__shm_process){.pid = pid, .start = tn__shm_start(pid)};
}

/* 0, or an errno of tn__shm_open. The folder remains that process's even if the number is
 * reused. */
static int check_process(int folder, const tn__shm_process *process) {
    struct stat about;
    if (fstat(folder, &about) != 0 || read_start(folder) != process->start) { return ESRCH; }
    return about.st_uid == geteuid() ? 0 : EPERM;
}

static int check_memory(int fd, size_t bytes) {
    struct stat about;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size != (off_t)bytes) {
        return ESTALE;
    }
    int seals = fcntl(fd, F_GET_SEALS);
    return about.st_uid != geteuid() ? EPERM : seals >= 0 && (seals & F_SEAL_SHRINK) ? 0 : ESTALE;
}

int tn__shm_open(const tn__shm_process *process, int fd, size_t bytes) {
    char name[32];
    int folder = open_process(process->pid), memory = -1;
    int failed = folder < 0 ? errno : check_process(folder, process);
    failed = failed == ENOENT ? ESRCH : failed;
    if (!failed) {
        snprintf(name, sizeof(name), "fd/%d", fd);
        memory =
            tn__above_streams(openat(folder, name, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
        failed = memory < 0 ? errno : check_memory(memory, bytes);
    }
    if (folder >= 0) { close(folder); }
    if (failed && memory >= 0) { close(memory); }
    errno = failed;
    return failed ? -1 : memory;
}

/* ---- Regions --------------------------------------------------------------------------------- */

static pthread_mutex_t mapped_lock = PTHREAD_MUTEX_INITIALIZER;
static tn__shm_region *mapped; /* in this process; under the lock */

/* In a forked child: its writes must not reach the parent or the other ranks. */
static void keep_writes(void) {
    for (const tn__shm_region *g = mapped; g; g = g->next_mapped) {
        (void)mmap(g->base, g->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, g->fd, 0);
        close(g->fd);
    }
    mapped = NULL; /* its own children keep what it has written */
}

__attribute__((constructor)) static void care_for_fork(void) {
    tn__fork_takes(&mapped_lock);
    pthread_atfork(NULL, NULL, keep_writes);
}

static void list_region(tn__shm_region *g, int fd) {
    pthread_mutex_lock(&mapped_lock);
    g->fd = fd;
    g->next_mapped = mapped;
    mapped = g;
    pthread_mutex_unlock(&mapped_lock);
}

static void end_region(tn__shm_region *g) {
    pthread_mutex_lock(&mapped_lock);
    tn__shm_region **at = &mapped;
    while (*at != g) {
        at = &(*at)->next_mapped;
    }
    *at = g->next_mapped;
    pthread_mutex_unlock(&mapped_lock);
    munmap(g->base, g->bytes);
    close(g->fd);
    free(g);
}

/* Two parts that are a large power of two apart share cache sets, and adding them runs at a seventh
 * of the speed: so the distance is a page and some lines more. */
static size_t stride_for(size_t bytes) {
    return tn__shm_round(bytes) + TN__SHM_PAGE + 256;
}

static char *part_of(const tn__shm_region *g, int rank) {
    return g->base + (size_t)rank * g->stride;
}

static _Atomic int32_t *freed_by(const tn__shm_region *g) {
    return (_Atomic int32_t *)(void *)(g->base + g->bytes - TN__SHM_PAGE);
}

/* Under the lock: unmaps what all ranks have freed. */
static void reap_regions(tn__shm *e) {
    for (tn__shm_region **at = &e->regions; *at;) {
        tn__shm_region *g = *at;
        if (g->freed && atomic_load(freed_by(g)) == e->base.ranks) {
            *at = g->next;
            end_region(g);
        } else {
            at = &g->next;
        }
    }
}

/* Maps the region of fd, which it takes over, and allocates my part's pages. Returns 0 or errno. */
static int map_region(const tn__shm *e, int fd, tn__shm_region *g) {
    size_t from = (size_t)e->base.rank * g->stride;
    size_t to = e->base.rank == e->base.ranks - 1 ? g->bytes : from + g->stride;
    int failed = tn__shm_reserve(fd, from, to - from);
    if (failed) { return failed; }
    void *base = mmap(NULL, g->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) { return errno; }
    g->base = base;
    list_region(g, fd);
    return 0;
}

/* Rank 0, before the others arrive: makes the memory and says where it is. Returns a descriptor, or
 * -1 with errno. */
static int announce_region(tn__shm *e, size_t bytes, size_t whole) {
    tn__shm_control *c = e->control;
    struct stat about = {0};
    int fd =
        tn__shm_create(bytes > whole ? bytes : whole); /* less than its part: the product wrapped */
    if (fd >= 0 && fstat(fd, &about) != 0) {
        close(fd);
        fd = -1;
    }
    c->region_fd = fd;
    c->region_inode = about.st_ino;
    return fd;
}

/* The others: opens what rank 0 has made. */
static int open_region(const tn__shm *e, size_t bytes) {
    const tn__shm_control *c = e->control;
    int fd = tn__shm_open(&e->host, c->region_fd, bytes);
    struct stat about;
    if (fd >= 0 && (fstat(fd, &about) != 0 || about.st_ino != c->region_inode)) {
        close(fd);
        errno = ESTALE;
        fd = -1;
    }
    return fd;
}

/* After all have tried: whether all have it. */
static bool all_have(const tn__shm *e) {
    for (int r = 0; r < e->base.ranks; r++) {
        int failed = e->control->seats[r].alloc_error;
        if (failed) {
            tn_log_write(TN_LOG_WARN, "shm: no shared memory, so operations will copy: rank %d: %s",
                         r, strerror(failed));
            return false;
        }
    }
    return true;
}

/* Makes g the memory of all ranks. False when a rank has none for it, or the group has failed. */
static bool share_region(tn__shm *e, size_t bytes, tn__shm_region *g, double deadline) {
    const tn__shm_record mine = {.print = tn__fingerprint_of_alloc(bytes)};
    int fd = e->base.rank == 0 ? announce_region(e, bytes, g->bytes) : -1;
    int failed = e->base.rank == 0 && fd < 0 ? errno : 0;
    tn_status status = tn__shm_meet(e, &mine, deadline);
    if (status == TN_OK) {
        if (e->base.rank != 0) {
            fd = open_region(e, g->bytes);
            failed = fd < 0 ? errno : 0;
        }
        e->control->seats[e->base.rank].alloc_error = failed ? failed : map_region(e, fd, g);
        status = tn__shm_barrier(e, deadline);
    }
    if (fd >= 0 && !g->base) { close(fd); }
    return status == TN_OK && all_have(e);
}

void *tn__shm_alloc(tn_engine *base, size_t bytes, double deadline) {
    tn__shm *e = (tn__shm *)base;
    tn__shm_region *g = tn__calloc(1, sizeof(*g));
    if (!g) {
        tn__shm_fail(e, TN_ENOMEM, "rank %d is out of memory", base->rank);
        tn__shm_raise(e);
        return NULL;
    }
    g->number = e->next_region++;
    g->stride = stride_for(bytes);
    g->bytes = tn__shm_round(g->stride * (size_t)base->ranks) + TN__SHM_PAGE;
    tn__shm_enter(e, TN__ALLOCATION, 0);
    bool shared = share_region(e, bytes, g, deadline);
    tn__shm_leave(e);
    if (!shared) {
        if (g->base) {
            end_region(g);
        } else {
            free(g);
        }
        tn__shm_raise(e);
        return NULL;
    }
    pthread_mutex_lock(&e->lock);
    reap_regions(e);
    g->next = e->regions;
    e->regions = g;
    pthread_mutex_unlock(&e->lock);
    tn__count_elsewhere((int64_t)g->stride);
    return part_of(g, base->rank);
}

void tn__shm_free(tn_engine *base, void *memory) {
    tn__shm *e = (tn__shm *)base;
    pthread_mutex_lock(&e->lock);
    for (tn__shm_region *g = e->regions; g && memory; g = g->next) {
        if (!g->freed && part_of(g, base->rank) == memory) {
            g->freed = true;
            tn__count_elsewhere(-(int64_t)g->stride);
            atomic_fetch_add(freed_by(g), 1);
            break;
        }
    }
    reap_regions(e);
    pthread_mutex_unlock(&e->lock);
}

void tn__shm_free_all(tn__shm *e) {
    while (e->regions) {
        tn__shm_region *g = e->regions;
        e->regions = g->next;
        tn__count_elsewhere(g->freed ? 0 : -(int64_t)g->stride);
        end_region(g);
    }
}

/* ---- Places ---------------------------------------------------------------------------------- */

tn__shm_place tn__shm_place_of(tn__shm *e, const void *data) {
    tn__shm_place place = {.region = -1};
    pthread_mutex_lock(&e->lock);
    for (const tn__shm_region *g = e->regions; g; g = g->next) {
        uintptr_t begin = (uintptr_t)part_of(g, e->base.rank), at = (uintptr_t)data;
        if (at >= begin && at - begin < g->stride) {
            place =
                (tn__shm_place){.region = g->number, .offset = (uint64_t)(at - (uintptr_t)g->base)};
        }
    }
    pthread_mutex_unlock(&e->lock);
    return place;
}

void *tn__shm_at(tn__shm *e, tn__shm_place place) {
    void *data = NULL;
    pthread_mutex_lock(&e->lock);
    for (const tn__shm_region *g = e->regions; g; g = g->next) {
        if (g->number == place.region) { data = g->base + place.offset; }
    }
    pthread_mutex_unlock(&e->lock);
    return data;
}
