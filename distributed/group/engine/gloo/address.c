/* Finds the address of this host at which the other ranks can reach it.
 *
 * The kernel knows: a UDP socket that is "connected" to another host has the address from which
 * packets would leave, and nothing is sent. MASTER_ADDR is a host that every rank reaches. Ranks
 * are on one host when they have the same boot and the same network namespace; then they meet at
 * 127.0.0.1.
 *
 * Gloo's connections carry no secret, so a public address is used only on request.
 */
#define _GNU_SOURCE 1 /* getifaddrs, NI_MAXHOST */
#include "distributed/group/engine/gloo/gloo.h"

#include "core/clock.h"
#include "core/descriptor.h"
#include "core/error.h"
#include "core/memory.h"
#include "distributed/init/host.h"
#include "distributed/store/store.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Meeting --------------------------------------------------------------------------------- */

/* Raises, and names the ranks from `first` on that have not published their value. */
static void raise_missing(const tn_engine_options *o, const char *key, int first) {
    char place[64], text[TN_ENGINE_WHY];
    size_t length = (size_t)snprintf(text, sizeof(text), "no sign of rank %d", first);
    bool answers = true;
    for (int r = first + 1; r < o->ranks && answers && length < sizeof(text); r++) {
        tn_store_call c = {.kind = TN_STORE_CHECK, .key = place, .deadline = tn__now() + 1};
        snprintf(place, sizeof(place), "%s/%d", key, r);
        answers = o->store->run(o->store, &c) == TN_OK;
        if (!answers) {
            snprintf(text + length, sizeof(text) - length, "; the store does not answer: %s",
                     c.why);
        } else if (!c.number) {
            length += (size_t)snprintf(text + length, sizeof(text) - length, ", %d", r);
        }
    }
    tn__raise(TN_EPEER, NULL, "%s", text);
}

/* Between two calls of o->check, in seconds. */
static const double CHECK_EVERY = 0.2;

/* Waits for a key until the deadline, or until o->check raises. */
static bool await_value(const tn_engine_options *o, const char *key, tn_store_value *value) {
    double until;
    do {
        until = o->check ? fmin(tn__now() + CHECK_EVERY, o->deadline) : o->deadline;
        tn_store_call c = {.kind = TN_STORE_GET, .key = key, .deadline = until};
        if (o->store->run(o->store, &c) == TN_OK) {
            *value = c.value;
            return true;
        }
        if (o->check && o->check(o->check_user, true) != TN_OK) { return false; }
    } while (until < o->deadline && tn__now() >= until); /* earlier: the store is gone */
    return false;
}

bool tn__gloo_meet(const tn_engine_options *o, const char *key, const void *mine, size_t bytes,
                   tn_store_value *values) {
    char place[64], why[TN_STORE_WHY];
    snprintf(place, sizeof(place), "%s/%d", key, o->rank);
    if (tn__store_put(o->store, place, mine, bytes, o->deadline, why) != TN_OK) {
        return tn__fail(TN_EPEER, NULL, "the store: %s", why);
    }
    for (int r = 0; r < o->ranks; r++) {
        snprintf(place, sizeof(place), "%s/%d", key, r);
        if (!await_value(o, place, &values[r])) {
            if (!tn__pending()) { raise_missing(o, key, r); }
            return false;
        }
    }
    return true;
}

bool tn__gloo_refused(const tn_store_value *value, int rank) {
    const char *reason = value->data;
    bool refused = value->bytes > 0 && *reason == ':';
    if (refused) {
        tn__raise(TN_EPEER, NULL, "rank %d could not join%.*s", rank,
                  (int)(value->bytes < 400 ? value->bytes : 400), reason);
    }
    return refused;
}

void tn__gloo_forget(tn_store_value *values, int n) {
    for (int i = 0; values && i < n; i++) {
        free(values[i].data);
        values[i] = (tn_store_value){0};
    }
}

/* *one_host: whether all ranks are on this host. */
static bool compare_hosts(const tn_engine_options *o, bool *one_host) {
    char mine[TN__HOST_KEY];
    tn__host_network(mine);
    tn_store_value *values = tn__calloc_for((size_t)o->ranks, sizeof(*values), NULL);
    if (!values) { return false; }
    bool fine = tn__gloo_meet(o, "gloo/host", mine, strlen(mine), values);
    *one_host = true;
    for (int r = 0; r < o->ranks && fine; r++) {
        fine = !tn__gloo_refused(&values[r], r);
        *one_host = *one_host && values[r].bytes == strlen(mine) &&
                    memcmp(values[r].data, mine, values[r].bytes) == 0;
    }
    tn__gloo_forget(values, o->ranks);
    free(values);
    return fine;
}

/* ---- Addresses ------------------------------------------------------------------------------- */

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) {
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    }
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

/* Whether another host could connect to it: link-local addresses of IPv6 need a scope. */
static bool is_usable(const struct sockaddr *a) {
    return a && (a->sa_family == AF_INET ||
                 (a->sa_family == AF_INET6 &&
                  !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)a)->sin6_addr)));
}

static bool to_text(const struct sockaddr *a, char *address) {
    const void *bits = a->sa_family == AF_INET
                           ? (const void *)&((const struct sockaddr_in *)a)->sin_addr
                           : (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr;
    return inet_ntop(a->sa_family, bits, address, TN__ADDRESS) != NULL;
}

/* The networks that routers between sites do not carry: RFC 1122, 1918, 3927, 4193, 4291, 6598. */
static bool is_private_v4(uint32_t address) {
    static const struct {
        uint32_t network;
        int bits;
    } all[] = {{0x7f000000, 8},  {0x0a000000, 8},  {0xac100000, 12},
               {0xc0a80000, 16}, {0xa9fe0000, 16}, {0x64400000, 10}};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        if ((address ^ all[i].network) >> (32 - all[i].bits) == 0) { return true; }
    }
    return false;
}

bool tn__address_is_public(const char *address) {
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, address, &v4) == 1) { return !is_private_v4(ntohl(v4.s_addr)); }
    if (inet_pton(AF_INET6, address, &v6) != 1) { return false; }
    if (IN6_IS_ADDR_V4MAPPED(&v6)) {
        memcpy(&v4, v6.s6_addr + 12, sizeof(v4));
        return !is_private_v4(ntohl(v4.s_addr));
    }
    return !IN6_IS_ADDR_LOOPBACK(&v6) && !IN6_IS_ADDR_LINKLOCAL(&v6) &&
           (v6.s6_addr[0] & 0xfe) != 0xfc;
}

/* The address from which packets to `host` leave; false when it has none, or is unreachable. */
static bool address_toward(const char *host, char *address, bool *loopback) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM}, *found = NULL;
    bool fine = false;
    if (getaddrinfo(host, "9", &hints, &found) != 0) { return false; }
    for (struct addrinfo *a = found; a && !fine; a = a->ai_next) {
        struct sockaddr_storage own = {0};
        socklen_t length = sizeof(own);
        int fd = tn__above_streams(socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        fine = fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
               getsockname(fd, (struct sockaddr *)&own, &length) == 0 &&
               is_usable((struct sockaddr *)&own) && to_text((struct sockaddr *)&own, address);
        *loopback = fine && is_loopback((struct sockaddr *)&own);
        if (fd >= 0) { close(fd); }
    }
    freeaddrinfo(found);
    return fine;
}

/* The first address of the interface `name` (NULL: of any that leads out), IPv4 before IPv6. */
static bool of_interface(const struct ifaddrs *all, const char *name, char *address) {
    static const int families[] = {AF_INET, AF_INET6};
    for (int f = 0; f < 2; f++) {
        for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
            bool wanted = name ? strcmp(i->ifa_name, name) == 0
                               : (i->ifa_flags & IFF_UP) && !(i->ifa_flags & IFF_LOOPBACK);
            if (wanted && is_usable(i->ifa_addr) && i->ifa_addr->sa_family == families[f]) {
                return to_text(i->ifa_addr, address);
            }
        }
    }
    return false;
}

/* Whether `text` is a numeric address of this host. */
static bool is_own(const struct ifaddrs *all, const char *text) {
    struct in_addr v4;
    char address[TN__ADDRESS];
    if (inet_pton(AF_INET, text, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127) { return true; }
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        if (is_usable(i->ifa_addr) && to_text(i->ifa_addr, address) && strcmp(address, text) == 0) {
            return true;
        }
    }
    return false;
}

static void raise_unknown(const struct ifaddrs *all, const char *wanted) {
    char address[TN__ADDRESS], there[400] = "";
    size_t length = 0;
    for (const struct ifaddrs *i = all; i && length < sizeof(there); i = i->ifa_next) {
        if (is_usable(i->ifa_addr) && to_text(i->ifa_addr, address)) {
            length += (size_t)snprintf(there + length, sizeof(there) - length, " %s (%s)",
                                       i->ifa_name, address);
        }
    }
    tn__raise(TN_EVALUE, NULL, "no interface and no address of this host is \"%.60s\"; there are%s",
              wanted, there);
}

/* The address when no interface was requested. */
static bool choose_address(const tn_engine_options *o, const struct ifaddrs *all, char *address) {
    const char *master = getenv("MASTER_ADDR");
    bool one_host, loopback = false;
    if (!compare_hosts(o, &one_host)) { return false; }
    if (one_host) {
        snprintf(address, TN__ADDRESS, "127.0.0.1");
        return true;
    }
    bool toward = master && *master && address_toward(master, address, &loopback) && !loopback;
    if (!toward && !of_interface(all, NULL, address)) {
        return tn__fail(
            TN_EPEER, NULL,
            "the ranks are on several hosts, but this one has no interface that leads out");
    }
    return !tn__address_is_public(address) ||
           tn__fail(TN_EPEER, NULL,
                    "this host's address %s is public, and gloo's connections carry no secret: "
                    "use a private network or a tunnel (docs/security.md), or request this address "
                    "with TERN_INTERFACE=%s",
                    address, address);
}

bool tn__gloo_address(const tn_engine_options *o, char *address) {
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) {
        return tn__fail(TN_EIO, NULL, "the network interfaces cannot be listed");
    }
    bool fine;
    if (!o->interface || !*o->interface) {
        fine = choose_address(o, all, address);
    } else if (is_own(all, o->interface)) {
        snprintf(address, TN__ADDRESS, "%s", o->interface);
        fine = true;
    } else {
        fine = of_interface(all, o->interface, address);
        if (!fine) { raise_unknown(all, o->interface); }
    }
    freeifaddrs(all);
    return fine;
}
