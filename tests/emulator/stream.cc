/* Streams: queues whose work runs as late as it may.
 *
 * Nothing runs until someone waits for it: the host, or another stream that has to continue. So a
 * missing wait, which shows on a GPU only now and then, shows here every time: the host reads the
 * old contents. A queue that has grown long runs anyway, as a GPU's does.
 */
#include "tests/emulator/runtime.h"

#include "tests/emulator/block.h"
#include "tests/emulator/emulator.h"

#include <set>
#include <map>
#include <stdio.h>
#include <string.h>
#include <time.h>

namespace tn_emulator {

std::mutex lock;

static const size_t longest_queue = 1024;

static std::map<stream *, std::shared_ptr<stream>> streams;
static std::set<event *> events;
static std::shared_ptr<stream> default_streams[DEVICES];

static thread_local int device_of_thread;
static thread_local cudaError_t last_error;
static cudaError_t sticky[DEVICES];
static char sticky_text[1024] = "unspecified launch failure";

/* ---- Devices and errors ---------------------------------------------------------------------- */

int current_device() {
    return device_of_thread;
}

void set_current_device(int device) {
    device_of_thread = device;
}

cudaError_t stuck(int device) {
    return sticky[device];
}

void stick(int device, cudaError_t error, const char *why) {
    const char *what = error == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                                        : "unspecified launch failure";
    sticky[device] = error;
    snprintf(sticky_text, sizeof(sticky_text), "%s: %s", what, why);
}

const char *stuck_text() {
    return sticky_text;
}

void forget_errors() {
    memset(sticky, 0, sizeof(sticky));
    last_error = cudaSuccess;
}

cudaError_t result(cudaError_t error) {
    cudaError_t own = sticky[device_of_thread];
    error = own != cudaSuccess ? own : error;
    if (error != cudaSuccess) { last_error = error; }
    return error;
}

cudaError_t take_last_error(bool forget) {
    cudaError_t error = result(last_error);
    last_error = forget ? cudaSuccess : last_error;
    return error;
}

/* ---- Handles --------------------------------------------------------------------------------- */

static const std::shared_ptr<stream> &default_stream(int device) {
    if (!default_streams[device]) {
        default_streams[device] = std::make_shared<stream>();
        default_streams[device]->device = device;
        default_streams[device]->blocking = true;
    }
    return default_streams[device];
}

std::shared_ptr<stream> stream_of(cudaStream_t handle) {
    if (!handle || handle == cudaStreamLegacy) { return default_stream(device_of_thread); }
    auto found = streams.find((stream *)handle);
    return found == streams.end() ? nullptr : found->second;
}

cudaStream_t add_stream(bool blocking) {
    auto s = std::make_shared<stream>();
    s->device = device_of_thread;
    s->blocking = blocking;
    streams[s.get()] = s;
    return (cudaStream_t)s.get();
}

void remove_stream(const std::shared_ptr<stream> &s) {
    run_all(s);
    streams.erase(s.get());
}

event *event_of(cudaEvent_t handle) {
    return events.count((event *)handle) ? (event *)handle : nullptr;
}

cudaEvent_t add_event(bool timed) {
    event *e = new event{device_of_thread, timed, nullptr};
    events.insert(e);
    return (cudaEvent_t)e;
}

void remove_event(event *e) {
    events.erase(e);
    delete e;
}

/* ---- Queues ---------------------------------------------------------------------------------- */

static void append_item(const std::shared_ptr<stream> &s, item what) {
    s->queue.push_back(std::move(what));
    s->queued++;
    if (s->queue.size() > longest_queue) { run_to(s, s->queued - longest_queue / 2); }
}

static void append_wait(const std::shared_ptr<stream> &s, const std::shared_ptr<stream> &other) {
    if (!other->queue.empty()) {
        append_item(s, {std::make_shared<point>(point{other, other->queued, 0}), nullptr, 0});
    }
}

/* The default stream and the blocking streams of its device wait for each other. */
static void join_default(const std::shared_ptr<stream> &s) {
    const std::shared_ptr<stream> &common = default_stream(s->device);
    if (s == common) {
        for (const auto &entry : streams) {
            if (entry.second->blocking && entry.second->device == s->device) {
                append_wait(s, entry.second);
            }
        }
    } else if (s->blocking) {
        append_wait(s, common);
    }
}

void push_steps(const std::shared_ptr<stream> &s, std::function<bool()> work, unsigned devices) {
    join_default(s);
    append_item(s, {nullptr, std::move(work), devices});
}

void push(const std::shared_ptr<stream> &s, std::function<void()> work, unsigned devices) {
    auto whole = [work = std::move(work)] {
        work();
        return true;
    };
    push_steps(s, whole, devices);
}

void push_wait(const std::shared_ptr<stream> &s, const std::shared_ptr<point> &waits) {
    append_item(s, {waits, nullptr, 0});
}

std::shared_ptr<point> push_point(const std::shared_ptr<stream> &s) {
    auto here_in_stream = std::make_shared<point>(point{s, 0, 0});
    std::weak_ptr<point> reached = here_in_stream; /* the stream must not own itself */
    push(s, [reached] {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (auto p = reached.lock()) {
            p->seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
        }
    });
    here_in_stream->turn = s->queued;
    return here_in_stream;
}

static int depth;

/* One item, or a step of it; the memory of its devices stays open until the outermost run ends. */
static void run_step(const std::shared_ptr<stream> &s) {
    item next = std::move(s->queue.front());
    bool done = true;
    s->queue.pop_front();
    if (next.waits) { run_to(next.waits->in, next.waits->turn); }
    if (next.work && sticky[s->device] == cudaSuccess) {
        open_memory(next.devices);
        done = next.work();
    }
    if (done) {
        s->done++;
    } else {
        s->queue.push_front(std::move(next));
    }
}

void run_to(const std::shared_ptr<stream> &s, uint64_t turn) {
    depth++;
    while (s->done < turn && !s->queue.empty()) {
        run_step(s);
    }
    if (--depth == 0) { open_memory(0); }
}

void run_all(const std::shared_ptr<stream> &s) {
    run_to(s, s->queued);
}

void run_one(const std::shared_ptr<stream> &s) {
    depth++;
    if (!s->queue.empty()) { run_step(s); }
    if (--depth == 0) { open_memory(0); }
}

void run_device(int device) {
    run_all(default_stream(device));
    for (const auto &entry : streams) {
        if (entry.second->device == device) { run_all(entry.second); }
    }
}

static void forget_queue(stream *s) {
    s->queue.clear();
    s->done = s->queued;
}

void forget_work() {
    for (int i = 0; i < DEVICES; i++) {
        forget_queue(default_stream(i).get());
    }
    for (const auto &entry : streams) {
        forget_queue(entry.first);
    }
}

/* ---- Launches -------------------------------------------------------------------------------- */

static cudaError_t launch_error(const launch &l, const std::shared_ptr<stream> &s) {
    uint64_t threads = (uint64_t)l.block.x * l.block.y * l.block.z;
    if (!s || s->device != device_of_thread) { return cudaErrorInvalidResourceHandle; }
    if (l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0 || threads == 0 || threads > MOST_THREADS ||
        l.block.z > 64 || l.grid.x > 0x7fffffff || l.grid.y > 65535 || l.grid.z > 65535) {
        return cudaErrorInvalidConfiguration;
    }
    return l.dynamic_bytes > MOST_SHARED ? cudaErrorInvalidValue : cudaSuccess;
}

void enqueue(cudaStream_t handle, std::unique_ptr<launch> l) {
    std::lock_guard<std::mutex> guard(lock);
    auto s = stream_of(handle);
    cudaError_t error = result(launch_error(*l, s));
    if (error != cudaSuccess || record_launch(*l)) { return; }
    std::shared_ptr<launch> kept(std::move(l));
    push(
        s,
        [kept, device = s->device] {
            char why[768];
            cudaError_t failure = run(*kept, why, sizeof(why));
            if (failure != cudaSuccess) { stick(device, failure, why); }
        },
        1u << s->device);
}

} // namespace tn_emulator

/* ---- For tests ------------------------------------------------------------------------------- */

void tern_emulator_reset(void) {
    std::lock_guard<std::mutex> guard(tn_emulator::lock);
    tn_emulator::forget_work();
    tn_emulator::forget_errors();
}

void tern_emulator_break(int device, const char *why) {
    std::lock_guard<std::mutex> guard(tn_emulator::lock);
    tn_emulator::stick(device, cudaErrorLaunchFailure, why);
}

void tern_emulator_set_memory(size_t bytes) {
    std::lock_guard<std::mutex> guard(tn_emulator::lock);
    tn_emulator::set_memory_capacity(bytes);
}

bool tern_emulator_set_order(const char *order) {
    std::lock_guard<std::mutex> guard(tn_emulator::lock);
    return tn_emulator::set_order(order);
}
