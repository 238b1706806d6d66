/* The plugin libtern_gloo.so: gloo's TCP connections behind the table in gloo.h. No exception
 * leaves this file.
 *
 * A wire is a gloo context: one connection ("pair") to every other rank, served by a thread of
 * gloo's; data moves when both ends have started a message. Each pair has one unbound buffer that
 * spans all memory and counts what is done in either direction. What is relied upon,
 * as of gloo in May 2022:
 *
 *   - When a connection ends, a wait throws if its buffer has a message that has not begun. One
 *     that is half done is forgotten. So every buffer also waits for a message that is never sent.
 *   - It throws as well when the message was done and the connection ended while the waiting
 *     thread had not yet woken. What is done stays counted: a second wait takes it.
 *   - abortWaitRecv and abortWaitSend make a wait return false, even one that begins later.
 *   - A wait that times out closes all connections of the context.
 *   - close() resets a connection, without notice on this side: waits must be woken.
 *     After it no memory is touched.
 *   - Destroying a connection is soft: what a finished wait has sent is delivered.
 *   - connect waits five times the context's time-out.
 *   - A message longer than the memory that was posted for it ends the process. Tags must
 *     keep such messages apart.
 *   - A wrong host name is not noticed: addresses must be numeric.
 *   - Every pair listens at a port of its own, until its connection is made. It binds to its
 *     device's address, which it reads anew. From 2023 on a device listens at one port for all
 *     its pairs, from its beginning to its end.
 */
#include "distributed/group/engine/gloo/gloo.h"

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <netinet/in.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

using gloo::transport::UnboundBuffer;

struct tn__wire {
    int rank, ranks;
    std::shared_ptr<gloo::transport::Context> context;
    std::vector<std::unique_ptr<UnboundBuffer>> buffers; /* [ranks]; none for this one */
};

namespace {

/* gloo's messages begin with "[file:line] ", which tells a user nothing. */
void give_reason(char *why, const char *text) {
    const char *end = *text == '[' ? std::strstr(text, "] ") : nullptr;
    std::snprintf(why, TN_ENGINE_WHY, "%s", end ? end + 2 : text);
}

/* Calls f; if it throws, writes the reason and returns `otherwise`. */
template <typename T, typename F> T guarded(T otherwise, char *why, F f) {
    try {
        return f();
    } catch (const std::bad_alloc &) {
        give_reason(why, "out of memory");
    } catch (const std::exception &e) { give_reason(why, e.what()); } catch (...) {
        give_reason(why, "unknown exception");
    }
    return otherwise;
}

/* Never 0, which gloo takes for "no limit", and small enough for its clock arithmetic. */
std::chrono::milliseconds milliseconds(double seconds) {
    const double most = 100.0 * 3600.0;
    double bounded = seconds > most ? most : seconds;
    return std::chrono::milliseconds(bounded > 0.001 ? static_cast<int64_t>(bounded * 1e3 + 0.999)
                                                     : 1);
}

#if __has_include(<gloo/transport/tcp/listener.h>)
const bool device_listens = true;
#else
const bool device_listens = false;
#endif
const uint64_t heartbeat = 0; /* the tag of the message that is never sent */

/* IPv4 and IPv6 have the port at the same place. */
void set_port(struct sockaddr_storage *address, int port) {
    void *at = address;
    static_cast<struct sockaddr_in *>(at)->sin_port = htons(static_cast<uint16_t>(port));
}

class Device : public gloo::transport::tcp::Device {
  public:
    using gloo::transport::tcp::Device::Device;

    /* Where the next pair listens: gloo never writes to its address, but it may change between two
     * pairs. */
    void set_port(int port) {
        ::set_port(const_cast<struct sockaddr_storage *>(&attr_.ai_addr), port);
    }
};

/* Calls listen(port) at the first free port from *port to last, and moves *port behind it; 0: at
 * any. */
template <typename Listen> void listen_at_free(int *port, int last, Listen listen) {
    for (; *port <= last; ++*port) {
        try {
            listen(*port);
            *port += *port > 0;
            return;
        } catch (const std::exception &e) {
            if (std::strstr(e.what(), std::strerror(EADDRINUSE)) == nullptr) { throw; }
        }
    }
    throw std::runtime_error("none of TERN_PORTS up to " + std::to_string(last) + " is free");
}

tn__wire *open_wire(const char *address, int first, int last, int rank, int ranks, double timeout,
                    char *why) {
    return guarded<tn__wire *>(nullptr, why, [&] {
        gloo::transport::tcp::attr attributes(address);
        attributes = gloo::transport::tcp::CreateDeviceAttr(attributes);
        std::shared_ptr<Device> device;
        int port = first, any = 0; /* only what listens takes one of the ports */
        listen_at_free(device_listens ? &port : &any, last, [&](int at) {
            set_port(&attributes.ai_addr, at);
            device = std::make_shared<Device>(attributes);
        });
        std::unique_ptr<tn__wire> w(
            new tn__wire{rank, ranks, device->createContext(rank, ranks), {}});
        w->context->setTimeout(milliseconds(timeout / 5));
        w->buffers.resize(static_cast<size_t>(ranks));
        for (int peer = 0; peer < ranks; peer++) {
            if (peer != rank) {
                listen_at_free(device_listens ? &any : &port, last, [&](int at) {
                    device->set_port(at);
                    w->context->createPair(peer);
                });
                w->buffers[static_cast<size_t>(peer)] =
                    w->context->createUnboundBuffer(nullptr, SIZE_MAX);
            }
        }
        return w.release();
    });
}

UnboundBuffer &buffer_of(tn__wire *w, int peer) {
    return *w->buffers[static_cast<size_t>(peer)];
}

size_t endpoint(tn__wire *w, int peer, void *bytes) {
    char why[TN_ENGINE_WHY];
    return guarded<size_t>(0, why, [&]() -> size_t {
        std::vector<char> address = w->context->getPair(peer)->address().bytes();
        if (address.size() > TN__ENDPOINT) { return 0; }
        std::memcpy(bytes, address.data(), address.size());
        return address.size();
    });
}

bool connect_peer(tn__wire *w, int peer, const void *bytes, size_t n, char *why) {
    return guarded(false, why, [&] {
        const char *first = static_cast<const char *>(bytes);
        w->context->getPair(peer)->connect(std::vector<char>(first, first + n));
        buffer_of(w, peer).recv(peer, heartbeat, 0, 0);
        return true;
    });
}

/* The buffer begins at address 0: an offset is an address. */
bool send_message(tn__wire *w, int peer, uint64_t tag, const void *data, size_t bytes, char *why) {
    return guarded(false, why, [&] {
        buffer_of(w, peer).send(peer, tag, reinterpret_cast<size_t>(data), bytes);
        return true;
    });
}

bool receive_message(tn__wire *w, int peer, uint64_t tag, void *data, size_t bytes, char *why) {
    return guarded(false, why, [&] {
        buffer_of(w, peer).recv(peer, tag, reinterpret_cast<size_t>(data), bytes);
        return true;
    });
}

tn__arrival wait_once(tn__wire *w, int peer, bool is_send, std::chrono::milliseconds limit,
                      char *why) {
    return guarded(TN__LOST, why, [&] {
        UnboundBuffer &buffer = buffer_of(w, peer);
        bool done = is_send ? buffer.waitSend(limit) : buffer.waitRecv(limit);
        return done ? TN__DONE : TN__WOKEN;
    });
}

/* gloo throws the same exception for a time-out and a lost connection: the clock tells which it
 * was. */
tn__arrival wait_message(tn__wire *w, int peer, bool is_send, double seconds, char *why) {
    auto limit = milliseconds(seconds);
    auto end = std::chrono::steady_clock::now() + limit;
    tn__arrival arrival = wait_once(w, peer, is_send, limit, why);
    if (arrival != TN__LOST) { return arrival; }
    bool late = std::chrono::steady_clock::now() >= end;
    char ignored[TN_ENGINE_WHY];
    arrival = wait_once(w, peer, is_send, milliseconds(0), ignored); /* done, and then lost? */
    return arrival == TN__LOST && late ? TN__LATE : arrival;
}

void wake_wait(tn__wire *w, int peer) {
    char why[TN_ENGINE_WHY];
    guarded(false, why, [&] {
        buffer_of(w, peer).abortWaitSend();
        buffer_of(w, peer).abortWaitRecv();
        return true;
    });
}

/* Uses a wait that was woken before it began: it still throws when the connection has ended, since
 * the message that is never sent has not begun. */
bool is_lost(tn__wire *w, int peer, char *why) {
    return !guarded(false, why, [&] {
        UnboundBuffer &buffer = buffer_of(w, peer);
        buffer.abortWaitRecv();
        buffer.waitRecv(milliseconds(1));
        return true;
    });
}

void close_wire(tn__wire *w) {
    for (int peer = 0; peer < w->ranks; peer++) {
        char why[TN_ENGINE_WHY];
        guarded(false, why, [&] {
            auto &pair = w->context->getPair(peer);
            if (pair) { pair->close(); }
            return true;
        });
    }
}

void destroy_wire(tn__wire *w) {
    delete w;
}

} // namespace

extern "C" __attribute__((visibility("default"))) const tn__gloo_api *tn_gloo_api(void) {
    static const tn__gloo_api api = {
        sizeof(tn__gloo_api), TN__GLOO_VERSION, open_wire, endpoint, connect_peer, send_message,
        receive_message,      wait_message,     wake_wait, is_lost,  close_wire,   destroy_wire,
    };
    return &api;
}
