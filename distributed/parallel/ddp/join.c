/* Ranks whose data ends earlier.
 *
 * With options.join every synchronised forward and backward begins with an announcement: each rank
 * says what it is about to do, and learns what the others do. A rank that has joined says 0, and
 * takes part in what the others announce: it takes buffers and the bucket order from the lowest
 * rank still active, and sends zeros as gradients. When all say 0 it is over, and all take the
 * parameters and optimiser state of the last step's lowest rank, since a rank that joined has made
 * fewer steps.
 *
 * An average still divides by the number of ranks, joined ones included.
 */
#include "distributed/on_cpu.h"
#include "distributed/parallel/ddp/ddp.h"

/* ---- Announcements --------------------------------------------------------------------------- */

/* What a rank is about to do: bits. */
enum { FORWARD = 1, RELAYOUT = 2, BUFFERS = 4, BACKWARD = 8 };

bool tn__ddp_join_start(tn_ddp_state *d) {
    if (d->options.join) {
        TN_SCOPE;
        TN__ON_CPU;
        d->join.said = tn_keep(tn_zeros(TN_DIMS(1), TN_I64));
        d->join.heard = tn_keep(tn_zeros(TN_DIMS(tn_group_size(d->base.group), 1), TN_I64));
    }
    return !tn__pending();
}

void tn__ddp_join_finish(tn_ddp_state *d) {
    tn_release(d->join.said);
    tn_release(d->join.heard);
}

static const char *text_of(int64_t what) {
    return what & BACKWARD ? "a backward" : what & FORWARD ? "a forward" : "joined";
}

/* Reads what was received. Returns the lowest active rank, the number of ranks when there is none,
 * -1 after raising: active ranks must all do the same. */
static int first_active(const tn_ddp_state *d) {
    const int64_t *heard = tn_data(d->join.heard);
    int ranks = tn_group_size(d->base.group), first = ranks;
    for (int r = 0; r < ranks; r++) {
        if (heard[r] == 0) { continue; }
        if (first == ranks) {
            first = r;
        } else if (heard[r] != heard[first]) {
            tn__raise(TN_EMISMATCH, "ddp", "rank %d begins %s (%lld), but rank %d begins %s (%lld)",
                      first, text_of(heard[first]), (long long)heard[first], r, text_of(heard[r]),
                      (long long)heard[r]);
            return -1;
        }
    }
    return first;
}

static tn_work *join_say(tn_ddp_state *d, int what) {
    *(int64_t *)tn_data_mut(d->join.said) = what;
    return tn_all_gather(d->base.group, d->join.heard, d->join.said);
}

/* Sends to all ranks and receives from them. Returns like first_active. */
static int announce_now(tn_ddp_state *d, int what) {
    return tn__parallel_wait(join_say(d, what)) == TN_OK ? first_active(d) : -1;
}

int tn__ddp_join_forward(tn_ddp_state *d, bool relayout, bool buffers) {
    if (!d->options.join) { return 0; }
    return announce_now(d, FORWARD | (relayout ? RELAYOUT : 0) | (buffers ? BUFFERS : 0));
}

/* Without waiting: the answer is read at the backward's end. */
bool tn__ddp_join_backward(tn_ddp_state *d) {
    if (d->options.join) { d->join.backward = join_say(d, BACKWARD); }
    return !tn__pending();
}

bool tn__ddp_join_ended(tn_ddp_state *d) {
    if (!d->options.join) { return true; }
    tn_work *w = d->join.backward;
    d->join.backward = NULL;
    d->join.last_active = tn__parallel_wait(w) == TN_OK ? first_active(d) : -1;
    return d->join.last_active >= 0;
}

/* ---- Joining --------------------------------------------------------------------------------- */

/* A backward in which this rank has no gradients: only the others' are summed. */
static bool pass_backward(tn_ddp_state *d) {
    for (int i = 0; i < d->base.count; i++) {
        d->params[i].base.wanted = d->params[i].base.ready = false;
    }
    tn__ddp_expect(d);
    return tn__ddp_complete(d);
}

/* Takes part in what the others do. `root` is the lowest active rank. False after raising. */
static bool take_part(tn_ddp_state *d, int root) {
    int64_t what = ((const int64_t *)tn_data(d->join.heard))[root];
    if (what & RELAYOUT && !tn__ddp_relayout(d, root)) { return false; }
    if (what & BUFFERS && tn__parallel_share(d->base.module, d->base.group, root, false) != TN_OK) {
        return false;
    }
    d->join.last_active = what & BACKWARD ? root : d->join.last_active;
    return !(what & BACKWARD) || pass_backward(d);
}

static bool take_state(const char *name, tn_tensor *state, void *user) {
    const tn_ddp_state *d = user;
    return tn__parallel_wait(tn_broadcast(d->base.group, state, d->join.last_active)) == TN_OK;
}

/* Takes the random number position and the optimiser's step counts. */
static void take_counts(const tn_ddp_state *d, tn_optim *optim) {
    TN_SCOPE;
    TN__ON_CPU;
    tn_generator *generator = tn_default_generator();
    int64_t counts[] = {(int64_t)generator->stream, tn_optim_steps(optim)};
    tn_tensor *t = TN_FROM(counts, TN_DIMS(2), TN_I64);
    if (tn__parallel_wait(tn_broadcast(d->base.group, t, d->join.last_active)) == TN_OK) {
        tn_copy_out(t, counts);
        generator->stream = (uint64_t)counts[0];
        generator->call = 0;
        tn__round_begin(d->base.strategy.round);
        tn_optim_set_steps(optim, counts[1]);
    }
}

/* Takes the state of the last rank that trained. */
static void take_over(tn_ddp_state *d, tn_optim *optim) {
    tn__parallel_share(d->base.module, d->base.group, d->join.last_active, true);
    if (!tn__pending()) { tn_optim_each(optim, take_state, d); }
    take_counts(d, optim);
    d->base.buffers_due = true;
}

tn_status tn_ddp_join(tn_ddp_state *d, tn_optim *optim) {
    if (!d) {
        return tn__raise(TN_EVALUE, "ddp_join", "the state is NULL (it is what tn_ddp returned)");
    }
    if (!d->options.join) { return tn__raise(TN_ESTATE, "ddp_join", "the option join is false"); }
    if (d->base.running || tn_in_backward()) {
        return tn__raise(TN_ESTATE, "ddp_join", "called inside a backward");
    }
    int ranks = tn_group_size(d->base.group), root = 0;
    while (!tn__pending() && root < ranks) {
        root = announce_now(d, 0);
        if (root < 0 || (root < ranks && !take_part(d, root))) { break; }
    }
    if (!tn__pending()) { take_over(d, optim); }
    if (tn__pending()) { tn__parallel_give_up(&d->base, tn_error_message()); }
    return tn_error();
}
