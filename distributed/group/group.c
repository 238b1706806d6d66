/* Groups: making and ending them, and what happens at the first failure.
 *
 * A group with one rank has no engine, no thread and no store: its operations are copies. Otherwise
 * ranks meet through a store under a prefix of the group's own, which the engine uses to connect,
 * and the group uses when something fails: a rank that reports nothing is missing.
 */
#include "distributed/group/fingerprint.h"
#include "distributed/store/store.h"

#include "core/error.h"
#include "core/memory.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

TN__ALIVE_LIST(groups, "group");

/* False after raising: g was freed. What it points to is not read. */
static bool is_alive(const tn_group *g, const char *operation) {
    return tn__alive_is(&groups, g, operation);
}

/* ---- Making ---------------------------------------------------------------------------------- */

static int *world_ranks(const int *world, int ranks) {
    int *copy = tn__malloc((size_t)ranks * sizeof(int));
    for (int r = 0; copy && r < ranks; r++) {
        copy[r] = world ? world[r] : r;
    }
    return copy;
}

static tn_group *group_alloc(const char *name, int rank, int ranks, const int *world,
                             const tn_dist_options *options) {
    tn_group *g = tn__calloc(1, sizeof(*g));
    int *copy = world_ranks(world, ranks);
    if (!g || !copy) {
        free(g);
        free(copy);
        return tn__fail_null(TN_ENOMEM, name, "out of memory for a group");
    }
    snprintf(g->name, sizeof(g->name), "%s", name);
    g->process = tn__process();
    g->rank = rank;
    g->size = ranks;
    g->world = copy;
    g->options = options ? *options : tn_dist_defaults();
    if (g->options.interface) {
        snprintf(g->interface, sizeof(g->interface), "%s", g->options.interface);
        g->options.interface = g->interface;
    }
    g->options.init = g->options.engine = NULL; /* the caller's strings */
    pthread_mutex_init(&g->lock, NULL);
    tn__condition_init(&g->changed);
    tn__alive_begin(&groups, g);
    return g;
}

/* Joins the engine and starts the thread. */
static bool connect_ranks(tn_group *g, const char *engine) {
    tn_engine_options o = {.store = g->store,
                           .rank = g->rank,
                           .ranks = g->size,
                           .deadline = tn__now() + g->options.timeout,
                           .timeout = g->options.timeout,
                           .interface = g->options.interface,
                           .device = tn_default_device()};
    char name[64];
    snprintf(name, sizeof(name), "%s%s", engine, strchr(engine, '+') ? "" : "+staged");
    tn__quiet(1);
    tn_engine *e = tn_engine_new(name, &o);
    tn__engine_ref *ref = e ? tn__calloc_for(1, sizeof(*ref), NULL) : NULL;
    bool compares = ref && g->options.checked;
    g->prints = compares ? tn__calloc_for((size_t)g->size, sizeof(*g->prints), NULL) : NULL;
    tn__quiet(-1);
    if (!ref || (compares && !g->prints)) {
        if (e) { e->destroy(e); }
        free(ref);
        tn__raise_again(NULL, "group %s, rank %d of %d, engine %s", g->name, g->rank, g->size,
                        engine);
        return false;
    }
    g->engine = ref;
    *ref = (tn__engine_ref){.engine = e, .refs = 1, .process = tn__process()};
    snprintf(g->engine_name, sizeof(g->engine_name), "%s", engine);
    return tn__group_start(g);
}

tn_group *tn__group_create(const char *name, const char *engine, tn_store *store, int rank,
                           int ranks, const int *world, const tn_dist_options *options) {
    tn_group *g = group_alloc(name, rank, ranks, world, options);
    if (!g || ranks == 1 || rank < 0) { return g; }
    g->store = g->reports = store;
    __atomic_fetch_add(&store->refs, 2, __ATOMIC_RELAXED);
    if (!connect_ranks(g, engine)) {
        tn_group_free(g);
        return NULL;
    }
    return g;
}

/* ---- Ending ---------------------------------------------------------------------------------- */

static void engine_drop(tn__engine_ref *e) {
    if (e && __atomic_sub_fetch(&e->refs, 1, __ATOMIC_ACQ_REL) == 0) {
        e->engine->destroy(e->engine);
        free(e);
    }
}

void tn_group_free(tn_group *g) {
    if (!g) { return; }
    if (g == tn_world()) {
        tn__raise(TN_ESTATE, "group_free", "the world belongs to the library: tn_dist_finish");
        return;
    }
    if (tn__pending()) { /* peers may wait for operations that this rank will not do any more */
        tn_group_abort(g, tn_error_message());
    }
    if (!tn__alive_end(&groups, g, "group_free") || tn__group_inherited(g)) { return; }
    tn__group_stop(g);
    /* tensors of tn_group_empty may still hold the engine */
    if (g->engine && g->engine->engine->leave) { g->engine->engine->leave(g->engine->engine); }
    engine_drop(g->engine);
    tn_store_free(g->store);
    tn_store_free(g->reports);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g->prints);
    free(g->world);
    free(g);
}

/* ---- Failure --------------------------------------------------------------------------------- */

/* Ranks in the world, each once. */
typedef struct suspects {
    int *ranks;
    int64_t count, capacity;
} suspects;

static void add_suspects(suspects *s, const int *ranks, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int64_t k = 0;
        while (k < s->count && s->ranks[k] != ranks[i]) {
            k++;
        }
        if (k == s->count && tn__grow(&s->ranks, k + 1, &s->capacity, sizeof(int), NULL)) {
            s->ranks[s->count++] = ranks[i];
        }
    }
}

/* Appends to `text` which ranks are missing. Each rank that fails reports the members of the group
 * in which it does. So a rank that waits for one that itself waits in another group learns about
 * that group, and so on; a rank that is waited for and has not reported within a second is missing.
 * A report stays, even if the rank continues after the failure. */
static void tell_missing(tn_group *g, char *text, size_t text_size) {
    static const double patience = 1, least = 0.1;
    enum { SHOWN = 8 };
    tn_store *s = g->reports;
    char key[64], why[TN_STORE_WHY];
    double deadline = tn__now() + patience;
    size_t length = strlen(text), bytes = (size_t)g->size * sizeof(int);
    int me = g->world[g->rank], missing = 0;
    snprintf(key, sizeof(key), "failed/%d", me);
    if (tn__store_put(s, key, g->world, bytes, deadline, why) != TN_OK) {
        snprintf(text + length, text_size - length, "; the store does not answer either: %s", why);
        return;
    }
    suspects asked = {0};
    bool answers = true;
    add_suspects(&asked, g->world, (size_t)g->size);
    for (int64_t i = 0; i < asked.count && answers && missing < SHOWN && length < text_size; i++) {
        double until = fmax(deadline, tn__now() + least);
        tn_store_call c = {.kind = TN_STORE_GET, .key = key, .deadline = until};
        snprintf(key, sizeof(key), "failed/%d", asked.ranks[i]);
        if (asked.ranks[i] == me) { continue; }
        if (s->run(s, &c) == TN_OK) {
            add_suspects(&asked, c.value.data, c.value.bytes / sizeof(int));
        } else { /* before its time: the rank that serves the store has ended */
            answers = tn__now() >= until;
            length += (size_t)snprintf(text + length, text_size - length, "%s %d",
                                       missing++ ? "," : "; no sign of world rank", asked.ranks[i]);
        }
        free(c.value.data);
    }
    free(asked.ranks);
}

/* What a rank said when it gave up; "" if none did. */
static void read_abort(tn_store *s, double deadline, char *text, size_t text_size) {
    tn_store_call check = {.kind = TN_STORE_CHECK, .key = "abort", .deadline = deadline},
                  get = {.kind = TN_STORE_GET, .key = "abort", .deadline = deadline};
    *text = 0;
    if (s->run(s, &check) == TN_OK && check.number && s->run(s, &get) == TN_OK) {
        snprintf(text, text_size, "%.*s", (int)get.value.bytes, (const char *)get.value.data);
    }
    free(get.value.data);
}

/* " (world ranks 1, 3)"; nothing where the group counts as the world does. */
static void tell_members(const tn_group *g, char *text, size_t text_size) {
    enum { SHOWN = 8 };
    int last = g->size - 1;
    size_t length = 0;
    *text = 0;
    for (int r = 0; r <= last && g->world[last] != last; r++) {
        bool skips = g->size > SHOWN && r == SHOWN - 1;
        r = skips ? last : r;
        length += (size_t)snprintf(text + length, text_size - length, "%s%d%s",
                                   r == 0  ? " (world ranks "
                                   : skips ? ", ..., "
                                           : ", ",
                                   g->world[r], r == last ? ")" : "");
    }
}

/* A group of one rank has no engine. */
static const char *engine_shown(const tn_group *g) {
    return *g->engine_name ? g->engine_name : "self";
}

/* Sets the reason unless there is one. Returns whether it did. */
static bool set_dead(tn_group *g, tn_status status, const char *why) {
    char members[160];
    tell_members(g, members, sizeof(members));
    pthread_mutex_lock(&g->lock);
    bool first = g->dead == TN_OK;
    if (first) {
        snprintf(g->reason, sizeof(g->reason), "group %s (%s), rank %d of %d%s: %.800s", g->name,
                 engine_shown(g), g->rank, g->size, members, why);
        g->dead = status;
        pthread_cond_broadcast(&g->changed);
    }
    pthread_mutex_unlock(&g->lock);
    return first;
}

/* Whether ranks of g may be waiting in another group. */
static bool may_wait_elsewhere(const tn_group *g) {
    return g->children > 0 || g->reports != g->store;
}

void tn__group_fail(tn_group *g, tn_status status, const char *why) {
    char aborted[512], text[1024];
    tn_engine *e = g->engine ? g->engine->engine : NULL;
    snprintf(text, sizeof(text), "%s", why);
    if (e) { e->abort(e, why); /* the others must fail too before they can report themselves */ }
    if (e && e->vague) {
        read_abort(g->store, tn__now() + 1, aborted, sizeof(aborted));
        if (*aborted) {
            bool told = strstr(why, aborted) != NULL;
            snprintf(text, sizeof(text), "%s%s%s", why, told ? "" : "; ", told ? "" : aborted);
        } else if (status == TN_EPEER) {
            tell_missing(g, text, sizeof(text));
        }
    } else if (e && may_wait_elsewhere(g) && strstr(why, "timed out")) {
        tell_missing(g, text, sizeof(text));
    }
    if (set_dead(g, status, text)) { tn__flight_save(g->world[g->rank], g->reason); }
}

/* The failure of another group that a reason quotes, or the reason: "group A, …: rank 0 gave up:
 * group B, …: rank 1 has died" is passed on without A. */
static const char *first_cause(const char *reason) {
    static const char says[] = " gave up: ";
    const char *quoted = strstr(reason, says);
    return quoted && strstr(quoted, "), rank ") ? quoted + strlen(says) : reason;
}

static void give_up(tn_group *g, const char *reason) {
    if (g->rank < 0 || tn__group_inherited(g)) { return; }
    char text[512];
    snprintf(text, sizeof(text), "rank %d gave up: %s", g->rank, first_cause(reason));
    if (!set_dead(g, TN_EPEER, text) || !g->engine) { return; }
    tn_engine *e = g->engine->engine;
    if (e->vague) { tn__store_put(g->store, "abort", text, strlen(text), tn__now() + 1, NULL); }
    e->abort(e, text);
}

/* After an error of its own, one rank alone goes on when that is cleared, as with NULL. */
void tn_group_abort(tn_group *g, const char *reason) {
    if (g && is_alive(g, "group_abort") && !(g->size == 1 && tn__pending())) {
        give_up(g, reason ? reason : "no reason given");
    }
}

void tn__groups_abort(const tn_group *root, const char *reason) {
    pthread_mutex_lock(&groups.lock);
    for (tn_group *g = tn__alive_first(&groups); g; g = tn__alive_after(g)) {
        if (g->reports == root->reports) { give_up(g, reason); }
    }
    pthread_mutex_unlock(&groups.lock);
}

bool tn__group_inherited(const tn_group *g) {
    return g->engine && tn__inherited(g->process);
}

bool tn__group_refuse_inherited(const tn_group *g, const char *operation) {
    char what[80];
    snprintf(what, sizeof(what), "group %s", g->name);
    return g->engine && tn__refuse_inherited(g->process, operation, what);
}

bool tn__group_usable(tn_group *g, const char *operation) {
    if (!is_alive(g, operation)) { return false; }
    if (tn__pending()) {
        tn_group_abort(g, tn_error_message());
        return false;
    }
    if (tn__group_refuse_inherited(g, operation)) { return false; }
    if (g->rank < 0) {
        return tn__fail(TN_ESTATE, operation, "this rank is not a member of group %s", g->name);
    }
    if (!g->owned) {
        g->owned = true;
        g->owner = pthread_self();
    }
    if (!pthread_equal(g->owner, pthread_self())) {
        return tn__fail(
            TN_ESTATE, operation,
            "group %s is used by another thread (a group belongs to the first thread that "
            "calls an operation; make one for each with tn_group_new)",
            g->name);
    }
    pthread_mutex_lock(&g->lock);
    tn_status dead = g->dead;
    pthread_mutex_unlock(&g->lock);
    if (dead != TN_OK) { tn__raise(dead, operation, "%s", g->reason); }
    return dead == TN_OK;
}

/* ---- Queries --------------------------------------------------------------------------------- */

int tn_group_rank(const tn_group *g) {
    return g && is_alive(g, "group_rank") ? g->rank : 0;
}

int tn_group_size(const tn_group *g) {
    return g && is_alive(g, "group_size") ? g->size : 1;
}

const char *tn_group_name(const tn_group *g) {
    return g && is_alive(g, "group_name") ? g->name : "self";
}

const char *tn_group_engine(const tn_group *g) {
    return g && is_alive(g, "group_engine") ? engine_shown(g) : "self";
}

int tn_group_world_rank(const tn_group *g, int rank) {
    if (g && !is_alive(g, "group_world_rank")) { return -1; }
    if (rank < 0 || rank >= tn_group_size(g)) {
        tn__raise(TN_EINDEX, "group_world_rank", "rank %d, but group %s has ranks 0 … %d", rank,
                  tn_group_name(g), tn_group_size(g) - 1);
        return -1;
    }
    return g ? g->world[rank] : rank;
}

void tn_group_set_timeout(tn_group *g, double seconds) {
    if (!(seconds > 0 && seconds <= TN__TIMEOUT_MOST)) {
        tn__raise(TN_EVALUE, "group_set_timeout", "%g seconds (above 0, at most %g)", seconds,
                  TN__TIMEOUT_MOST);
    } else if (g && is_alive(g, "group_set_timeout") &&
               !tn__group_refuse_inherited(g, "group_set_timeout")) {
        pthread_mutex_lock(&g->lock);
        g->options.timeout = seconds;
        pthread_mutex_unlock(&g->lock);
    }
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void release_memory(void *data, void *user) {
    tn__engine_ref *e = user;
    if (!tn__inherited(e->process)) {
        e->engine->free(e->engine, data);
        engine_drop(e);
    }
}

static void release_device_memory(void *data, void *user) {
    tn__engine_ref *e = user;
    if (!tn__inherited(e->process)) {
        e->engine->device_free(e->engine, data);
        engine_drop(e);
    }
}

/* The group's memory on this device as a tensor; inert after raising. */
static tn_tensor *wrap_memory(tn_group *g, tn_device device, void *memory, tn_dims dims,
                              tn_dtype dtype) {
    bool on_cpu = device.kind == TN_CPU;
    __atomic_fetch_add(&g->engine->refs, 1, __ATOMIC_RELAXED);
    tn_tensor *t = tn_from_memory(memory, dims, dtype,
                                  on_cpu ? release_memory : release_device_memory, g->engine);
    if (tn_is_inert(t)) {
        (on_cpu ? release_memory : release_device_memory)(memory, g->engine);
    } else {
        t->storage->device = device;
    }
    return t;
}

tn_tensor *tn_group_empty_on(tn_group *g, tn_device device, tn_dims dims, tn_dtype dtype) {
    size_t bytes;
    if (g && !tn__group_usable(g, "group_empty")) { return tn_inert(); }
    if (!tn__device_exists(device, "group_empty") ||
        !tn__bytes_of(dims, dtype, &bytes, "group_empty")) {
        return tn_inert();
    }
    const tn_engine *e = g && g->engine ? g->engine->engine : NULL;
    bool has_memory = e && (device.kind == TN_CPU ? e->alloc != NULL : e->device_alloc != NULL);
    void *memory = has_memory && bytes > 0 ? tn__group_alloc(g, device, bytes) : NULL;
    if (tn__pending()) { return tn_inert(); }
    return memory ? wrap_memory(g, device, memory, dims, dtype) : tn_empty_on(device, dims, dtype);
}

tn_tensor *tn_group_empty(tn_group *g, tn_dims dims, tn_dtype dtype) {
    return tn_group_empty_on(g, tn_default_device(), dims, dtype);
}
