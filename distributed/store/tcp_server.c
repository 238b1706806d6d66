/* The server of the TCP store: one thread, which waits for sockets with epoll and moves bytes
 * between them and their sessions (session.c).
 *
 * A stranger, which has not shown the token, has 5 seconds and one of a few slots. When all are
 * taken the next one gets the slot of the stranger that has been silent the longest, so silent
 * connections cannot keep others out.
 */
#define _GNU_SOURCE
#include "core/descriptor.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"
#include "core/threads.h"
#include "distributed/store/net.h"
#include "distributed/store/session.h"
#include "distributed/store/tcp.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { STRANGERS_MOST = 128, ACCEPTS_AT_ONCE = 16, EVENTS_AT_ONCE = 64, NAMED_MOST = 64 };
enum { ADDRESS = TN__PLACE - 2 };
#define STRANGER_SECONDS 5.0
#define STALL_SECONDS 600.0 /* for a member in the middle of a message */
#define PAUSE_SECONDS 0.1   /* without accepting, when descriptors run out */
#define TABLE_BYTES ((size_t)1 << 30)
#define BUFFER_BYTES ((size_t)512 << 20)

typedef struct connection {
    tn__session session; /* first: the hub hands out sessions */
    int fd;              /* -1: dropped, freed at the end of the turn */
    bool sends;          /* waits for the socket to take more */
    bool is_stranger;
    double active; /* when bytes last moved */
    uint8_t from[TN__PLACE];
    struct connection *next, *previous;
} connection;

struct tn_store_server {
    pthread_mutex_t lock; /* of the hub and `ending`; the thread lets go of it while it waits */
    tn__store_hub hub;
    bool ending;
    char *token;
    int listener, epoll, wake; /* wake: other threads write to it */
    int port;
    uint32_t process; /* that made it: where its thread runs */
    pthread_t thread;
    connection *first, *last; /* in the order of arrival */
    connection *dropped;
    int strangers;
    int members;                        /* atomic: read by other threads */
    double next_look;                   /* when a time-out may be due; INFINITY: never */
    double resume;                      /* accepting, after a pause; 0: no pause */
    uint8_t named[NAMED_MOST][ADDRESS]; /* whose rejection has been logged */
    int named_count;
    bool names_no_more;
    uint8_t chunk[1 << 16];
};

/* ---- Connections ----------------------------------------------------------------------------- */

static void unlink_connection(tn_store_server *s, connection *c) {
    *(c->previous ? &c->previous->next : &s->first) = c->next;
    *(c->next ? &c->next->previous : &s->last) = c->previous;
}

/* Whether a stranger's address is new and to be logged: their number is limited, since a stranger
 * with enough addresses could fill the log. */
static bool first_seen(tn_store_server *s, const connection *c) {
    for (int i = 0; i < s->named_count; i++) {
        if (memcmp(s->named[i], c->from, ADDRESS) == 0) { return false; }
    }
    if (s->named_count < NAMED_MOST) {
        memcpy(s->named[s->named_count++], c->from, ADDRESS);
        return true;
    }
    if (!s->names_no_more) {
        s->names_no_more = true;
        tn_log_write(TN_LOG_WARN,
                     "store: strangers of more than %d addresses have been dropped: further ones "
                     "are not logged",
                     NAMED_MOST);
    }
    return false;
}

static void log_drop(tn_store_server *s, const connection *c, const char *why) {
    char peer[TN__NET_TEXT];
    tn__net_text(c->from, peer);
    if (!c->is_stranger) {
        tn_log_write(TN_LOG_DEBUG, "store: %s has gone: %s", peer, why);
    } else if (first_seen(s, c)) {
        tn_log_write(TN_LOG_WARN, "store: %s is dropped: %s (logged once per address)", peer, why);
    } else {
        tn_log_write(TN_LOG_DEBUG, "store: %s is dropped: %s", peer, why);
    }
}

static void drop_connection(tn_store_server *s, connection *c, const char *why) {
    if (c->fd < 0) { return; }
    log_drop(s, c, why);
    if (c->is_stranger) {
        s->strangers--;
    } else {
        __atomic_sub_fetch(&s->members, 1, __ATOMIC_RELAXED);
    }
    tn__session_end(&c->session);
    /* A child of fork may have the socket too, and then closing it would not end either. */
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    shutdown(c->fd, SHUT_RDWR);
    close(c->fd);
    c->fd = -1;
    unlink_connection(s, c);
    c->next = s->dropped;
    s->dropped = c;
}

static void bury_connections(tn_store_server *s) {
    for (connection *c = s->dropped, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    s->dropped = NULL;
}

/* The stranger to be dropped in favour of a new one: the first that has said nothing, else the
 * first. */
static connection *oldest_stranger(const tn_store_server *s) {
    connection *speaking = NULL;
    for (connection *c = s->first; c; c = c->next) {
        if (c->is_stranger && c->session.state == TN__SESSION_HELLO) { return c; }
        speaking = speaking || !c->is_stranger ? speaking : c;
    }
    return speaking;
}

/* When this connection's time is up. */
static double deadline_of(const connection *c) {
    const tn__session *s = &c->session;
    if (c->is_stranger) { return c->active + STRANGER_SECONDS; }
    if (s->state == TN__SESSION_WAIT) { return s->deadline; }
    bool idle = s->state == TN__SESSION_REQUEST && s->head_bytes == 0 && s->out_head_bytes == 0;
    return idle ? INFINITY : c->active + STALL_SECONDS;
}

static void look_by(tn_store_server *s, double when) {
    s->next_look = fmin(s->next_look, when);
}

/* ---- Moving bytes ---------------------------------------------------------------------------- */

static void watch_connection(tn_store_server *s, connection *c, bool sends) {
    if (sends != c->sends) {
        struct epoll_event event = {.events = EPOLLIN | (sends ? EPOLLOUT : 0u), .data.ptr = c};
        epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &event);
        c->sends = sends;
    }
}

static void send_some(tn_store_server *s, connection *c, double now) {
    struct iovec parts[2];
    for (int n; (n = tn__session_output(&c->session, parts)) > 0;) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)n};
        ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) { continue; }
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            watch_connection(s, c, true);
            look_by(s, deadline_of(c));
            return;
        }
        if (sent < 0) {
            drop_connection(s, c, strerror(errno));
            return;
        }
        tn__session_sent(&c->session, (size_t)sent);
        c->active = c->is_stranger ? c->active : now;
    }
    watch_connection(s, c, false);
    if (c->session.state == TN__SESSION_CLOSE) { drop_connection(s, c, c->session.fault); }
}

/* A stranger that has shown the token is no longer one. */
static void admit_member(tn_store_server *s, connection *c, double now) {
    if (c->is_stranger && tn__session_trusted(&c->session)) {
        c->is_stranger = false;
        c->active = now;
        s->strangers--;
        __atomic_add_fetch(&s->members, 1, __ATOMIC_RELAXED);
    }
}

/* Sends whatever any session has to send now, even due to another's request. */
static void send_answers(tn_store_server *s, double now) {
    for (tn__session *session; (session = tn__store_hub_answered(&s->hub));) {
        send_some(s, (connection *)session, now);
    }
}

static void receive_some(tn_store_server *s, connection *c, double now) {
    ssize_t got = recv(c->fd, s->chunk, sizeof(s->chunk), 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) { return; }
    if (got <= 0) {
        drop_connection(s, c,
                        got < 0           ? strerror(errno)
                        : !c->is_stranger ? "it has closed the connection"
                                          : "it has left without showing the token");
        return;
    }
    c->active = c->is_stranger ? c->active : now;
    if (!tn__session_take(&c->session, s->chunk, (size_t)got, now)) {
        drop_connection(s, c, c->session.fault);
        return;
    }
    admit_member(s, c, now);
    send_answers(s, now);
    if (c->fd >= 0) { look_by(s, deadline_of(c)); }
}

/* ---- New connections ------------------------------------------------------------------------- */

static void listen_again(tn_store_server *s, bool on) {
    struct epoll_event event = {.events = on ? EPOLLIN : 0u, .data.ptr = NULL};
    epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener, &event);
}

static bool admit_connection(tn_store_server *s, int fd, double now) {
    connection *c = tn__calloc(1, sizeof(*c));
    uint8_t place[TN__PLACE];
    if (!c || !tn__net_place(fd, false, place) || !tn__net_place(fd, true, c->from) ||
        !tn__session_begin(&c->session, &s->hub, place)) {
        free(c);
        return false;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(c);
        return false;
    }
    tn__net_options(fd);
    c->fd = fd;
    c->active = now;
    c->is_stranger = true;
    c->previous = s->last;
    *(s->last ? &s->last->next : &s->first) = c;
    s->last = c;
    s->strangers++;
    look_by(s, now + STRANGER_SECONDS);
    return true;
}

/* Accepts a few at a time; existing connections get their turn in between. */
static void accept_some(tn_store_server *s, double now) {
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = tn__above_streams(accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
            if (s->strangers) {
                drop_connection(s, oldest_stranger(s), "its slot is needed");
                continue;
            }
            s->resume = now + PAUSE_SECONDS;
            look_by(s, s->resume);
            listen_again(s, false);
        }
        if (fd < 0) { return; }
        if (s->strangers == STRANGERS_MOST) {
            drop_connection(s, oldest_stranger(s), "others came after it");
        }
        if (!admit_connection(s, fd, now)) { close(fd); }
    }
}

/* ---- The thread ------------------------------------------------------------------------------ */

static void look_at_time(tn_store_server *s, double now) {
    if (now < s->next_look) { return; }
    s->next_look = INFINITY;
    if (s->resume && now >= s->resume) {
        s->resume = 0;
        listen_again(s, true);
    }
    for (connection *c = s->first, *next; c; c = next) {
        next = c->next;
        if (now < deadline_of(c)) {
            look_by(s, deadline_of(c));
        } else if (c->session.state == TN__SESSION_WAIT) {
            tn__session_expire(&c->session, now);
            look_by(s, now + STALL_SECONDS);
        } else {
            drop_connection(
                s, c, c->is_stranger ? "it has not joined in time" : "it stopped mid-message");
        }
    }
    if (s->resume) { look_by(s, s->resume); }
    send_answers(s, now);
}

/* Another thread has set a key, or ends the server. */
static void take_wake(tn_store_server *s, double now) {
    uint64_t times;
    while (read(s->wake, &times, sizeof(times)) < 0 && errno == EINTR) {}
    send_answers(s, now);
}

static void handle_event(tn_store_server *s, const struct epoll_event *event, double now) {
    connection *c = event->data.ptr;
    if (event->data.ptr == s) {
        take_wake(s, now);
        return;
    }
    if (!c) {
        accept_some(s, now);
        return;
    }
    if (c->fd >= 0 && (event->events & EPOLLOUT)) { send_some(s, c, now); }
    if (c->fd >= 0 && (event->events & ~(uint32_t)EPOLLOUT)) { receive_some(s, c, now); }
}

static void *serve_clients(void *user) {
    tn_store_server *s = user;
    struct epoll_event events[EVENTS_AT_ONCE];
    for (bool ending = false; !ending;) {
        int timeout = isinf(s->next_look) ? -1 : tn__milliseconds_left(s->next_look);
        int n = epoll_wait(s->epoll, events, EVENTS_AT_ONCE, timeout);
        double now = tn__now();
        pthread_mutex_lock(&s->lock);
        for (int i = 0; i < n; i++) {
            handle_event(s, &events[i], now);
        }
        look_at_time(s, now);
        bury_connections(s);
        ending = s->ending;
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

static bool start_thread(tn_store_server *s) {
    int failed = tn__thread_start(&s->thread, serve_clients, s);
    return !failed || tn__fail(TN_ENOMEM, "store_serve", "its thread could not be started: %s",
                               strerror(failed));
}

/* ---- Life ------------------------------------------------------------------------------------ */

static void close_fd(int fd) {
    if (fd >= 0) { close(fd); }
}

static void destroy_server(tn_store_server *s) {
    while (s->first) {
        drop_connection(s, s->first, "the store ends");
    }
    bury_connections(s);
    tn__store_hub_clear(&s->hub);
    close_fd(s->listener);
    close_fd(s->epoll);
    close_fd(s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s->token);
    free(s);
}

static bool open_poll(tn_store_server *s) {
    s->epoll = tn__above_streams(epoll_create1(EPOLL_CLOEXEC));
    s->wake = tn__above_streams(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    struct epoll_event listener = {.events = EPOLLIN, .data.ptr = NULL},
                       wake = {.events = EPOLLIN, .data.ptr = s};
    if (s->epoll < 0 || s->wake < 0 ||
        epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener, &listener) != 0 ||
        epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &wake) != 0) {
        return tn__fail(TN_EIO, "store_serve", "epoll: %s", strerror(errno));
    }
    return true;
}

static bool options_sound(int port, const char *token) {
    if (tn__pending()) { return false; }
    if (port < 0 || port > 65535) {
        tn__raise(TN_EVALUE, "store_serve", "port %d (0 to 65535)", port);
    } else if (!token || !*token) {
        tn__raise(TN_EVALUE, "store_serve",
                  "the token is %s: anyone who reaches the port could join",
                  token ? "empty" : "NULL");
    }
    return !tn__pending();
}

tn_store_server *tn_store_serve(const char *host, int port, const char *token) {
    if (!options_sound(port, token)) { return NULL; }
    tn_store_server *s = tn__calloc(1, sizeof(*s));
    char *copy = tn__strdup(token);
    if (!s || !copy) {
        free(s);
        free(copy);
        return tn__fail_null(TN_ENOMEM, "store_serve", "no memory");
    }
    pthread_mutex_init(&s->lock, NULL);
    s->token = copy;
    s->hub =
        (tn__store_hub){.token = copy, .table.limit = TABLE_BYTES, .buffered_limit = BUFFER_BYTES};
    s->next_look = INFINITY;
    s->epoll = s->wake = -1;
    s->port = port;
    s->process = tn__process();
    s->listener = tn__net_listen(host, &s->port, "store_serve");
    if (s->listener < 0 || !open_poll(s) || !start_thread(s)) {
        destroy_server(s);
        return NULL;
    }
    return s;
}

int tn_store_server_port(const tn_store_server *s) {
    return s ? s->port : 0;
}

int tn__store_server_members(const tn_store_server *s) {
    bool serves = s && !tn__inherited(s->process);
    return serves ? __atomic_load_n(&s->members, __ATOMIC_RELAXED) : 0;
}

static void wake_thread(tn_store_server *s) {
    uint64_t one = 1;
    while (write(s->wake, &one, sizeof(one)) < 0 && errno == EINTR) {}
}

tn_status tn__store_server_set(tn_store_server *s, const char *key, const char *text) {
    tn_store_call c = {.kind = TN_STORE_SET, .key = key, .data = text, .bytes = strlen(text)};
    pthread_mutex_lock(&s->lock);
    tn_status status = tn__store_hub_run(&s->hub, &c);
    pthread_mutex_unlock(&s->lock);
    wake_thread(s);
    return status == TN_OK ? TN_OK : tn__raise(status, "store_set", "%s", c.why);
}

void tn_store_server_free(tn_store_server *s) {
    if (!s || tn__inherited(s->process)) { /* a child would wake the parent's */
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_mutex_unlock(&s->lock);
    wake_thread(s);
    pthread_join(s->thread, NULL);
    destroy_server(s);
}
