/* How the ranks of the engine "shm" wait for each other.
 *
 * Each rank has a bell, a word that grows with everything it may be waiting for. It checks its
 * condition, and if that does not hold, watches the bell for some microseconds and then sleeps on
 * it as a futex; a rank that changes something rings. Sleeps are short, so that a rank checks now
 * and then:
 *
 *   - Has the group failed? The first failure of any rank is written into the control block.
 *   - Has a rank left (it said so in its seat), or died? Each rank holds a descriptor of every
 *     other process (pidfd), which the kernel marks when the process ends, however it ends.
 *     Robust mutexes would notice as well, but only from the first operation on, and they belong to
 *     one thread.
 *   - Is the rank that should send to me in a collective instead? It cannot finish without me.
 *   - Has the deadline passed?
 */
#include "core/descriptor.h"
#include "core/error.h"
#include "distributed/group/engine/shm/shm.h"

#include <errno.h>
#include <linux/futex.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const double SPIN = 20e-6, SLEEP = 0.02; /* seconds */

static tn__shm_seat *seat_of(const tn__shm *e, int rank) {
    return &e->control->seats[rank];
}

/* ---- What a rank does ------------------------------------------------------------------------ */

void tn__shm_enter(tn__shm *e, int kind, uint64_t sequence) {
    _Atomic uint64_t *doing = &seat_of(e, e->base.rank)->doing;
    uint64_t last = atomic_load_explicit(doing, memory_order_relaxed) >> 8;
    uint64_t number = kind == TN__ALLOCATION ? last : sequence;
    uint64_t word = number << 8 | (uint64_t)kind << 1 | 1; /* one, so that others read it whole */
    atomic_store_explicit(doing, word, memory_order_relaxed);
}

void tn__shm_leave(tn__shm *e) {
    _Atomic uint64_t *doing = &seat_of(e, e->base.rank)->doing;
    uint64_t word = atomic_load_explicit(doing, memory_order_relaxed);
    atomic_store_explicit(doing, word & ~UINT64_C(1), memory_order_relaxed);
}

/* "it is in operation 41 (all_gather)", "it has finished operation 40". */
static void tell_doing(const tn__shm *e, int rank, char *text, size_t size) {
    uint64_t word = atomic_load_explicit(&seat_of(e, rank)->doing, memory_order_relaxed);
    unsigned long long sequence = word >> 8;
    int kind = (int)(word >> 1 & 0x7f);
    if ((word & 1) && kind == TN__ALLOCATION) {
        snprintf(text, size, "allocates memory after operation %llu", sequence);
    } else if (word & 1) {
        snprintf(text, size, "is in operation %llu (%s)", sequence,
                 tn_collective_name((tn_collective)kind));
    } else if (sequence == 0) {
        snprintf(text, size, "has not begun its first operation");
    } else {
        snprintf(text, size, "has finished operation %llu and begun no other", sequence);
    }
}

/* ---- Failure --------------------------------------------------------------------------------- */

enum { FINE, WRITING, WRITTEN };

tn_status tn__shm_fail(tn__shm *e, tn_status status, const char *format, ...) {
    tn__shm_control *c = e->control;
    int32_t none = FINE;
    if (atomic_compare_exchange_strong(&c->failed, &none, WRITING)) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(c->reason, sizeof(c->reason), format, arguments);
        va_end(arguments);
        c->status = (int32_t)status;
        atomic_store_explicit(&c->failed, WRITTEN, memory_order_release);
        for (int r = 0; r < e->base.ranks; r++) {
            tn__shm_ring(e, r);
        }
    }
    return tn__shm_failed(e);
}

/* Waits while another rank writes its reason; it may have been killed halfway. */
static int32_t await_reason(const tn__shm_control *c) {
    int32_t failed = atomic_load_explicit(&c->failed, memory_order_acquire);
    for (int i = 0; failed == WRITING && i < 100; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        failed = atomic_load_explicit(&c->failed, memory_order_acquire);
    }
    return failed;
}

tn_status tn__shm_failed(const tn__shm *e) {
    int32_t failed = await_reason(e->control);
    return failed == FINE ? TN_OK : failed == WRITTEN ? (tn_status)e->control->status : TN_EPEER;
}

tn_status tn__shm_raise(const tn__shm *e) {
    int32_t failed = await_reason(e->control);
    if (failed == FINE) { return TN_OK; }
    bool written = failed == WRITTEN;
    return tn__raise(written ? (tn_status)e->control->status : TN_EPEER, NULL, "%s",
                     written ? e->control->reason : "a rank gave up and died");
}

/* ---- Who is gone ----------------------------------------------------------------------------- */

tn_status tn__shm_watch(tn__shm *e) {
    for (int r = 0; r < e->base.ranks; r++) {
        int pid = atomic_load(&seat_of(e, r)->pid);
        if (pid != getpid()) {
            e->peers[r].fd = tn__above_streams((int)syscall(SYS_pidfd_open, pid, 0));
            if (e->peers[r].fd < 0 && errno == ESRCH) {
                return tn__shm_fail(e, TN_EPEER, "rank %d (process %d) ended while it joined", r,
                                    pid);
            }
        }
    }
    return TN_OK;
}

/* Without a descriptor (old kernels, sandboxes) it asks whether the process is there, reaped or
 * not. */
static bool has_died(const tn__shm *e, int rank) {
    const struct pollfd *peer = &e->peers[rank];
    if (peer->fd >= 0) { return (peer->revents & POLLIN) != 0; }
    int pid = atomic_load(&seat_of(e, rank)->pid);
    return pid > 0 && pid != getpid() && kill(pid, 0) != 0 && errno == ESRCH;
}

/* Looks for a reason to stop waiting. */
static void check_engine(tn__shm *e, tn__shm_wait *w) {
    int me = e->base.rank, from = w->from;
    poll(e->peers, (nfds_t)e->base.ranks, 0);
    for (int r = 0; r < e->base.ranks; r++) {
        if (r == me || (from >= 0 && r != from)) { continue; }
        bool left = atomic_load_explicit(&seat_of(e, r)->left, memory_order_acquire);
        if (left ? !w->may_leave : has_died(e, r)) {
            w->trouble = left ? TN__SHM_LEFT : TN__SHM_DIED;
            w->who = r;
            return;
        }
    }
    if (w->comes &&
        atomic_load_explicit(&seat_of(e, from)->steps, memory_order_acquire) > e->steps) {
        w->trouble = TN__SHM_ELSEWHERE;
        w->who = from;
    } else if (tn__now() >= w->deadline) {
        w->trouble = TN__SHM_LATE;
    }
}

/* "timed out waiting for rank 1, which is in operation 41 (all_gather), and rank 3, which …" */
static tn_status fail_late(tn__shm *e, const tn__shm_wait *w) {
    char text[TN_ENGINE_WHY] = "timed out waiting for ";
    size_t length = strlen(text), size = sizeof(text);
    bool first = true;
    for (int r = 0; r < e->base.ranks && length < size; r++) {
        bool missing = w->from >= 0 ? r == w->from : atomic_load(&seat_of(e, r)->steps) < e->steps;
        if (r != e->base.rank && missing) {
            char doing[96];
            tell_doing(e, r, doing, sizeof(doing));
            length += (size_t)snprintf(text + length, size - length, "%srank %d, which %s",
                                       first ? "" : ", and ", r, doing);
            first = false;
        }
    }
    return tn__shm_fail(e, TN_EPEER, "%s%s", text, first ? "a rank that has just arrived" : "");
}

static tn_status fail_for(tn__shm *e, const tn__shm_wait *w) {
    char doing[96], mine[96];
    tell_doing(e, w->who, doing, sizeof(doing));
    switch (w->trouble) {
    case TN__SHM_LEFT: {
        uint64_t word = atomic_load(&seat_of(e, w->who)->doing);
        return tn__shm_fail(e, TN_EPEER, "rank %d has left the group after %llu operations", w->who,
                            (unsigned long long)(word >> 8));
    }
    case TN__SHM_DIED:
        return tn__shm_fail(e, TN_EPEER, "rank %d (process %d) has died; it %s", w->who,
                            (int)atomic_load(&seat_of(e, w->who)->pid), doing);
    case TN__SHM_ELSEWHERE:
        tell_doing(e, e->base.rank, mine, sizeof(mine));
        return tn__shm_fail(e, TN_EMISMATCH, "rank %d %s with rank %d, but rank %d %s",
                            e->base.rank, mine, w->who, w->who, doing);
    default:
        return fail_late(e, w);
    }
}

tn_status tn__shm_look(tn__shm *e, bool all) {
    tn_status status = tn__shm_failed(e);
    tn__shm_wait w = tn__shm_wait_begin(e, -1, HUGE_VAL);
    w.may_leave = !all;
    if (status == TN_OK) { check_engine(e, &w); }
    return status == TN_OK && w.trouble != TN__SHM_FINE ? fail_for(e, &w) : status;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static _Atomic uint32_t *my_bell(const tn__shm *e) {
    return &seat_of(e, e->base.rank)->bell;
}

void tn__shm_ring(tn__shm *e, int rank) {
    tn__shm_seat *s = seat_of(e, rank);
    atomic_fetch_add(&s->bell, 1);
    if (atomic_load(&s->sleeping)) {
        syscall(SYS_futex, &s->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
}

static bool has_rung(const tn__shm *e, uint32_t seen) {
    return atomic_load_explicit(my_bell(e), memory_order_acquire) != seen;
}

static bool rings_soon(const tn__shm *e, uint32_t seen) {
    double end = tn__now() + SPIN;
    do {
        for (int i = 0; i < 32; i++) {
            if (has_rung(e, seen)) { return true; }
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    } while (tn__now() < end);
    return false;
}

/* Whether the bell rang within `seconds`. */
static bool sleep_for_bell(tn__shm *e, uint32_t seen, double seconds) {
    _Atomic uint32_t *sleeping = &seat_of(e, e->base.rank)->sleeping;
    struct timespec time = {.tv_nsec = (long)(seconds * 1e9)}; /* SLEEP is below a second */
    atomic_store(sleeping, 1);
    syscall(SYS_futex, my_bell(e), FUTEX_WAIT, seen, &time, NULL, 0);
    atomic_store(sleeping, 0);
    return has_rung(e, seen);
}

tn__shm_wait tn__shm_wait_begin(const tn__shm *e, int from, double deadline) {
    return (tn__shm_wait){.seen = atomic_load(my_bell(e)), .from = from, .deadline = deadline};
}

tn_status tn__shm_wait_more(tn__shm *e, tn__shm_wait *w) {
    tn_status status = tn__shm_failed(e);
    if (status != TN_OK) { return status; }
    if (w->trouble != TN__SHM_FINE) { return fail_for(e, w); }
    bool rung = has_rung(e, w->seen) || (e->spin && rings_soon(e, w->seen));
    if (!rung) { status = tn__shm_take_letters(e); }
    double left = w->deadline - tn__now();
    if (!rung && left > 0 && status == TN_OK) {
        rung = sleep_for_bell(e, w->seen, left < SLEEP ? left : SLEEP);
    }
    if (!rung || left <= 0) { check_engine(e, w); }
    w->seen = atomic_load(my_bell(e));
    return status;
}

tn_status tn__shm_barrier(tn__shm *e, double deadline) {
    tn__shm_control *c = e->control;
    uint64_t step = ++e->steps, all = step * (uint64_t)e->base.ranks;
    atomic_store_explicit(&seat_of(e, e->base.rank)->steps, step, memory_order_release);
    if (atomic_fetch_add(&c->arrivals, 1) + 1 == all) {
        atomic_store_explicit(&c->round, step, memory_order_release);
        for (int r = 0; r < e->base.ranks; r++) {
            if (r != e->base.rank) { tn__shm_ring(e, r); }
        }
        return TN_OK;
    }
    tn__shm_wait w = tn__shm_wait_begin(e, -1, deadline);
    tn_status status = TN_OK;
    while (status == TN_OK && atomic_load_explicit(&c->round, memory_order_acquire) < step) {
        status = tn__shm_wait_more(e, &w);
    }
    return status;
}
