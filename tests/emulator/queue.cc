/* For stand-ins of NVIDIA's libraries, which are loaded beside the emulator: work in its
 * streams. */
#include "tests/emulator/emulator.h"
#include "tests/emulator/runtime.h"

using namespace tn_emulator;

bool tern_emulator_queue(void *stream, void (*work)(void *user), void *user) {
    std::lock_guard<std::mutex> guard(lock);
    auto s = stream_of((cudaStream_t)stream);
    if (s) {
        push(
            s, [=] { work(user); }, 1u << s->device);
    }
    return s != nullptr;
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
