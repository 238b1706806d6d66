/* The TCP store among strangers: a peer that does not know the token, sends nonsense, says nothing
 * or disconnects does no harm; and errors say what happened. */
#define _GNU_SOURCE
#include "distributed/store/net.h"
#include "distributed/store/session.h"
#include "distributed/store/tcp.h"
#include "tests/support/ranks.h"
#include "tests/support/relay.h"
#include "tests/support/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOKEN "the token of this job"

/* ---- The proof ------------------------------------------------------------------------------- */

/* The proof is a known function of token, role, both nonces and the server's address: RFC 2104's
 * HMAC with SHA-256. */
PLAIN_TEST(test_proofs) {
    const tn__bond bond = {{1}, {2}, {[15] = 1, [16] = 115, [17] = 60}};
    const uint8_t known[] = {0x23, 0x2c, 0x69, 0x56, 0xb8, 0xa4, 0xa3, 0x76};
    uint8_t proof[TN__DIGEST], other[TN__DIGEST];
    tn__proof("token", "client", &bond, proof);
    assert_memory_equal(proof, known, sizeof(known));
    const struct {
        const char *token, *role;
        tn__bond bond;
    } others[] = {{"tokem", "client", bond},
                  {"token", "server", bond},
                  {"token", "client", {{2}, {2}, {[15] = 1, [16] = 115, [17] = 60}}},
                  {"token", "client", {{1}, {1}, {[15] = 1, [16] = 115, [17] = 60}}},
                  {"token", "client", {{1}, {2}, {[15] = 2, [16] = 115, [17] = 60}}},
                  {"token", "client", {{1}, {2}, {[15] = 1, [16] = 115, [17] = 61}}}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        tn__proof(others[i].token, others[i].role, &others[i].bond, other);
        assert_false(tn__proof_equal(proof, other));
    }
    memcpy(other, proof, sizeof(other));
    assert_true(tn__proof_equal(proof, other));
    other[TN__DIGEST - 1] ^= 1;
    assert_false(tn__proof_equal(proof, other));
}

/* ---- Sessions without a network -------------------------------------------------------------- */

static size_t put_request(uint8_t *to, tn__request r, const char *key, const char *value,
                          const char *expected) {
    r.key_bytes = r.key_bytes ? r.key_bytes : (uint32_t)strlen(key);
    r.bytes = r.bytes ? r.bytes : (uint32_t)strlen(value);
    r.expected_bytes = r.expected_bytes ? r.expected_bytes : (uint32_t)strlen(expected);
    tn__request_write(to, &r);
    return TN__REQUEST_HEAD +
           (size_t)sprintf((char *)to + TN__REQUEST_HEAD, "%s%s%s", key, value, expected);
}

/* Takes the reply that the session wants to send. */
static tn__reply take_reply(tn__session *s, char *body) {
    struct iovec parts[2];
    tn__reply r = {.status = TN_EUNSUPPORTED};
    int n = tn__session_output(s, parts);
    assert_true(n >= 1 && parts[0].iov_len == TN__REPLY_HEAD);
    assert_true(tn__reply_read(parts[0].iov_base, &r));
    assert_int_equal(r.bytes, n == 2 ? parts[1].iov_len : 0);
    memcpy(body, n == 2 ? parts[1].iov_base : "", r.bytes);
    body[r.bytes] = 0;
    tn__session_sent(s, 1); /* in two pieces */
    tn__session_sent(s, TN__REPLY_HEAD - 1 + r.bytes);
    assert_int_equal(tn__session_output(s, parts), 0);
    return r;
}

static tn__store_hub test_hub(size_t table, size_t buffers) {
    return (tn__store_hub){.token = TOKEN, .table.limit = table, .buffered_limit = buffers};
}

/* A session that has proved that it knows the token. */
static void begin_member(tn__session *s, tn__store_hub *hub) {
    static const uint8_t place[TN__PLACE];
    assert_true(tn__session_begin(s, hub, place));
    s->state = TN__SESSION_REQUEST;
}

PLAIN_TEST(test_session) {
    tn__store_hub hub = test_hub(0, 1 << 20);
    tn__session a, b;
    uint8_t bytes[512];
    char body[512];
    begin_member(&a, &hub);
    begin_member(&b, &hub);
    size_t n = put_request(bytes, (tn__request){.kind = TN_STORE_GET, .microseconds = 2000000},
                           "key", "", "");
    for (size_t i = 0; i < n; i++) { /* byte by byte */
        assert_true(tn__session_take(&a, bytes + i, 1, 10));
    }
    assert_int_equal(a.state, TN__SESSION_WAIT);
    tn__session_expire(&a, 11.9);
    assert_int_equal(a.state, TN__SESSION_WAIT);
    n = put_request(bytes, (tn__request){.kind = TN_STORE_SET}, "key", "value", "");
    assert_true(tn__session_take(&b, bytes, n, 11));
    assert_int_equal(take_reply(&b, body).status, TN_OK);
    assert_int_equal(take_reply(&a, body).status, TN_OK);
    assert_string_equal(body, "value");
    /* who waits first: who has set the key may end, and the server with it */
    assert_ptr_equal(tn__store_hub_answered(&hub), &a);
    assert_ptr_equal(tn__store_hub_answered(&hub), &b);
    assert_null(tn__store_hub_answered(&hub));

    n = put_request(bytes, (tn__request){.kind = TN_STORE_GET, .microseconds = 2000000}, "other",
                    "", "");
    assert_true(tn__session_take(&a, bytes, n, 20));
    tn__session_expire(&a, 22.01);
    assert_int_equal(take_reply(&a, body).status, TN_EPEER);
    assert_string_equal(body, "\"other\" was not set within 2.0 seconds");
    assert_int_equal(hub.buffered, 0);
    assert_null(hub.waiting);
    tn__session_end(&a);
    tn__session_end(&b);
    tn__store_hub_clear(&hub);
}

/* A malformed request ends the session. */
PLAIN_TEST(test_malformed) {
    tn__store_hub hub = test_hub(0, 1 << 20);
    uint8_t good[512], bytes[1024];
    size_t n = put_request(good, (tn__request){.kind = TN_STORE_CHECK}, "key", "", "");
    for (int which = 0; which < 9; which++) {
        tn__session s;
        begin_member(&s, &hub);
        size_t length = n;
        memcpy(bytes, good, n);
        switch (which) {
        case 0: /* an unknown kind */
            bytes[0] = TN_STORE_DELETE + 1;
            break;
        case 1:
            bytes[0] = 0;
            break;
        case 2: /* no key */
            bytes[1] = 0;
            break;
        case 3: /* must be 0 */
            bytes[3] = 1;
            break;
        case 4: /* a value, which a check does not have */
            bytes[4] = 1;
            break;
        case 5: /* a control character in the key */
            bytes[TN__REQUEST_HEAD] = '\n';
            break;
        case 6: /* a zero byte in the key */
            bytes[TN__REQUEST_HEAD + 1] = 0;
            break;
        case 7: /* a value beyond the limit */
            put_request(bytes, (tn__request){.kind = TN_STORE_SET, .bytes = TN_STORE_VALUE + 1},
                        "key", "", "");
            break;
        case 8: /* two requests at once */
            memcpy(bytes + n, good, n);
            length = 2 * n;
            break;
        }
        assert_false(tn__session_take(&s, bytes, length, 0));
        assert_non_null(s.fault);
        assert_int_equal(s.state, TN__SESSION_CLOSE);
        tn__session_end(&s);
        assert_int_equal(hub.buffered, 0);
        assert_null(hub.answered);
    }
    tn__store_hub_clear(&hub);
}

/* A request beyond the limits is refused with a reply, and the session continues. */
PLAIN_TEST(test_limits) {
    tn__store_hub hub = test_hub(4096, 4096);
    tn__session s;
    uint8_t bytes[512], zeros[1000] = {0};
    char body[4096];
    begin_member(&s, &hub);
    tn__request large = {.kind = TN_STORE_SET, .bytes = 5000};
    size_t n = put_request(bytes, large, "key", "", "");
    assert_true(tn__session_take(&s, bytes, n, 0));
    assert_int_equal(s.state, TN__SESSION_SKIP);
    for (int i = 0; i < 5; i++) {
        assert_true(tn__session_take(&s, zeros, sizeof(zeros), 0));
    }
    assert_int_equal(take_reply(&s, body).status, TN_ENOMEM);
    large.bytes = 3000;
    for (int i = 0; i < 2; i++) {
        n = put_request(bytes, large, i ? "b" : "a", "", "");
        assert_true(tn__session_take(&s, bytes, n, 0));
        for (int part = 0; part < 3; part++) {
            assert_true(tn__session_take(&s, zeros, sizeof(zeros), 0));
        }
        assert_int_equal(take_reply(&s, body).status, i ? TN_ENOMEM : TN_OK);
    }
    assert_contains(body, "full (4096 bytes)");
    n = put_request(bytes, (tn__request){.kind = TN_STORE_DELETE}, "a", "", "");
    assert_true(tn__session_take(&s, bytes, n, 0));
    assert_true(take_reply(&s, body).number == 1);
    assert_int_equal(hub.table.bytes, 0);
    assert_int_equal(hub.buffered, 0);
    tn__session_end(&s);
    tn__store_hub_clear(&hub);
}

/* ---- Strangers on the port ------------------------------------------------------------------- */

static int connect_raw(int port) {
    const char *unknown;
    struct addrinfo *at = tn__net_resolve("127.0.0.1", port, &unknown);
    assert_non_null(at);
    int error, fd = tn__net_connect(at, tn__now() + 5, &error);
    freeaddrinfo(at);
    if (fd < 0) { fail_msg("%s", strerror(error)); }
    return fd;
}

static void send_bytes(int fd, const void *data, size_t bytes) {
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    tn__net_send(fd, &part, 1, tn__now() + 5); /* the server may have closed */
}

/* Whether the other side closes within a few seconds; anything it sends first is ignored. */
static bool is_closed(int fd) {
    char byte;
    int error;
    double deadline = tn__now() + 4;
    while ((error = tn__net_receive(fd, &byte, 1, deadline)) == 0) {}
    close(fd);
    return error == ECONNRESET || error == EPIPE;
}

static void assert_serves(int port) {
    static int number;
    char key[32];
    void *data;
    tn_store *s = tn_tcp_store("127.0.0.1", port, TOKEN, 20);
    if (!s) { fail_msg("%s", tn_error_message()); }
    snprintf(key, sizeof(key), "alive.%d", number++);
    assert_int_equal(tn_store_set(s, key, key, strlen(key)), TN_OK);
    assert_int_equal(tn_store_get(s, key, &data, NULL, 20), TN_OK);
    assert_string_equal((char *)data, key);
    free(data);
    tn_store_free(s);
}

PLAIN_TEST(test_strangers) {
    tn_store_server *server = tn_store_serve("127.0.0.1", 0, TOKEN);
    int port = tn_store_server_port(server);
    uint8_t bytes[4096], hello[TN__HELLO], nonce[TN__NONCE] = {1};

    memset(bytes, 0xff, sizeof(bytes)); /* the largest possible lengths */
    int fd = connect_raw(port);
    send_bytes(fd, bytes, sizeof(bytes));
    assert_true(is_closed(fd));

    fd = connect_raw(port);
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    send_bytes(fd, http, strlen(http));
    assert_true(is_closed(fd));

    tn__hello_write(hello, nonce); /* a request instead of the proof */
    fd = connect_raw(port);
    send_bytes(fd, hello, sizeof(hello));
    size_t n =
        put_request(bytes, (tn__request){.kind = TN_STORE_SET}, "key", "a stranger's value", "");
    send_bytes(fd, bytes, n);
    assert_true(is_closed(fd));

    hello[4] = TN__WIRE_VERSION + 1;
    fd = connect_raw(port);
    send_bytes(fd, hello, sizeof(hello));
    assert_true(is_closed(fd));

    assert_serves(port);
    tn_store *s = tn_tcp_store("127.0.0.1", port, TOKEN, 5);
    bool exists;
    assert_int_equal(tn_store_check(s, "key", &exists), TN_OK);
    assert_false(exists);
    tn_store_free(s);
    tn_store_server_free(server);
}

/* More connections than the server allows strangers: silent ones, and ones with half a hello. */
PLAIN_TEST(test_crowd) {
    enum { CROWD = 400 };
    tn_store_server *server = tn_store_serve("127.0.0.1", 0, TOKEN);
    int port = tn_store_server_port(server), fd[CROWD];
    tn_store *member = tn_tcp_store("127.0.0.1", port, TOKEN, 20);
    assert_non_null(member);
    for (int i = 0; i < CROWD; i++) {
        fd[i] = connect_raw(port);
        if (i % 2) { send_bytes(fd[i], "TERN", 4); }
        if (i % 100 == 99) { assert_serves(port); }
    }
    assert_int_equal(tn_store_set(member, "k", "v", 1), TN_OK);
    int closed = 0;
    for (int i = 0; i < CROWD; i++) {
        char byte;
        closed += recv(fd[i], &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
        close(fd[i]);
    }
    assert_true(closed >= CROWD - 128 - 16 && closed < CROWD);
    assert_serves(port);
    tn_store_free(member);
    tn_store_server_free(server);
}

/* Silence for longer than a stranger is allowed: the one test here that has to wait seconds. */
PLAIN_TEST(test_silence) {
    tn_store_server *server = tn_store_serve("127.0.0.1", 0, TOKEN);
    int port = tn_store_server_port(server), fd = connect_raw(port);
    tn_store *member = tn_tcp_store("127.0.0.1", port, TOKEN, 20);
    double begin = tn__now();
    send_bytes(fd, "TER", 3);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 30000), 1);
    assert_true(tn__now() - begin > 4 && tn__now() - begin < 25);
    assert_true(is_closed(fd));
    assert_int_equal(tn_store_set(member, "k", "v", 1), TN_OK); /* a member may be silent */
    tn_store_free(member);
    tn_store_server_free(server);
}

PLAIN_TEST(test_wrong_token) {
    tn_store_server *server = tn_store_serve("127.0.0.1", 0, TOKEN);
    int port = tn_store_server_port(server);
    double begin = tn__now();
    assert_null(tn_tcp_store("127.0.0.1", port, "another token", 30));
    assert_true(tn__now() - begin < 20);
    char where[32];
    snprintf(where, sizeof(where), "127.0.0.1:%d", port);
    assert_contains(tn_error_message(), where);
    assert_error(TN_EPEER, "does not know this job's token");
    char why[TN_STORE_WHY];
    assert_int_equal(tn__tcp_probe("127.0.0.1", port, TOKEN, tn__now() + 5, why), TN__DIAL_OURS);
    assert_int_equal(tn__tcp_probe("127.0.0.1", port, "x", tn__now() + 5, why), TN__DIAL_OTHER_JOB);
    assert_serves(port);
    tn_store_server_free(server);
    assert_int_equal(tn__tcp_probe("127.0.0.1", port, TOKEN, tn__now() + 5, why), TN__DIAL_REFUSED);
}

/* ---- A stranger as the server ---------------------------------------------------------------- */

typedef struct impostor {
    int listener, port;
    const void *says; /* after the hello; NULL: nothing */
    size_t bytes;
    pthread_t thread;
} impostor;

static void *pretend_to_serve(void *user) {
    impostor *i = user;
    struct pollfd p = {.fd = i->listener, .events = POLLIN};
    poll(&p, 1, 10000);
    int fd = accept4(i->listener, NULL, NULL, SOCK_NONBLOCK);
    uint8_t heard[TN__HELLO + TN__DIGEST];
    tn__net_receive(fd, heard, TN__HELLO, tn__now() + 10);
    if (i->says) { send_bytes(fd, i->says, i->bytes); }
    tn__net_receive(fd, heard, sizeof(heard), tn__now() + 10); /* until the client gives up */
    close(fd);
    return NULL;
}

static tn_store *join_impostor(const void *says, size_t bytes, double timeout) {
    impostor i = {.says = says, .bytes = bytes};
    i.listener = tn__net_listen("127.0.0.1", &i.port, NULL);
    assert_true(i.listener >= 0);
    assert_int_equal(pthread_create(&i.thread, NULL, pretend_to_serve, &i), 0);
    tn_store *s = tn_tcp_store("127.0.0.1", i.port, TOKEN, timeout);
    pthread_join(i.thread, NULL);
    close(i.listener);
    return s;
}

PLAIN_TEST(test_impostors) {
    uint8_t bytes[TN__GREETING] = {0}, nonce[TN__NONCE] = {0};
    memset(bytes, 'x', sizeof(bytes));
    assert_none(join_impostor(bytes, sizeof(bytes), 10), TN_EPEER, "not a Tern store");

    tn__hello_write(bytes, nonce); /* knows the protocol, not the token */
    assert_none(join_impostor(bytes, sizeof(bytes), 10), TN_EPEER,
                "does not know this job's token");

    bytes[4] = 1;
    assert_none(join_impostor(bytes, TN__HELLO, 10), TN_EPEER,
                "it speaks version 1 of the store's protocol, this process 3");

    double begin = tn__now();
    assert_null(join_impostor(NULL, 0, 0.3));
    assert_true(tn__now() - begin < 9);
    assert_error(TN_EPEER, "no greeting");
}

/* ---- A stranger in between ------------------------------------------------------------------- */

/* It relays every byte, but has no session: the server's proof is for another port than the one
 * that was dialled. The client sends no more than its hello. */
PLAIN_TEST(test_relay) {
    tn_store_server *server = tn_store_serve("127.0.0.1", 0, TOKEN);
    int port = tn_store_server_port(server);
    relay *r = relay_start(0, port, 1);
    char where[80];
    snprintf(where, sizeof(where),
             "this job's store is at 127.0.0.1:%d: what answers at 127.0.0.1:%d passes it on", port,
             relay_port(r));
    assert_null(tn_tcp_store("127.0.0.1", relay_port(r), TOKEN, 10));
    assert_contains(tn_error_message(), "dial its host's own address");
    assert_error(TN_EPEER, where);
    char why[TN_STORE_WHY];
    assert_int_equal(tn__tcp_probe("127.0.0.1", relay_port(r), TOKEN, tn__now() + 10, why),
                     TN__DIAL_RELAYED);
    assert_int_equal(tn__tcp_probe("127.0.0.1", relay_port(r), "x", tn__now() + 10, why),
                     TN__DIAL_OTHER_JOB);
    assert_int_equal(tn__store_server_members(server), 0);
    relay_result said = relay_end(r);
    assert_int_equal(said.connections, 3);
    assert_int_equal(said.most, TN__HELLO);
    assert_serves(port);
    tn_store_server_free(server);
}

/* A proof is valid for one connection only, from a server as from a client. */
PLAIN_TEST(test_replay) {
    tn__store_hub hub = test_hub(0, 1 << 20);
    tn__session a, b;
    uint8_t place[TN__PLACE] = {[15] = 1}, hello[TN__HELLO], nonce[TN__NONCE] = {7};
    uint8_t proof[TN__DIGEST];
    assert_true(tn__session_begin(&a, &hub, place) && tn__session_begin(&b, &hub, place));
    tn__hello_write(hello, nonce);
    assert_true(tn__session_take(&a, hello, sizeof(hello), 0));
    assert_true(tn__session_take(&b, hello, sizeof(hello), 0));
    struct iovec first[2], second[2];
    assert_int_equal(tn__session_output(&a, first), 1);
    assert_int_equal(tn__session_output(&b, second), 1);
    assert_int_equal(first[0].iov_len, TN__GREETING);
    assert_memory_not_equal(first[0].iov_base, second[0].iov_base, TN__GREETING);
    tn__proof(TOKEN, "client", &a.bond, proof);
    tn__session_sent(&a, TN__GREETING);
    tn__session_sent(&b, TN__GREETING);
    assert_false(tn__session_take(&b, proof, sizeof(proof), 0));
    assert_string_equal(b.fault, "it does not know the token");
    assert_true(tn__session_take(&a, proof, sizeof(proof), 0));
    assert_true(tn__session_trusted(&a));
    tn__session_end(&a);
    tn__session_end(&b);
}

static bool has_two_addresses(const char *host) {
    const char *unknown;
    struct addrinfo *list = tn__net_resolve(host, 0, &unknown);
    bool both = false;
    for (struct addrinfo *at = list; at; at = at->ai_next) {
        both |= at->ai_family == AF_INET6 && at->ai_next != NULL;
    }
    if (list) { freeaddrinfo(list); }
    return both;
}

/* A stranger has one of the host's addresses: the store at the other one is found. */
PLAIN_TEST(test_two_addresses) {
    int port = 0, stranger = tn__net_listen("::1", &port, NULL);
    tn_error_clear();
    if (stranger < 0 || !has_two_addresses("localhost")) {
        skip(); /* "localhost" has one address here */
    }
    tn_store_server *server = tn_store_serve("127.0.0.1", port, TOKEN);
    tn_store *s = tn_tcp_store("localhost", port, TOKEN, 30);
    assert_non_null(s);
    tn_store_free(s);
    tn_store_server_free(server);
    close(stranger);
}

/* Of two servers at the same name and port only one starts; the other process can join it. */
PLAIN_TEST(test_one_server_a_name) {
    if (!has_two_addresses("localhost")) { skip(); }
    tn_store_server *server = tn_store_serve("localhost", 0, TOKEN);
    assert_non_null(server);
    assert_none(tn_store_serve("localhost", tn_store_server_port(server), TOKEN), TN_EIO, "in use");
    tn_store_server_free(server);
}

/* ---- Ports that a firewall lets through ------------------------------------------------------ */

static void allow_ports(int first, int last) {
    char text[32];
    snprintf(text, sizeof(text), "%d-%d", first, last);
    setenv("TERN_PORTS", text, 1);
}

/* With TERN_PORTS a store is served at one of these ports, or the error says why not. */
PLAIN_TEST(test_ports) {
    enum { PORTS = 3 };
    tn_store_server *servers[PORTS];
    char said[64];
    int first = ranks_free_ports(PORTS + 1);
    allow_ports(first, first + PORTS - 1);
    for (int i = 0; i < PORTS; i++) {
        servers[i] = tn_store_serve("127.0.0.1", 0, TOKEN);
        assert_int_equal(tn_store_server_port(servers[i]), first + i);
    }
    snprintf(said, sizeof(said), "none of TERN_PORTS, %d-%d, is free", first, first + PORTS - 1);
    assert_none(tn_store_serve("127.0.0.1", 0, TOKEN), TN_EIO, said);
    assert_none(tn_store_serve(NULL, 0, TOKEN), TN_EIO, said);
    tn_store_server_free(servers[1]);
    servers[1] = tn_store_serve("127.0.0.1", 0, TOKEN);
    assert_int_equal(tn_store_server_port(servers[1]), first + 1);
    assert_none(tn_store_serve("127.0.0.1", first + PORTS, TOKEN), TN_EIO,
                "is not one of TERN_PORTS");
    for (int i = 0; i < PORTS; i++) {
        tn_store_server_free(servers[i]);
    }
    static const char *const bad[] = {"30000",  "30100-30000", "0-7",  "1-65536",
                                      "30000-", "-",           "all",  "1-2 ",
                                      "1-2-3",  "+1-2",        "-1-2", "1-99999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        setenv("TERN_PORTS", bad[i], 1);
        assert_none(tn_store_serve("127.0.0.1", 0, TOKEN), TN_EVALUE, "should be FIRST-LAST");
    }
    setenv("TERN_PORTS", "", 1);
    tn_store_server_free(tn_store_serve("127.0.0.1", 0, TOKEN));
    unsetenv("TERN_PORTS");
}

/* ---- What the log says about strangers ------------------------------------------------------- */

static char logged[1 << 14];
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_log(tn_log_level level, const char *message, void *user) {
    pthread_mutex_lock(&log_lock);
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof(logged) - used, "%s\n", message);
    pthread_mutex_unlock(&log_lock);
}

/* Many strangers from one address are logged once. */
PLAIN_TEST(test_log) {
    tn_log_to(keep_log, TN_LOG_WARN, NULL);
    tn_store_server *server = tn_store_serve("127.0.0.1", 0, TOKEN);
    int port = tn_store_server_port(server);
    for (int i = 0; i < 50; i++) {
        int fd = connect_raw(port);
        send_bytes(fd, "\033[2J no language of the store at all", 30);
        assert_true(is_closed(fd));
        char why[TN_STORE_WHY];
        assert_int_equal(tn__tcp_probe("127.0.0.1", port, "x", tn__now() + 10, why),
                         TN__DIAL_OTHER_JOB);
    }
    tn_store_server_free(server);
    tn_log_to(NULL, TN_LOG_WARN, NULL);
    const char *line = strstr(logged, "store: 127.0.0.1:");
    assert_non_null(line);
    assert_contains(line, "is dropped: it does not speak the store's protocol (logged once");
    assert_null(strstr(line + 1, "store:"));
    for (const char *at = logged; *at; at++) {
        assert_true(*at == '\n' || (unsigned char)*at >= ' ');
    }
}

/* ---- Coming late, going early ---------------------------------------------------------------- */

typedef struct late {
    int port;
    tn_store_server *server;
    pthread_t thread;
} late;

static void *await_key(void *user) {
    char *value = NULL;
    tn_store_get(user, "run/0/ended.1", (void **)&value, NULL, 60);
    return value;
}

/* The process of the server sets keys without a connection: clients that wait for one get it. */
PLAIN_TEST(test_own_keys) {
    tn_store_server *server = tn_store_serve("127.0.0.1", 0, TOKEN);
    tn_store *client = tn_tcp_store("127.0.0.1", tn_store_server_port(server), TOKEN, 60);
    pthread_t thread;
    void *value;
    assert_int_equal(pthread_create(&thread, NULL, await_key, client), 0);
    usleep(50000); /* usually it waits then */
    assert_int_equal(tn__store_server_set(server, "run/0/ended.1", "2 host:42"), TN_OK);
    pthread_join(thread, &value);
    assert_string_equal(value, "2 host:42");
    free(value);
    tn_store_free(client);
    tn_store_server_free(server);
}

static void *serve_later(void *user) {
    late *l = user;
    usleep(200000);
    l->server = tn_store_serve("127.0.0.1", l->port, TOKEN);
    return NULL;
}

PLAIN_TEST(test_late_server) {
    late l = {.port = ranks_free_port()};
    assert_int_equal(pthread_create(&l.thread, NULL, serve_later, &l), 0);
    tn_store *s = tn_tcp_store("127.0.0.1", l.port, TOKEN, 20);
    pthread_join(l.thread, NULL);
    assert_non_null(s);
    tn_store_free(s);

    assert_none(tn_store_serve("127.0.0.1", l.port, TOKEN), TN_EIO, "in use");
    tn_store_server_free(l.server);

    double begin = tn__now();
    assert_null(tn_tcp_store("127.0.0.1", l.port, TOKEN, 0.2));
    assert_true(tn__now() - begin >= 0.2 && tn__now() - begin < 10);
    assert_error(TN_EPEER, "refused");
}

static void *wait_long(void *user) {
    void *data;
    double begin = tn__now();
    tn_status status = tn_store_get(user, "never", &data, NULL, 60);
    bool right = status == TN_EPEER && tn__now() - begin < 30 &&
                 strstr(tn_error_message(), "is gone") != NULL;
    tn_error_clear();
    return right ? user : NULL;
}

static void all_fail(tn_store *s, double most) {
    void *data;
    bool truth;
    const char *key = "k";
    for (int call = 0; call < 7; call++) {
        double begin = tn__now();
        tn_status status = call == 0   ? tn_store_set(s, key, "v", 1)
                           : call == 1 ? tn_store_get(s, key, &data, NULL, 0.2)
                           : call == 2 ? tn_store_add(s, "n", 1, NULL)
                           : call == 3 ? tn_store_compare_set(s, key, NULL, "v", &truth)
                           : call == 4 ? tn_store_check(s, key, &truth)
                           : call == 5 ? tn_store_delete(s, key, &truth)
                                       : tn_store_wait(s, &key, 1, 0.2);
        assert_int_equal(status, TN_EPEER);
        assert_true(tn__now() - begin < most);
        assert_error(TN_EPEER, "127.0.0.1:");
    }
}

PLAIN_TEST(test_server_gone) {
    tn_store_server *server = tn_store_serve("127.0.0.1", 0, TOKEN);
    tn_store *s = tn_tcp_store("127.0.0.1", tn_store_server_port(server), TOKEN, 20);
    pthread_t waiting;
    void *right;
    assert_int_equal(pthread_create(&waiting, NULL, wait_long, s), 0);
    usleep(50000);
    tn_store_server_free(server);
    pthread_join(waiting, &right);
    assert_non_null(right);
    all_fail(s, 15);
    tn_store_free(s);
}

/* A process that serves until it is killed. */
PLAIN_RANK(server_process) {
    tn_store_server *server = tn_store_serve("127.0.0.1", atoi(argument), TOKEN);
    rank_assert(server != NULL);
    printf("serving\n");
    pause();
    return 0;
}

/* The process exists, its sockets are open, and nothing answers. */
PLAIN_TEST(test_server_stopped) {
    char port[16];
    snprintf(port, sizeof(port), "%d", ranks_free_port());
    ranks_job job = ranks_start(1, "server_process", port, NULL);
    assert_true(ranks_await_output(&job, 0, "serving", 20));
    tn_store *s = tn_tcp_store("127.0.0.1", atoi(port), TOKEN, 20);
    assert_non_null(s);
    assert_int_equal(tn_store_set(s, "before", "", 0), TN_OK);
    s->timeout = 0.2;
    siginfo_t about;
    kill(job.pid[0], SIGSTOP);
    assert_int_equal(waitid(P_PID, (id_t)job.pid[0], &about, WSTOPPED), 0);
    all_fail(s, 10);
    kill(job.pid[0], SIGCONT);
    s->timeout = 20;
    /* a reply within the timeout: nothing was lost */
    assert_int_equal(tn_store_set(s, "after", "", 0), TN_OK);
    kill(job.pid[0], SIGKILL);
    ranks_result result = ranks_wait(&job, 20);
    ranks_free(&result);
    all_fail(s, 15);
    tn_store_free(s);
}
