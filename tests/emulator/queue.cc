/* For stand-ins of NVIDIA's libraries, loaded next to the emulator: work in its streams. */
#include "tests/emulator/emulator.h"
#include "tests/emulator/runtime.h"

using namespace tn_emulator;

bool tern_emulator_queue(int device, void *stream, bool (*work)(void *user), void *user) {
    std::lock_guard<std::mutex> guard(lock);
    auto s = stream_of((cudaStream_t)stream);
    bool right = s && s->device == device;
    if (right) {
        push_steps(
            s, [=] { return work(user); }, 1u << device);
    }
    return right;
}

int tern_emulator_owner(const void *memory, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    const allocation *a = allocation_of(memory);
    bool inside = a && (const char *)memory + bytes <= a->start + a->bytes;
    return inside ? a->device : -1;
}

void *tern_emulator_alloc(size_t bytes) {
    void *memory = nullptr;
    return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : nullptr;
}

void tern_emulator_free(void *memory) {
    cudaFree(memory);
}

int tern_emulator_device(void) {
    return current_device();
}
