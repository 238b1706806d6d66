/* The threads of a block.
 *
 * Threads wait in one queue. A thread runs until it waits or ends, and then the next one runs. One
 * that has not begun starts on the stack of the one that has just ended, so a kernel without
 * barriers runs on a single stack without a switch. If the queue is empty and not every thread has
 * ended, the rest wait for something that cannot come: the launch fails.
 *
 * A barrier requires every thread of the block at the same line; a thread that has ended counts as
 * missing. A warp's operations require every lane of the mask with the same operation and mask;
 * lanes that the block does not have are ignored.
 */
#include "tests/emulator/block.h"

#include "tests/emulator/fibre.h"

#include <stdio.h>
#include <stdlib.h>

namespace tn_emulator {

position here;

enum state { FRESH, READY, IN_BARRIER, IN_WARP, ENDED };

struct lane {
    enum state state;
    fibre *stack; /* NULL: not begun, or ended */
    uint3 thread;
    place at; /* where it waits, and … */
    int what; /* … in which operation or barrier, */
    unsigned mask;
    unsigned argument;
    int width;
    uint64_t value; /* its input, then its result */
};

static lane lanes[MOST_THREADS];
static unsigned lane_count;
static unsigned waiting_in_warp[MOST_THREADS / WARP];
static unsigned waiting_in_barrier;
static unsigned ended;

static lane *queue[MOST_THREADS]; /* a ring; no lane is in it twice */
static unsigned queue_first, queue_length;

static const launch *current_launch;
static lane *current;
static fibre outside; /* the host thread's */
static fibre fibres[MOST_THREADS];
static fibre *idle[MOST_THREADS];
static unsigned idle_count, fibre_count;

static cudaError_t failed; /* of the current launch */
static char *reason;
static size_t reason_size;

/* ---- Order ----------------------------------------------------------------------------------- */

enum order { NOT_CHOSEN, FORWARD, REVERSE, SHUFFLED };

static order chosen;
static uint64_t random_state;

bool set_order(const char *text) {
    if (strcmp(text, "forward") == 0) {
        chosen = FORWARD;
    } else if (strcmp(text, "reverse") == 0) {
        chosen = REVERSE;
    } else if (strcmp(text, "shuffle") == 0) {
        chosen = SHUFFLED;
        random_state = 1;
    } else if (strncmp(text, "shuffle:", 8) == 0 && text[8] &&
               text[8 + strspn(text + 8, "0123456789")] == 0) {
        chosen = SHUFFLED;
        random_state = strtoull(text + 8, nullptr, 10);
    } else {
        return false;
    }
    return true;
}

static uint64_t draw_number() {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 33;
}

/* 0 … count - 1 in the chosen order: steps of one length, which is coprime to count. */
struct permutation {
    uint64_t count, step, at;

    explicit permutation(uint64_t n) : count(n), step(1), at(0) {
        if (chosen == REVERSE) {
            step = count - 1;
            at = count - 1;
        } else if (chosen == SHUFFLED && count > 1) {
            do {
                step = 1 + draw_number() % (count - 1);
            } while (divisor(step, count) != 1);
            at = draw_number() % count;
        }
    }
    static uint64_t divisor(uint64_t a, uint64_t b) { return b == 0 ? a : divisor(b, a % b); }
    uint64_t next() {
        uint64_t now = at;
        at += step;
        at -= at >= count ? count : 0;
        return now;
    }
};

/* ---- Messages -------------------------------------------------------------------------------- */

struct text {
    char words[160];
};

static text thread_text(const lane *l) {
    text t;
    snprintf(t.words, sizeof(t.words), "thread (%u, %u, %u)", l->thread.x, l->thread.y,
             l->thread.z);
    return t;
}

static const char *operation_name(const lane *l) {
    static const char *const warp[] = {"__syncwarp",       "__shfl_sync",     "__shfl_up_sync",
                                       "__shfl_down_sync", "__shfl_xor_sync", "__ballot_sync",
                                       "__any_sync",       "__all_sync"};
    static const char *const block[] = {"__syncthreads", "__syncthreads_count", "__syncthreads_and",
                                        "__syncthreads_or"};
    return l->state == IN_WARP ? warp[l->what] : block[l->what];
}

static text wait_text(const lane *l) {
    text t;
    const char *slash = l->at.file ? strrchr(l->at.file, '/') : nullptr;
    if (l->state == ENDED) {
        snprintf(t.words, sizeof(t.words), "has ended");
    } else {
        snprintf(t.words, sizeof(t.words), "waits in %s (%s:%d)", operation_name(l),
                 slash ? slash + 1 : l->at.file, l->at.line);
    }
    return t;
}

static void write_reason(const char *format, va_list arguments) {
    const char *name = current_launch->kernel;
    int length = (int)strlen(name);
    if (length > 2 && name[0] == '(' && name[length - 1] == ')') { /* TN_LAUNCH's parentheses */
        name++;
        length -= 2;
    }
    int used = snprintf(reason, reason_size, "kernel %.*s, block (%u, %u, %u): ", length, name,
                        here.block.x, here.block.y, here.block.z);
    if (used > 0 && (size_t)used < reason_size) {
        vsnprintf(reason + used, reason_size - (size_t)used, format, arguments);
    }
    failed = cudaErrorLaunchFailure;
}

__attribute__((format(printf, 1, 2))) static void note_fault(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_reason(format, arguments);
    va_end(arguments);
}

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_reason(format, arguments);
    va_end(arguments);
    fibre_switch(current->stack, &outside, true);
    __builtin_unreachable();
}

void fail_of(cudaError_t error, const char *format, ...) {
    char words[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof(words), format, arguments);
    va_end(arguments);
    note_fault("%s %s", thread_text(current).words, words);
    failed = error;
    fibre_switch(current->stack, &outside, true);
    __builtin_unreachable();
}

/* ---- Who runs -------------------------------------------------------------------------------- */

static void push_lane(lane *l) {
    queue[(queue_first + queue_length++) % MOST_THREADS] = l;
}

static lane *pop_lane() {
    if (queue_length == 0) { return nullptr; }
    lane *l = queue[queue_first];
    queue_first = (queue_first + 1) % MOST_THREADS;
    queue_length--;
    return l;
}

static void become_lane(lane *l) {
    current = l;
    here.thread = l->thread;
}

/* Runs thread after thread on one stack, as long as the next has not begun. */
static void run_threads() {
    for (;;) {
        lane *self = current;
        fibre *stack = self->stack;
        current_launch->thread();
        self->state = ENDED;
        self->stack = nullptr;
        ended++;
        lane *next = pop_lane();
        if (next && next->state == FRESH) {
            next->state = READY;
            next->stack = stack;
            become_lane(next);
            continue;
        }
        idle[idle_count++] = stack;
        if (next) { become_lane(next); }
        fibre_switch(stack, next ? next->stack : &outside, true);
    }
}

static fibre *begin_lane(lane *l) {
    fibre *stack = idle_count > 0 ? idle[--idle_count] : &fibres[fibre_count];
    if (!fibre_prepare(stack, run_threads)) { return nullptr; }
    fibre_count += stack == &fibres[fibre_count];
    l->state = READY;
    l->stack = stack;
    return stack;
}

/* The current thread waits: the others run until it is its turn again. */
static void wait_turn() {
    lane *self = current;
    lane *next = pop_lane();
    if (next == self) { return; }
    if (next && next->state == FRESH && !begin_lane(next)) {
        fail("there is no memory for the stack of a thread");
    }
    if (next) { become_lane(next); }
    fibre_switch(self->stack, next ? next->stack : &outside);
}

/* ---- Barriers -------------------------------------------------------------------------------- */

static void release_block(barrier kind) {
    const lane *first = &lanes[0];
    uint64_t count = 0;
    for (unsigned i = 0; i < lane_count; i++) {
        lane *l = &lanes[i];
        if (l->at.line != first->at.line || strcmp(l->at.file, first->at.file) != 0) {
            fail("%s %s, but %s %s", thread_text(first).words, wait_text(first).words,
                 thread_text(l).words, wait_text(l).words);
        }
        count += l->value;
    }
    uint64_t result = kind == AND ? count == lane_count : kind == OR ? count > 0 : count;
    permutation turns(lane_count);
    for (unsigned i = 0; i < lane_count; i++) {
        lane *l = &lanes[turns.next()];
        l->value = result;
        l->state = READY;
        push_lane(l);
    }
    waiting_in_barrier = 0;
}

int sync_block(barrier kind, int predicate, place at) {
    lane *self = current;
    self->state = IN_BARRIER;
    self->what = kind;
    self->value = predicate != 0;
    self->at = at;
    if (++waiting_in_barrier == lane_count) { release_block(kind); }
    wait_turn();
    return (int)self->value;
}

/* ---- Warps ----------------------------------------------------------------------------------- */

/* The lane whose value a shuffle returns; its own if the source is beyond the segment. */
static unsigned shuffle_source(const lane *l, unsigned own) {
    unsigned width = (unsigned)l->width, first = own & ~(width - 1), last = first + width - 1;
    switch (l->what) {
    case SHUFFLE:
        return first | (l->argument & (width - 1));
    case SHUFFLE_UP:
        return l->argument > own - first ? own : own - l->argument;
    case SHUFFLE_DOWN:
        return l->argument > last - own ? own : own + l->argument;
    default:
        return (own ^ l->argument) > last ? own : own ^ l->argument;
    }
}

/* All lanes of the current lane's mask are there: sets what each receives. */
static void give_results(lane *warp, unsigned present) {
    uint64_t values[WARP], votes = 0;
    for (unsigned i = 0; i < WARP; i++) {
        if (present >> i & 1) {
            values[i] = warp[i].value;
            votes |= (values[i] & 1) << i;
        }
    }
    operation what = (operation)current->what;
    for (unsigned i = 0; i < WARP; i++) {
        lane *l = &warp[i];
        if (!(present >> i & 1)) { continue; }
        if (what >= SHUFFLE && what <= SHUFFLE_XOR) {
            unsigned source = shuffle_source(l, i);
            bool there = source < WARP && (present >> source & 1);
            if (!there) {
                fail("%s (%s:%d): %s reads lane %u, which takes no part", operation_name(l),
                     l->at.file, l->at.line, thread_text(l).words, source);
            }
            l->value = values[source];
        } else {
            l->value = what == ANY ? votes != 0 : what == ALL ? votes == present : votes;
        }
    }
}

/* Lets the lanes of the current lane's mask continue once all of them wait in its operation. */
static void try_release_warp(unsigned first, unsigned in_warp) {
    lane *warp = &lanes[first];
    unsigned there = lane_count - first >= WARP ? ~0u : (1u << (lane_count - first)) - 1;
    unsigned present = current->mask & there;
    if (in_warp < (unsigned)__builtin_popcount(present)) { return; }
    for (unsigned i = 0; i < WARP; i++) {
        if (present >> i & 1 && (warp[i].state != IN_WARP || warp[i].what != current->what ||
                                 warp[i].mask != current->mask)) {
            return;
        }
    }
    give_results(warp, present);
    permutation turns(WARP);
    for (unsigned i = 0; i < WARP; i++) {
        unsigned which = (unsigned)turns.next();
        if (present >> which & 1) {
            warp[which].state = READY;
            push_lane(&warp[which]);
            waiting_in_warp[first / WARP]--;
        }
    }
}

uint64_t sync_warp(operation what, unsigned mask, uint64_t value, unsigned argument, int width,
                   place at) {
    lane *self = current;
    unsigned index = (unsigned)(self - lanes), first = index / WARP * WARP;
    self->state = IN_WARP;
    self->what = what;
    self->mask = mask;
    self->value = value;
    self->argument = argument;
    self->width = width;
    self->at = at;
    if (!(mask >> (index - first) & 1)) {
        fail("%s %s with a mask, 0x%x, that leaves its own lane out", thread_text(self).words,
             wait_text(self).words, mask);
    }
    if (width < 1 || width > WARP || (width & (width - 1)) != 0) {
        fail("%s %s with a width of %d, not a power of 2 up to 32", thread_text(self).words,
             wait_text(self).words, width);
    }
    try_release_warp(first, ++waiting_in_warp[first / WARP]);
    wait_turn();
    return self->value;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* No thread can continue: names one that waits, and one that it waits for. */
static void note_stuck() {
    const lane *waits = nullptr, *other = nullptr;
    for (unsigned i = 0; i < lane_count && !waits; i++) {
        waits = lanes[i].state != ENDED ? &lanes[i] : nullptr;
    }
    unsigned first = (unsigned)(waits - lanes) / WARP * WARP;
    for (unsigned i = 0; i < lane_count && !other; i++) {
        const lane *l = &lanes[i];
        bool concerned = waits->state == IN_BARRIER ||
                         (i >= first && i < first + WARP && waits->mask >> (i - first) & 1);
        bool same = l->state == waits->state && l->what == waits->what &&
                    (l->state != IN_WARP || l->mask == waits->mask);
        other = concerned && !same ? l : nullptr;
    }
    if (!other) { other = waits; }
    note_fault("%s %s, but %s %s", thread_text(waits).words, wait_text(waits).words,
               thread_text(other).words, wait_text(other).words);
}

static void reset_lanes(dim3 size) {
    lane_count = size.x * size.y * size.z;
    for (unsigned i = 0; i < lane_count; i++) {
        lane *l = &lanes[i];
        l->state = FRESH;
        l->stack = nullptr;
        l->thread = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    }
    memset(waiting_in_warp, 0, sizeof(waiting_in_warp));
    waiting_in_barrier = ended = 0;
    queue_first = queue_length = 0;
    permutation turns(lane_count);
    for (unsigned i = 0; i < lane_count; i++) {
        push_lane(&lanes[turns.next()]);
    }
}

static void run_block(const launch &l) {
    reset_lanes(l.block);
    shared_start(l.dynamic_bytes);
    lane *first = pop_lane();
    if (!begin_lane(first)) {
        note_fault("there is no memory for the stack of a thread");
    } else {
        become_lane(first);
        fibre_switch(&outside, first->stack);
    }
    if (!failed && ended < lane_count) { note_stuck(); }
    const char *broken = shared_finish();
    if (!failed && broken) {
        note_fault("it wrote beyond the ends of %s in shared memory", broken);
    }
    if (failed) { /* unfinished threads are abandoned */
        idle_count = 0;
        while (idle_count < fibre_count) {
            idle[idle_count] = &fibres[idle_count];
            idle_count++;
        }
    }
}

cudaError_t run(const launch &l, char *why, size_t size) {
    if (chosen == NOT_CHOSEN) {
        const char *wish = getenv("TERN_EMULATOR_ORDER");
        if (!set_order(wish ? wish : "forward")) {
            snprintf(why, size, "TERN_EMULATOR_ORDER=%s is none of forward, reverse, shuffle:SEED",
                     wish);
            return cudaErrorLaunchFailure;
        }
    }
    current_launch = &l;
    reason = why;
    reason_size = size;
    failed = cudaSuccess;
    here.block_size = l.block;
    here.grid_size = l.grid;
    uint64_t blocks = (uint64_t)l.grid.x * l.grid.y * l.grid.z;
    permutation turns(blocks);
    for (uint64_t i = 0; i < blocks && !failed; i++) {
        uint64_t b = turns.next();
        here.block = {(unsigned)(b % l.grid.x), (unsigned)(b / l.grid.x % l.grid.y),
                      (unsigned)(b / l.grid.x / l.grid.y)};
        run_block(l);
    }
    current_launch = nullptr;
    return failed;
}

bool is_running() {
    return current_launch;
}

} // namespace tn_emulator
