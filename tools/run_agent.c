/* Between the main thread and the job: this node's state goes out, orders come in.
 *
 * On one host each call does that at once: the leader is a plain function. On several a thread
 * talks to the store, several times a second. The two threads share the fields under the lock,
 * which is not held during calls to the store: so the main thread never waits for the network.
 */
#include "tools/run_members.h"

#include "distributed/init/environment.h"
#include "distributed/init/members.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct agent {
    const run_options *options;
    membership job; /* the thread's */
    bool threaded;
    pthread_t thread;
    int event, wake; /* eventfds: for the main thread, for this one */

    pthread_mutex_t lock;
    agent_state state;
    order_queue orders; /* for the main thread */
    node_report report;
    double contact; /* when the last turn began that went well */
};

/* ---- Turns ----------------------------------------------------------------------------------- */

static bool enter_job(agent *a) {
    bool joined = membership_begin(&a->job, a->options);
    pthread_mutex_lock(&a->lock);
    if (joined) { a->state = a->job.leader ? AGENT_LEADS : AGENT_JOINED; }
    a->contact = tn__now();
    pthread_mutex_unlock(&a->lock);
    return joined;
}

/* False when nothing more is to be sent, or an error is pending. */
static bool agent_turn(agent *a) {
    if (a->state == AGENT_JOINING && !enter_job(a)) { return false; }
    double begun = tn__now();
    order_queue orders = {0};
    pthread_mutex_lock(&a->lock);
    node_report report = a->report;
    a->report.text = NULL;
    a->report.ended = (tn__buffer){0};
    pthread_mutex_unlock(&a->lock);

    membership_exchange(&a->job, &report, &orders);
    bool sent = tn_error() == TN_OK;
    pthread_mutex_lock(&a->lock);
    a->contact = sent ? begun : a->contact;
    for (order *o; (o = orders_take(&orders));) {
        orders_add(&a->orders, o);
    }
    bool waits = a->orders.first != NULL;
    pthread_mutex_unlock(&a->lock);
    if (waits) { eventfd_write(a->event, 1); }
    const leader *leads = a->job.leader;
    return sent && (report.state != NODE_LEFT || (leads && !leader_over(leads)));
}

/* There is nothing more to do: an error that is pending ends the job for this node. */
static void end_agent(agent *a) {
    order *last = NULL;
    if (tn_error() != TN_OK) {
        const char *what = a->state == AGENT_JOINED ? "node 0 is lost: " : "";
        last = order_new(ORDER_END, 1, text_new("%s%s", what, error_take().message));
    }
    pthread_mutex_lock(&a->lock);
    if (last) { orders_add(&a->orders, last); }
    a->state = AGENT_ENDED;
    pthread_mutex_unlock(&a->lock);
    eventfd_write(a->event, 1);
}

static void *agent_main(void *user) {
    agent *a = user;
    while (agent_turn(a)) {
        poll(&(struct pollfd){.fd = a->wake, .events = POLLIN}, 1,
             (int)(1e3 * a->options->monitor));
        eventfd_read(a->wake, &(eventfd_t){0});
    }
    end_agent(a);
    return NULL;
}

/* ---- The main thread's side ------------------------------------------------------------------ */

agent *agent_new(const run_options *o) {
    agent *a = memory_new(1, sizeof(*a));
    pthread_mutex_init(&a->lock, NULL);
    a->options = o;
    /* Looking up the name of another host may take long, too. */
    a->threaded = o->node.max > 1 || !tn__host_is_near(o->host);
    a->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    a->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->event < 0 || a->wake < 0 ||
        (a->threaded && pthread_create(&a->thread, NULL, agent_main, a) != 0)) {
        free(a);
        return NULL;
    }
    return a;
}

int agent_event(const agent *a) {
    return a->event;
}

order *agent_order(agent *a) {
    eventfd_read(a->event, &(eventfd_t){0});
    if (!a->threaded && a->state != AGENT_ENDED && !agent_turn(a)) { end_agent(a); }
    pthread_mutex_lock(&a->lock);
    order *o = a->orders.first;
    bool start = o && o->kind == ORDER_START;
    if (start && o->next && o->next->kind == ORDER_END) {
        order_free(orders_take(&a->orders));
        start = false;
    }
    /* Until twice this time the others do not give this node up. */
    bool waits = start && a->threaded && tn__now() - a->contact > a->options->heartbeat / 2;
    o = waits ? NULL : orders_take(&a->orders);
    pthread_mutex_unlock(&a->lock);
    return o;
}

void agent_report(agent *a, node_state state, int round, int code, const char *text) {
    pthread_mutex_lock(&a->lock);
    free(a->report.text);
    a->report.state = state;
    a->report.round = round;
    a->report.code = code;
    a->report.text = text ? text_new("%s", text) : NULL;
    pthread_mutex_unlock(&a->lock);
    eventfd_write(a->wake, 1);
}

void agent_rank_ended(agent *a, const run_round *r, const worker *w) {
    pthread_mutex_lock(&a->lock);
    tn__buffer_format(&a->report.ended, TN__ENDED_KEY " %d %s:%d\n", r->restarts, w->rank, r->world,
                      a->options->node.name, (int)w->pid);
    pthread_mutex_unlock(&a->lock);
    eventfd_write(a->wake, 1);
}

agent_state agent_state_now(agent *a) {
    pthread_mutex_lock(&a->lock);
    agent_state state = a->state;
    pthread_mutex_unlock(&a->lock);
    return state;
}

void agent_free(agent *a) {
    if (a->threaded) { pthread_join(a->thread, NULL); }
    for (order *o; (o = orders_take(&a->orders));) {
        order_free(o);
    }
    membership_end(&a->job);
    tn__buffer_free(&a->report.ended);
    free(a->report.text);
    close(a->event);
    close(a->wake);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
