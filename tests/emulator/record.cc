/* Counting instead of computing: with TERN_EMULATOR_RECORD=FILE, what a program asks of the device
 * is written into the file, a line for each, and not done.
 *
 *     launch KERNEL BYTES                      bytes: recorded_bytes
 *     product EPILOGUE BYTES FLOPS             cublasLtMatmul
 *     copy in|out|on BYTES                     to the device, from it, on it
 *     set BYTES      alloc BYTES      free     cudaMemset, cudaMalloc, cudaFree
 *     wait                                     the host waits for the device
 *     attention|conv BYTES FLOPS     plan      cuDNN's stand-in runs a plan, has made one
 *     phase NAME                               what the program says: tern_emulator_record
 *
 * Device memory is addresses without pages, so the largest models fit, and the host reads zeros
 * from it. Calls are checked as always.
 */
#include "tests/emulator/emulator.h"
#include "tests/emulator/runtime.h"

#include "tests/emulator/block.h"

#include <map>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace tn_emulator {

/* NULL: the mode is off. */
static FILE *record_file() {
    static FILE *file = [] {
        const char *path = getenv("TERN_EMULATOR_RECORD");
        FILE *opened = path ? fopen(path, "we") : nullptr;
        if (path && !opened) {
            perror(path);
            exit(1);
        }
        return opened;
    }();
    return file;
}

bool records() {
    return record_file() != nullptr;
}

bool record(const char *format, ...) {
    FILE *file = record_file();
    if (file) {
        va_list list;
        va_start(list, format);
        vfprintf(file, format, list);
        va_end(list);
        fputc('\n', file);
    }
    return file != nullptr;
}

/* Of the operands of the steps that are recorded. */
enum { OPERAND_ALIGNMENT = 16 };

/* The bytes of the allocations to which the arguments of a launch point: what it reads or writes,
 * if it does so with each operand once. An address that is there twice is an operand that is read
 * and written; several within one allocation are parts of one operand. */
static size_t recorded_bytes(const launch &l) {
    const void *words;
    size_t count = l.arguments(&words) / sizeof(uintptr_t);
    std::map<uintptr_t, size_t> times;             /* of each address */
    std::map<const allocation *, size_t> operands; /* how often each is read or written */
    for (size_t i = 0; i < count; i++) {
        uintptr_t word;
        memcpy(&word, (const char *)words + i * sizeof(word), sizeof(word));
        /* A number beside padding with old contents: a small one, or one that no operand is at. */
        bool padded = (uint32_t)word < 1 << 16 || word % OPERAND_ALIGNMENT != 0;
        const allocation *a = padded ? nullptr : allocation_of((const void *)word);
        if (a && a->device >= 0) {
            size_t now = ++times[word];
            operands[a] = now > operands[a] ? now : operands[a];
        }
    }
    size_t bytes = 0;
    for (const auto &entry : operands) {
        bytes += entry.first->bytes * entry.second;
    }
    return bytes;
}

bool record_launch(const launch &l) {
    return records() && record("launch %s %zu", l.kernel, recorded_bytes(l));
}

} // namespace tn_emulator

bool tern_emulator_record(const char *line) {
    std::lock_guard<std::mutex> guard(tn_emulator::lock);
    return tn_emulator::record("%s", line);
}
