/* Between the main thread and the job: this node's state goes out, orders come in.
 *
 * On one host each call does that at once: the leader is a plain function. On several a thread
 * talks to the store, several times a second. The two threads share the fields under the lock,
 * which is not held during calls to the store: so the main thread never waits for the network.
 */
#include "tools/run_members.h"

#include "distributed/init/members.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ENDED_AT_ONCE = 64 }; /* ranks told of between two heartbeats */

/* A rank that has succeeded: a key for the other ranks. */
typedef struct ended_rank {
    struct ended_rank *next;
    char *key, *text;
} ended_rank;

struct agent {
    const run_options *options;
    membership job; /* the thread's */
    bool threaded;
    pthread_t thread;
    int event; /* for the main thread */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    order *first_order, **last_order; /* for the main thread */
    node_report report;
    bool changed;   /* since the last heartbeat */
    double contact; /* when the last turn began that went well */
    ended_rank *first_ended, **last_ended;
    char *end; /* set: ends the job, with end_code */
    int end_code;
    bool joined, leads, ended;
};

/* ---- Orders for the main thread -------------------------------------------------------------- */

static void queue_order(agent *a, order *o) {
    pthread_mutex_lock(&a->lock);
    *a->last_order = o;
    a->last_order = &o->next;
    pthread_mutex_unlock(&a->lock);
    set_event(a->event);
}

/* The agent has nothing more to do: the error that is pending ends the job for this node. */
static void end_agent(agent *a) {
    if (tn_error() != TN_OK) {
        bool lost = a->joined && !a->leads;
        char *why = error_take();
        order *o = memory_new(1, sizeof(*o));
        *o = (order){.kind = ORDER_END, .number = 1};
        o->text = text_new("%s%s", lost ? "node 0 is lost: " : "", why);
        free(why);
        queue_order(a, o);
    }
    pthread_mutex_lock(&a->lock);
    a->ended = true;
    pthread_mutex_unlock(&a->lock);
    set_event(a->event);
}

/* ---- Turns ----------------------------------------------------------------------------------- */

static ended_rank *next_ended(agent *a) {
    pthread_mutex_lock(&a->lock);
    ended_rank *e = a->first_ended;
    if (e) {
        a->first_ended = e->next;
        a->last_ended = a->first_ended ? a->last_ended : &a->first_ended;
    }
    pthread_mutex_unlock(&a->lock);
    return e;
}

static void ended_free(ended_rank *e) {
    free(e->key);
    free(e->text);
    free(e);
}

/* Writes where tn_dist_init of the other ranks looks. */
static void send_ended(agent *a) {
    ended_rank *e;
    for (int i = 0; i < ENDED_AT_ONCE && (e = next_ended(a)); i++) {
        membership_set(&a->job, e->key, e->text);
        ended_free(e);
    }
}

static node_report take_report(agent *a, char **end) {
    pthread_mutex_lock(&a->lock);
    node_report r = a->report;
    *end = a->end;
    a->report.text = a->end = NULL;
    a->changed = false;
    pthread_mutex_unlock(&a->lock);
    return r;
}

static void record_contact(agent *a, double when) {
    pthread_mutex_lock(&a->lock);
    a->contact = when;
    bool waits = a->first_order != NULL;
    pthread_mutex_unlock(&a->lock);
    if (waits) {
        set_event(a->event);
    }
}

/* False when nothing more is to be sent, or an error is pending. */
static bool agent_turn(agent *a) {
    double begun = tn__now();
    char *end;
    node_report r = take_report(a, &end);
    leader *leads = a->job.leader;
    send_ended(a);
    membership_report(&a->job, &r);
    if (leads && end) {
        leader_end(leads, a->end_code, end);
    }
    if (leads) {
        membership_lead(&a->job);
    }
    for (order *o; (o = membership_order(&a->job));) {
        queue_order(a, o);
    }
    free(r.text);
    free(end);
    if (tn_error() != TN_OK) {
        return false;
    }
    record_contact(a, begun);
    return r.state != NODE_LEFT || (leads && !leader_over(leads));
}

static void begin_membership(agent *a) {
    membership_begin(&a->job, a->options);
    pthread_mutex_lock(&a->lock);
    a->joined = tn_error() == TN_OK;
    a->leads = a->joined && a->job.leader;
    a->contact = tn__now();
    pthread_mutex_unlock(&a->lock);
}

static void pause_until_next(agent *a) {
    struct timespec until = tn__timespec(tn__now() + a->options->monitor);
    pthread_mutex_lock(&a->lock);
    while (!a->changed && pthread_cond_timedwait(&a->wake, &a->lock, &until) != ETIMEDOUT) {
    }
    pthread_mutex_unlock(&a->lock);
}

static void *agent_main(void *user) {
    agent *a = user;
    begin_membership(a);
    while (a->joined && agent_turn(a)) {
        pause_until_next(a);
    }
    end_agent(a);
    return NULL;
}

/* ---- The main thread's side ------------------------------------------------------------------ */

agent *agent_new(const run_options *o) {
    agent *a = memory_new(1, sizeof(*a));
    tn__condition_init(&a->wake);
    pthread_mutex_init(&a->lock, NULL);
    a->options = o;
    a->last_order = &a->first_order;
    a->last_ended = &a->first_ended;
    a->threaded = o->max_nodes > 1;
    a->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->event < 0 || (a->threaded && pthread_create(&a->thread, NULL, agent_main, a) != 0)) {
        free(a);
        return NULL;
    }
    if (!a->threaded) {
        begin_membership(a);
        if (!a->joined) {
            end_agent(a);
        }
    }
    return a;
}

int agent_event(const agent *a) {
    return a->event;
}

static order *take_order(agent *a) {
    order *o = a->first_order;
    if (o) {
        a->first_order = o->next;
        a->last_order = a->first_order ? a->last_order : &a->first_order;
    }
    return o;
}

order *agent_order(agent *a) {
    drain_event(a->event);
    if (!a->threaded && !a->ended && !agent_turn(a)) {
        end_agent(a);
    }
    pthread_mutex_lock(&a->lock);
    order *o = a->first_order;
    bool start = o && o->kind == ORDER_START;
    if (start && o->next && o->next->kind == ORDER_END) {
        order_free(take_order(a));
        start = false;
    }
    /* Until twice this time the others do not give this node up. */
    bool waits = start && a->threaded && tn__now() - a->contact > a->options->heartbeat / 2;
    o = waits ? NULL : take_order(a);
    pthread_mutex_unlock(&a->lock);
    return o;
}

run_round agent_round(const agent *a, const order *o) {
    run_round r = order_round(o, a->job.id);
    r.store = a->job.place;
    return r;
}

static void wake_thread(agent *a) {
    a->changed = true;
    pthread_cond_signal(&a->wake);
}

void agent_report(agent *a, node_state state, int round, int code, const char *text) {
    pthread_mutex_lock(&a->lock);
    free(a->report.text);
    a->report = (node_report){state, round, code, text ? text_new("%s", text) : NULL};
    wake_thread(a);
    pthread_mutex_unlock(&a->lock);
}

void agent_rank_ended(agent *a, const run_round *r, const worker *w) {
    ended_rank *e = memory_new(1, sizeof(*e));
    e->key = text_new(TN__ENDED_KEY, r->restarts, w->rank);
    e->text = text_new("%d %s:%d", r->world, a->options->node_name, (int)w->pid);
    pthread_mutex_lock(&a->lock);
    *a->last_ended = e;
    a->last_ended = &e->next;
    wake_thread(a);
    pthread_mutex_unlock(&a->lock);
}

void agent_end_job(agent *a, int code, const char *text) {
    pthread_mutex_lock(&a->lock);
    free(a->end);
    a->end = text_new("%s", text);
    a->end_code = code;
    wake_thread(a);
    pthread_mutex_unlock(&a->lock);
}

/* One of the flags. */
static bool read_flag(agent *a, const bool *flag) {
    pthread_mutex_lock(&a->lock);
    bool set = *flag;
    pthread_mutex_unlock(&a->lock);
    return set;
}

bool agent_leads(agent *a) {
    return read_flag(a, &a->leads);
}

bool agent_joined(agent *a) {
    return read_flag(a, &a->joined);
}

bool agent_ended(agent *a) {
    return read_flag(a, &a->ended);
}

void agent_free(agent *a) {
    if (a->threaded) {
        pthread_join(a->thread, NULL);
    }
    for (order *o; (o = take_order(a));) {
        order_free(o);
    }
    for (ended_rank *e; (e = next_ended(a));) {
        ended_free(e);
    }
    membership_end(&a->job);
    free(a->report.text);
    free(a->end);
    close(a->event);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->wake);
    free(a);
}
