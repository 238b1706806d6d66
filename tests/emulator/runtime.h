/* The emulated devices inside: memory (memory.cc), streams and events (stream.cc), and what
 * cuda_runtime_api.h declares (runtime.cc). Everything here is called under the lock.
 */
#ifndef TERN_TESTS_EMULATOR_RUNTIME_H
#define TERN_TESTS_EMULATOR_RUNTIME_H

#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stddef.h>
#include <stdint.h>

namespace tn_emulator {

enum { DEVICES = 2, ALL_DEVICES = (1 << DEVICES) - 1 };

extern std::mutex lock;

/* ---- Memory ---------------------------------------------------------------------------------- */

struct allocation {
    char *start;
    size_t bytes;
    int device;    /* -1: page-locked host memory */
    char *mapping; /* with the guard pages */
    size_t mapping_bytes;
    bool freed; /* in a stream's order: work that was queued before still uses it */
};

struct stream;

/* From the system, or from the device's pool, which keeps what it has had. */
cudaError_t device_alloc(int device, size_t bytes, bool pooled, void **memory);
cudaError_t host_alloc(size_t bytes, void **memory);
/* Releases a device's memory, or page-locked memory. */
bool release(void *memory, bool of_device);
/* Releases a pool's memory after the stream's work so far. */
bool release_in_order(void *memory, const std::shared_ptr<stream> &s);
/* Returns what the pool keeps to the system. */
void trim_pool(int device);
/* The allocation that has this address; NULL: the host's own memory. */
const allocation *allocation_of(const void *address);
size_t memory_reserved(int device); /* with what the pool keeps */
size_t memory_capacity();
void set_memory_capacity(size_t bytes);

/* Describes an address that a kernel could not reach. */
void describe_address(const void *address, char *text, size_t size);

/* Lets the calling thread reach the memory of exactly these devices (a bit each), a piece at a time
 * as it touches it; 0: none. */
void open_memory(unsigned devices);
/* Opens the piece with this address; false: the access is wrong. */
bool open_piece(const void *address);

/* ---- Streams and events ---------------------------------------------------------------------- */

/* A place in a stream, as an event keeps it. */
struct point {
    std::shared_ptr<stream> in;
    uint64_t turn;
    double seconds; /* when it was reached */
};

/* One thing to do: first wait for `waits`, then call `work`, which returns whether it is done; if
 * not, the next poll calls it again. */
struct item {
    std::shared_ptr<point> waits;
    std::function<bool()> work;
    unsigned devices; /* whose memory the work reaches */
};

struct stream {
    int device;
    bool blocking; /* ordered with the device's default stream */
    std::deque<item> queue;
    uint64_t queued = 0, done = 0; /* items ever, items finished */
};

struct event {
    int device;
    bool timed;
    std::shared_ptr<point> last; /* NULL: never recorded */
};

/* The calling thread's device. */
int current_device();
void set_current_device(int device);

/* The stream of a handle; NULL: there is no such stream. Event likewise. */
std::shared_ptr<stream> stream_of(cudaStream_t handle);
event *event_of(cudaEvent_t handle);
cudaStream_t add_stream(bool blocking);
void remove_stream(const std::shared_ptr<stream> &s);
cudaEvent_t add_event(bool timed);
void remove_event(event *e);

/* Queues work. It runs when someone waits, or when the queue is long. */
void push(const std::shared_ptr<stream> &s, std::function<void()> work, unsigned devices = 0);
void push_steps(const std::shared_ptr<stream> &s, std::function<bool()> work, unsigned devices);
void push_wait(const std::shared_ptr<stream> &s, const std::shared_ptr<point> &waits);
std::shared_ptr<point> push_point(const std::shared_ptr<stream> &s);

/* Runs a stream's items up to and with this one; all of them; all streams of a device; one item, or
 * a step of it. */
void run_to(const std::shared_ptr<stream> &s, uint64_t turn);
void run_all(const std::shared_ptr<stream> &s);
void run_device(int device);
void run_one(const std::shared_ptr<stream> &s);
void forget_work();

/* ---- Counting instead of computing (record.cc) ----------------------------------------------- */

struct launch;

bool records();
/* Writes a line; false: the mode is off. */
bool record(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool record_launch(const launch &l);

/* ---- Errors ---------------------------------------------------------------------------------- */

/* A device's sticky error: every later call on it returns it, and no work runs. */
cudaError_t stuck(int device);
void stick(int device, cudaError_t error, const char *why);
const char *stuck_text();
void forget_errors();

/* Keeps an error for this thread's cudaGetLastError and returns it, or the device's own. */
cudaError_t result(cudaError_t error);
cudaError_t take_last_error(bool forget);

} // namespace tn_emulator

#endif
