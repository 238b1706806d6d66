/* A block's shared memory: pieces of one arena, each of its exact size between guards.
 *
 * A piece is NaN bytes when the block starts. AddressSanitizer reports an access to a guard or to
 * the memory of a block that has ended; without it, a changed guard is noticed when the block ends.
 */
#include "tests/emulator/block.h"

#include "tests/emulator/fibre.h"

#ifdef TN_FIBRE_ASAN
#include <sanitizer/asan_interface.h>
#define CLOSE(memory, bytes) ASAN_POISON_MEMORY_REGION(memory, bytes)
#define OPEN(memory, bytes) ASAN_UNPOISON_MEMORY_REGION(memory, bytes)
#else
#define CLOSE(memory, bytes) ((void)0)
#define OPEN(memory, bytes) ((void)0)
#endif

namespace tn_emulator {

enum { MOST_PIECES = 64, GUARD = 64, GUARD_BYTE = 0xA5 };

struct piece {
    const void *site;
    const char *name;
    size_t start, bytes;
};

alignas(128) static unsigned char arena[MOST_SHARED + MOST_PIECES * 2 * GUARD];
static piece pieces[MOST_PIECES];
static int piece_count;
static size_t used, static_bytes, all_bytes;

static void *add_piece(const void *site, size_t bytes, const char *name) {
    piece *p = &pieces[piece_count++];
    *p = {site, name, used + GUARD, bytes};
    size_t end = p->start + bytes;
    used = (end + GUARD - 1) / GUARD * GUARD;
    OPEN(arena + p->start - GUARD, used + GUARD - p->start + GUARD);
    memset(arena + p->start - GUARD, GUARD_BYTE, GUARD);
    memset(arena + p->start, 0xFF, bytes);
    memset(arena + end, GUARD_BYTE, used + GUARD - end);
    CLOSE(arena + p->start - GUARD, GUARD);
    CLOSE(arena + end, used + GUARD - end);
    all_bytes += bytes;
    return arena + p->start;
}

void shared_start(size_t dynamic_bytes) {
    piece_count = 0;
    used = static_bytes = all_bytes = 0;
    if (dynamic_bytes > 0) { add_piece(nullptr, dynamic_bytes, "dynamic shared memory"); }
}

void *shared_memory(const void *site, size_t bytes, const char *name) {
    for (int i = 0; i < piece_count; i++) {
        if (pieces[i].site == site) { return arena + pieces[i].start; }
    }
    if (!site) { fail("%s: the launch asked for no dynamic shared memory", name); }
    static_bytes += bytes;
    if (piece_count == MOST_PIECES || static_bytes > MOST_STATIC ||
        all_bytes + bytes > MOST_SHARED) {
        fail("%s: %zu bytes more than a block's shared memory has", name, bytes);
    }
    return add_piece(site, bytes, name);
}

static bool is_intact(size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        if (arena[i] != GUARD_BYTE) { return false; }
    }
    return true;
}

const char *shared_finish() {
    const char *broken = nullptr;
    OPEN(arena, sizeof(arena));
    for (int i = 0; i < piece_count && !broken; i++) {
        const piece &p = pieces[i];
        size_t end = p.start + p.bytes;
        size_t behind = (end + GUARD - 1) / GUARD * GUARD + GUARD;
        broken = is_intact(p.start - GUARD, p.start) && is_intact(end, behind) ? nullptr : p.name;
    }
    CLOSE(arena, sizeof(arena));
    return broken;
}

} // namespace tn_emulator
