/* Device memory: mapped pages that code outside of the devices' work cannot touch.
 *
 * An allocation is at the end of its pages, between pages that nothing can touch, and is NaN bytes
 * at first. Page-locked host memory is the same without the protection.
 *
 * That work cannot at first, either: a piece of an allocation is opened when it is touched
 * (trap.cc), and closed when the work is done. Most kernels touch little of the memory, so a launch
 * costs the same however much memory the device has.
 */
#include "tests/emulator/runtime.h"

#include "tests/emulator/block.h"
#include "tests/emulator/fibre.h"

#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef TN_FIBRE_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace tn_emulator {

static const size_t alignment = 512;

static std::map<uintptr_t, allocation> allocations; /* by the address after their last byte */
/* Bytes on a device: in use; freed, but not yet in the stream; of the system, with what the pool
 * keeps. */
static size_t used[DEVICES], leaving[DEVICES], reserved[DEVICES];
static size_t capacity;
static bool has_capacity;
static unsigned opened; /* devices whose memory can be reached */

/* Pieces that have been touched: a ring; the oldest is closed if there are too many. */
struct piece {
    char *from;
    size_t bytes;
};
static const size_t piece_bytes = 64 << 10;
static piece pieces[256];
static unsigned piece_next;

static bool wants_protection() {
    static const char *wish = getenv("TERN_EMULATOR_PROTECT");
    return !wish || strcmp(wish, "0") != 0;
}

/* "512", "64M", "2G"; 0, so that no allocation succeeds, for anything else. */
static size_t size_of_text(const char *text) {
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    int shift = *end == 'G' ? 30 : *end == 'M' ? 20 : *end == 'K' ? 10 : 0;
    return end == text || end[shift > 0] != 0 ? 0 : (size_t)(value << shift);
}

void set_memory_capacity(size_t bytes) {
    capacity = bytes;
    has_capacity = true;
}

size_t memory_capacity() {
    if (!has_capacity) {
        const char *text = getenv("TERN_EMULATOR_MEMORY");
        set_memory_capacity(text ? size_of_text(text) : (size_t)4 << 30);
    }
    return capacity;
}

size_t memory_reserved(int device) {
    return reserved[device];
}

static void set_access(const piece &p, bool open) {
    mprotect(p.from, p.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

/* An allocation's pages between the two that nothing can touch. */
static piece pages_of(const allocation &a) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return {a.mapping + page, a.mapping_bytes - 2 * page};
}

static void close_pieces() {
    for (piece &p : pieces) {
        if (p.from) {
            set_access(p, false);
            p = {nullptr, 0};
        }
    }
    piece_next = 0;
}

bool open_piece(const void *address) {
    const allocation *a = allocation_of(address);
    if (!a || a->device < 0 || !(opened >> a->device & 1)) { return false; }
    piece all = pages_of(*a);
    size_t before = (size_t)((const char *)address - all.from) / piece_bytes * piece_bytes;
    size_t rest = all.bytes - before;
    piece touched = {all.from + before, rest < piece_bytes ? rest : piece_bytes};
    for (const piece &p : pieces) {
        if (p.from == touched.from) { return false; /* it is open: the access is wrong */ }
    }
    piece &place = pieces[piece_next++ % (sizeof(pieces) / sizeof(*pieces))];
    if (place.from) { set_access(place, false); }
    place = touched;
    set_access(touched, true);
    return true;
}

static cudaError_t map_guarded(int device, size_t bytes, void **memory) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    size_t inside = (rounded + page - 1) / page * page;
    void *mapping = mmap(nullptr, inside + 2 * page, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) { return cudaErrorMemoryAllocation; }
    char *start = (char *)mapping + page + inside - rounded;
    allocation a = {start, bytes, device, (char *)mapping, inside + 2 * page, false};
    if (device < 0 || !record("alloc %zu", bytes)) {
        set_access(pages_of(a), true);
        memset(start, 0xFF, rounded);
#ifdef TN_FIBRE_ASAN
        ASAN_POISON_MEMORY_REGION(start + bytes, rounded - bytes);
#endif
        if (device >= 0 && wants_protection()) { set_access(pages_of(a), false); }
    }
    allocations[(uintptr_t)start + rounded] = a;
    *memory = start;
    return cudaSuccess;
}

cudaError_t device_alloc(int device, size_t bytes, bool pooled, void **memory) {
    *memory = nullptr;
    if (bytes == 0) { return cudaSuccess; }
    bool kept = pooled && bytes <= reserved[device] - used[device];
    size_t most = memory_capacity(), left = most > reserved[device] ? most - reserved[device] : 0;
    if (!kept && bytes > left) { return cudaErrorMemoryAllocation; }
    cudaError_t error = map_guarded(device, bytes, memory);
    if (error == cudaSuccess) {
        used[device] += bytes;
        reserved[device] += kept ? 0 : bytes;
    }
    return error;
}

cudaError_t host_alloc(size_t bytes, void **memory) {
    *memory = nullptr;
    return bytes == 0 ? cudaErrorInvalidValue : map_guarded(-1, bytes, memory);
}

const allocation *allocation_of(const void *address) {
    auto found = allocations.upper_bound((uintptr_t)address);
    if (found == allocations.end() || (uintptr_t)found->second.start > (uintptr_t)address) {
        return nullptr;
    }
    return &found->second;
}

static void unmap_pages(const allocation &a) {
    close_pieces();
#ifdef TN_FIBRE_ASAN
    if (a.device < 0 ||
        !records()) { /* else there are no pages, and the shadow would be as large */
        ASAN_UNPOISON_MEMORY_REGION(a.mapping, a.mapping_bytes);
    }
#endif
    munmap(a.mapping, a.mapping_bytes);
    allocations.erase(allocations.upper_bound((uintptr_t)a.start));
}

/* The allocation that begins here; NULL: none that is in use. */
static allocation *in_use(void *memory, bool of_device) {
    allocation *a = const_cast<allocation *>(allocation_of(memory));
    return a && a->start == memory && !a->freed && (a->device >= 0) == of_device ? a : nullptr;
}

bool release(void *memory, bool of_device) {
    const allocation *found = in_use(memory, of_device);
    if (!found) { return false; }
    if (of_device) {
        used[found->device] -= found->bytes;
        reserved[found->device] -= found->bytes;
    }
    unmap_pages(allocation(*found));
    return true;
}

/* The pool can give the memory to the stream's next work at once; it can be reached until then. */
bool release_in_order(void *memory, const std::shared_ptr<stream> &s) {
    static const size_t most_leaving = (size_t)64 << 20;
    allocation *found = in_use(memory, true);
    if (!found || found->device != s->device) { return false; }
    found->freed = true;
    used[s->device] -= found->bytes;
    leaving[s->device] += found->bytes;
    push(s, [a = *found] {
        leaving[a.device] -= a.bytes;
        unmap_pages(a);
    });
    if (leaving[s->device] > most_leaving) { run_all(s); }
    return true;
}

void trim_pool(int device) {
    reserved[device] = used[device] + leaving[device];
}

void open_memory(unsigned devices) {
    if (devices && !opened) {
        trap_begin();
    } else if (!devices && opened) {
        trap_end();
    }
    if (opened & ~devices) { close_pieces(); }
    opened = devices;
}

void describe_address(const void *address, char *text, size_t size) {
    const char *at = (const char *)address;
    for (const auto &entry : allocations) {
        const allocation &a = entry.second;
        if (at < a.mapping || at >= a.mapping + a.mapping_bytes) { continue; }
        if (at >= a.start && at < a.start + a.bytes) {
            snprintf(text, size, "memory of device %d", a.device);
        } else if (at < a.start) {
            snprintf(text, size, "memory %td bytes before an allocation of %zu", a.start - at,
                     a.bytes);
        } else {
            snprintf(text, size, "memory %td bytes after an allocation of %zu",
                     at - a.start - (ptrdiff_t)a.bytes, a.bytes);
        }
        return;
    }
    snprintf(text, size, "%p, which is not allocated", address);
}

} // namespace tn_emulator
