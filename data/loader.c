/* The loader: examples of a dataset, in a sampler's order, as batches.
 *
 * Batches are numbered through all epochs: number = epoch * batches + index. Which examples a
 * number holds depends on nothing else, so it does not matter who makes it. A pass is
 * `options.epochs` epochs; numbers continue from pass to pass. Without threads tn_loader_next makes
 * the batch itself. With threads, workers claim the numbers of the pass in order and fill the slot
 * `number % prefetch`; a number is claimed only when it is less than `prefetch` ahead of the next
 * to be returned, so its slot is free. One mutex guards all of this; examples are read without
 * holding it. A worker that fails leaves the error in the slot, to be raised when that number is
 * due.
 *
 * How examples become a batch is in collate.c. For a device, copies of the batch are queued as soon
 * as it is made: a worker's batch is being copied long before it is due.
 */
#include "core/alive.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"
#include "core/scope.h"
#include "core/threads.h"
#include "data/collate.h"
#include "data/taken.h"
#include "profile/span.h"
#include "tern/data.h"

#include <pthread.h>
#include <string.h>

typedef struct slot {
    bool ready, failed;
    tn__collated batch;
    tn_error_record error; /* of a failed one */
} slot;

struct tn_loader {
    tn__alive alive;
    /* what is read: this loader's own dataset and sampler, for the default device of the thread
     * that made the loader */
    tn__collator reads;
    tn_loader_options options;
    int64_t examples;  /* of one epoch of this part */
    int64_t batches;   /* of one epoch */
    int64_t pass;      /* of one pass; 0: endless */
    int64_t next;      /* number of the next batch to return */
    int64_t end;       /* one past the last number of this pass; INT64_MAX: endless */
    bool ended;        /* the end was reported: the next call begins another pass */
    tn__collated lent; /* to the caller */
    bool entered;      /* atomic: a thread is in tn_loader_next or tn_loader_seek */

    /* With threads only. */
    uint32_t process; /* the process they run in; 0 without threads */
    pthread_mutex_t lock;
    /* workers wait for something to claim or `stop`, the caller for a slot or for idle workers */
    pthread_cond_t claimable, ready;
    pthread_t *workers;
    int started;
    int busy;        /* workers that are making a batch */
    int64_t claimed; /* the next number a worker takes */
    bool stop;
    slot *slots; /* [prefetch] */
};

TN__ALIVE_LIST(loaders, "loader");

tn_loader_options tn_loader_defaults(void) {
    return (tn_loader_options){.batch = 1, .epochs = 1, .prefetch = 2, .from_defaults = true};
}

/* ---- One thread at a time -------------------------------------------------------------------- */

/* The loader that this thread works for. */
static _Thread_local const tn_loader *worker_of;

/* Refuses a second thread, which would wait forever for the batch that the first one takes, and a
 * worker, which would wait for a batch that it has to make itself. False after raising. */
static bool enter_loader(tn_loader *l, const char *operation) {
    if (!tn__alive_is(&loaders, l, operation) ||
        tn__refuse_inherited(l->process, operation, "a loader with threads")) {
        return false;
    }
    if (worker_of == l || __atomic_exchange_n(&l->entered, true, __ATOMIC_ACQUIRE)) {
        return tn__fail(TN_ESTATE, operation,
                        "the loader is in use, by %s (one thread at a time uses a loader)",
                        worker_of == l ? "the dataset that it reads" : "another call");
    }
    return true;
}

static void leave_loader(tn_loader *l) {
    __atomic_store_n(&l->entered, false, __ATOMIC_RELEASE);
}

/* ---- Making a batch -------------------------------------------------------------------------- */

/* Fills the tensors of `into`, or raises and leaves it empty. */
static void make_batch(const tn_loader *l, int64_t number, tn__collated *into) {
    int64_t epoch = number / l->batches, first = number % l->batches * l->options.batch;
    int64_t left = l->examples - first, count = left < l->options.batch ? left : l->options.batch;
    tn__collate(&l->reads, epoch, first, count, into);
}

/* ---- Workers --------------------------------------------------------------------------------- */

static bool may_claim(const tn_loader *l) {
    return l->claimed < l->end && l->claimed - l->next < l->options.prefetch;
}

static void *worker_run(void *user) {
    tn_loader *l = user;
    worker_of = l;
    tn__quiet(1); /* an error is raised, and handled, when the batch is due */
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (!may_claim(l)) {
            pthread_cond_wait(&l->claimable, &l->lock);
            continue;
        }
        int64_t number = l->claimed++;
        slot *into = &l->slots[number % l->options.prefetch];
        l->busy++;
        pthread_mutex_unlock(&l->lock);

        make_batch(l, number, &into->batch);
        bool failed = tn_error_take(&into->error);

        pthread_mutex_lock(&l->lock);
        into->failed = failed;
        into->ready = true;
        l->busy--;
        pthread_cond_broadcast(&l->ready);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static bool start_workers(tn_loader *l) {
    int failed = 0;
    while (l->started < l->options.threads && !failed) {
        failed = tn__thread_start(&l->workers[l->started], worker_run, l);
        l->started += !failed;
    }
    return !failed || tn__fail(TN_ENOMEM, "loader", "thread %d of %d could not be started: %s",
                               l->started + 1, l->options.threads, strerror(failed));
}

static void stop_workers(tn_loader *l) {
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->claimable);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->started; i++) {
        pthread_join(l->workers[i], NULL);
    }
}

static void empty_slot(slot *s) {
    tn__collated_release(&s->batch);
    s->ready = s->failed = false;
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* Whether an example's dimensions leave one for the batch; if they vary, `length` must be set. */
static bool dims_valid(const tn_dataset *d, tn_dims dims) {
    if (dims.ndim >= TN_MAX_DIMS || (tn__dims_vary(dims) && !d->length)) { return false; }
    if (tn__dims_vary(dims)) { dims.size[0] = 1; }
    return tn_dims_count(dims) >= 0;
}

static bool check_arguments(const tn_dataset *d, const tn_loader_options *o) {
    if (!d) { return tn__fail(TN_EVALUE, "loader", "the dataset is NULL"); }
    if (d->size < 0 || !d->get || !dims_valid(d, d->x_dims) ||
        (d->y_dims.ndim >= 0 && !dims_valid(d, d->y_dims))) {
        return tn__fail(TN_EVALUE, "loader",
                        "the dataset \"%s\" has no get, a negative size or invalid dimensions",
                        d->kind);
    }
    if (!tn__options_made(o->from_defaults, "loader", "tn_loader")) { return false; }
    const char *wrong = TN__BEYOND({"batch", o->batch, 1, 0}, {"epochs", o->epochs, 0, 0},
                                   {"threads", o->threads, 0, 1024},
                                   {"prefetch", o->threads ? o->prefetch : 1, 1, 1024});
    return !wrong || tn__fail(TN_EVALUE, "loader", "%s", wrong);
}

/* The last epoch that a place may have: far enough from INT64_MAX that numbers never overflow. */
static int64_t last_epoch(const tn_loader *l) {
    return INT64_MAX / 4 / l->batches;
}

/* Sizes of an epoch and of a pass. */
static bool count_batches(tn_loader *l) {
    const tn_loader_options *o = &l->options;
    const tn_sampler *s = &l->reads.sampler;
    if (s->kind == TN_SAMPLE_BUCKETED && s->batch != o->batch) {
        return tn__fail(TN_EVALUE, "loader",
                        "batches of %lld, but the sampler makes buckets for %lld",
                        (long long)o->batch, (long long)s->batch);
    }
    l->examples = tn_sampler_count(s, l->reads.dataset->size);
    l->batches = l->examples / o->batch + (!o->drop_last && l->examples % o->batch ? 1 : 0);
    if (l->batches == 0) {
        return tn__fail(TN_EVALUE, "loader", "no batch of %lld in an epoch of %lld examples",
                        (long long)o->batch, (long long)l->examples);
    }
    bool endless = o->epochs == 0 || o->epochs > last_epoch(l);
    l->pass = endless ? 0 : o->epochs * l->batches;
    l->end = endless ? INT64_MAX : l->pass;
    return true;
}

static bool prepare_threads(tn_loader *l) {
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->claimable, NULL);
    pthread_cond_init(&l->ready, NULL);
    if (l->options.threads == 0) { return true; }
    l->process = tn__process();
    l->slots = tn__calloc_for((size_t)l->options.prefetch, sizeof(slot), "loader");
    l->workers = tn__calloc_for((size_t)l->options.threads, sizeof(pthread_t), "loader");
    if (!l->slots || !l->workers) { return false; }
    return start_workers(l);
}

tn_loader *tn_loader_new(tn_dataset *dataset, tn_sampler sampler, tn_loader_options options) {
    tn_loader *l = NULL;
    if (!tn__dataset_take(dataset, "loader")) { return NULL; }
    if (check_arguments(dataset, &options)) { l = tn__calloc_for(1, sizeof(*l), "loader"); }
    if (!l) {
        tn__dataset_give_up(dataset);
        return NULL;
    }
    l->reads.dataset = dataset;
    l->reads.sampler = sampler;
    l->options = options;
    l->reads.device = tn_default_device();
    if (tn_error() != TN_OK || !count_batches(l) ||
        !tn__collator_pads(&l->reads, options.x_pad, options.y_pad)) {
        tn__dataset_give_up(dataset);
        free(l);
        return NULL;
    }
    tn__alive_begin(&loaders, l);
    l->reads.sampler.table = sampler.table ? tn_keep(sampler.table) : NULL;
    if (!prepare_threads(l)) {
        tn_loader_free(l);
        return NULL;
    }
    return l;
}

void tn_loader_free(tn_loader *l) {
    if (!l || !tn__alive_is(&loaders, l, "loader_free") || tn__inherited(l->process) ||
        !enter_loader(l, "loader_free") || !tn__alive_end(&loaders, l, "loader_free")) {
        return;
    }
    stop_workers(l);
    for (int i = 0; l->slots && i < l->options.prefetch; i++) {
        empty_slot(&l->slots[i]);
        tn__stage_free(&l->slots[i].batch.stage);
    }
    tn__collated_release(&l->lent);
    tn__stage_free(&l->lent.stage);
    pthread_cond_destroy(&l->ready);
    pthread_cond_destroy(&l->claimable);
    pthread_mutex_destroy(&l->lock);
    free(l->slots);
    free(l->workers);
    tn__dataset_give_up(l->reads.dataset);
    tn_release(l->reads.sampler.table);
    free(l);
}

/* ---- Use ------------------------------------------------------------------------------------- */

/* Waits for the next number's slot, takes what is in it, and lets the workers continue. */
static void take_slot(tn_loader *l, tn__collated *taken) {
    pthread_mutex_lock(&l->lock);
    slot *s = &l->slots[l->next % l->options.prefetch];
    while (!s->ready) {
        pthread_cond_wait(&l->ready, &l->lock);
    }
    tn__stage_join(&s->batch.stage);
    memcpy(taken->part, s->batch.part, sizeof(taken->part));
    if (s->failed) { tn_error_give(&s->error); }
    memset(s->batch.part, 0, sizeof(s->batch.part));
    s->ready = s->failed = false;
    l->next++;
    pthread_cond_broadcast(&l->claimable);
    pthread_mutex_unlock(&l->lock);
}

/* Whether the pass ends now. This is reported once; the next call begins another pass, and only
 * then can workers claim more, so nothing is read for a pass that never comes. */
static bool end_pass(tn_loader *l) {
    pthread_mutex_lock(&l->lock);
    l->end += l->ended ? l->pass : 0;
    l->ended = !l->ended;
    pthread_cond_broadcast(&l->claimable);
    pthread_mutex_unlock(&l->lock);
    return l->ended;
}

static bool next_batch(tn_loader *l, tn_batch *batch) {
    static const tn_scope this_call = {
        .file = "the loader's next call (it lends a batch until then; tn_keep keeps one)",
        .line = TN__NO_SCOPE};
    const tn_scope *ending = tn__ending(&this_call);
    tn__collated_release(&l->lent);
    tn__ending(ending);
    if (l->next == l->end && end_pass(l)) { return false; }
    int64_t number = l->next;
    if (l->options.threads) {
        take_slot(l, &l->lent);
    } else {
        make_batch(l, number, &l->lent);
        tn__stage_join(&l->lent.stage);
        l->next++;
    }
    tn_tensor *const *part = l->lent.part;
    if (!part[TN__BATCH_X]) { return false; }
    *batch = (tn_batch){.x = part[TN__BATCH_X],
                        .y = part[TN__BATCH_Y],
                        .valid = part[TN__BATCH_VALID],
                        .lengths = part[TN__BATCH_LENGTHS],
                        .y_lengths = part[TN__BATCH_Y_LENGTHS],
                        .epoch = number / l->batches,
                        .index = number % l->batches};
    return true;
}

bool tn_loader_next(tn_loader *l, tn_batch *batch) {
    if (!batch) { return tn__fail(TN_EVALUE, "loader_next", "the batch is NULL"); }
    *batch = (tn_batch){0};
    if (!l || tn_error() != TN_OK || !enter_loader(l, "loader_next")) { return false; }
    tn__span span;
    bool seen = tn__profiled() && tn__span_begin(&span, TN__SPAN_WAIT, "next batch");
    bool more = next_batch(l, batch);
    if (seen) { tn__span_end(&span); }
    leave_loader(l);
    return more;
}

tn_loader_place tn_loader_where(const tn_loader *l) {
    if (!l || !tn__alive_is(&loaders, l, "loader_where")) { return (tn_loader_place){0}; }
    bool at_end = l->next == l->end && !l->ended;
    int64_t epoch = l->next / l->batches - at_end;
    return (tn_loader_place){.epoch = epoch, .index = l->next - epoch * l->batches};
}

bool tn_loader_has(const tn_loader *l, tn_loader_place place) {
    if (!l || !tn__alive_is(&loaders, l, "loader_has") || place.epoch < 0 ||
        place.epoch > last_epoch(l) || place.index < 0) {
        return false;
    }
    bool ends_pass = l->pass && (place.epoch + 1) % l->options.epochs == 0;
    return place.index < l->batches || (place.index == l->batches && ends_pass);
}

tn_status tn_loader_seek(tn_loader *l, tn_loader_place place) {
    if (!tn_loader_has(l, place)) {
        return tn__raise(
            TN_EINDEX, "loader_seek", "batch %lld of epoch %lld, but an epoch has %lld batches",
            (long long)place.index, (long long)place.epoch, (long long)tn_loader_batches(l));
    }
    if (!enter_loader(l, "loader_seek")) { return tn_error(); }
    int64_t number = place.epoch * l->batches + place.index;
    pthread_mutex_lock(&l->lock);
    l->claimed = l->end; /* nothing to claim until busy workers are done */
    while (l->busy) {
        pthread_cond_wait(&l->ready, &l->lock);
    }
    for (int i = 0; l->slots && i < l->options.prefetch; i++) {
        empty_slot(&l->slots[i]);
    }
    l->next = l->claimed = number;
    l->ended = false;
    bool at_end = place.index == l->batches;
    l->end = !l->pass ? INT64_MAX : at_end ? number : (number / l->pass + 1) * l->pass;
    pthread_cond_broadcast(&l->claimable);
    pthread_mutex_unlock(&l->lock);
    leave_loader(l);
    return TN_OK;
}

int64_t tn_loader_batches(const tn_loader *l) {
    return l && tn__alive_is(&loaders, l, "loader_batches") ? l->batches : 0;
}

tn_loader_options tn_loader_options_of(const tn_loader *l) {
    return l && tn__alive_is(&loaders, l, "loader_options_of") ? l->options : tn_loader_defaults();
}

tn_sampler tn_loader_sampler(const tn_loader *l) {
    return l && tn__alive_is(&loaders, l, "loader_sampler") ? l->reads.sampler
                                                            : tn_sequential_sampler();
}

const tn_dataset *tn_loader_dataset(const tn_loader *l) {
    return l && tn__alive_is(&loaders, l, "loader_dataset") ? l->reads.dataset : NULL;
}
