/* Messages between neighbours of a pipeline.
 *
 * Both sides know the schedule, so both know in what order a rank sends. A rank posts its receives
 * in the order of the *sender's* row, a few ahead of their use, and keeps messages that come early;
 * sends are in groups of their own. So no send waits for a receive, whatever the schedule.
 *
 * The first output that crosses a boundary in a step is preceded by a header: shape, dtype, how
 * many random numbers were drawn before it, and which call the sender is in. The step's other
 * outputs have the same shape and dtype, and so do the gradients that come back.
 */
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/pipeline/pipeline.h"
#include "tensor/tensor.h"

#include <stdlib.h>

typedef struct header {
    tn__pipe_boundary boundary;
    int64_t micros, backward; /* the sender's call */
} header;

/* ---- Making ---------------------------------------------------------------------------------- */

/* The other rank of a group of two. */
static int other_rank(const tn_group *g) {
    return 1 - tn_group_rank(g);
}

/* Makes the groups from each rank to the next, and back. The last rank has a next one only with
 * several stages a rank: rank 0's then follow its own. */
bool tn__pipe_links_make(tn_pipeline *p) {
    int ranks = tn_group_size(p->group), rank = tn_group_rank(p->group);
    int links = ranks == 1 ? 0 : p->stages > ranks ? ranks : ranks - 1;
    for (int i = 0; i < links && !tn__pending(); i++) {
        int next = (i + 1) % ranks, two[] = {i, next};
        tn_group *outputs = tn_group_new(p->group, two, 2);
        tn_group *gradients = outputs ? tn_group_new(p->group, two, 2) : NULL;
        if (rank == i) {
            p->outputs_to = outputs;
            p->gradients.group = gradients;
        } else if (rank == next) {
            p->outputs.group = outputs;
            p->gradients_to = gradients;
        } else {
            tn_group_free(outputs);
            tn_group_free(gradients);
        }
    }
    return !tn__pending();
}

static void inbox_free(tn__pipe_inbox *b) {
    for (int i = 0; i < b->posted && b->tensors; i++) {
        tn_work_wait(b->works[i], 0);
        tn_release(b->tensors[i]);
    }
    free(b->order);
    free(b->works);
    free(b->tensors);
    *b = (tn__pipe_inbox){.group = b->group};
}

/* Those that compute a stage together wait for each other too (tn_tensor_parallel, tn_fsdp). */
static bool abort_parts(const tn_entry *entry, void *unused) {
    for (const tn_parts *parts = entry->parts; parts; parts = parts->next) {
        if (parts->sum == tn__parallel_sum_parts) {
            tn_group_abort(parts->group, tn_error_message());
        }
    }
    return true;
}

void tn__pipe_abort(const tn_pipeline *p) {
    tn_group *const groups[] = {p->group, p->outputs_to, p->gradients_to, p->outputs.group,
                                p->gradients.group};
    for (int i = 0; i < (int)(sizeof(groups) / sizeof(*groups)); i++) {
        tn_group_abort(groups[i], tn_error_message());
    }
    for (int i = 0; i < p->tie_count; i++) {
        tn_group_abort(p->ties[i].group, tn_error_message());
    }
    tn_group_abort(p->module->lists->loss.sequence, tn_error_message());
    tn_module_each(p->module, (tn_walk){0}, abort_parts, NULL);
}

void tn__pipe_links_free(tn_pipeline *p) {
    tn_group_free(p->outputs_to);
    tn_group_free(p->gradients_to);
    tn_group_free(p->outputs.group);
    tn_group_free(p->gradients.group);
}

/* ---- A step ---------------------------------------------------------------------------------- */

/* Lists what rank `from` sends: its stages' outputs to the next stages, or gradients to the ones
 * before. False after raising. */
static bool expect_from(tn__pipe_inbox *b, const tn_pipe_schedule *s, int from, bool outputs) {
    size_t most = (size_t)s->counts[from];
    b->order = tn__calloc_for(most, sizeof(*b->order), "pipeline");
    b->works = tn__calloc_for(most, sizeof(*b->works), "pipeline");
    b->tensors = tn__calloc_for(most, sizeof(tn_tensor *), "pipeline");
    for (int i = 0; i < s->counts[from] && !tn__pending(); i++) {
        tn_pipe_action a = s->rows[from][i];
        bool sends = outputs ? a.what == 'F' : a.what == 'B' || a.what == 'I';
        int boundary = outputs ? a.stage : a.stage - 1;
        if (sends && boundary >= 0 && boundary + 1 < s->stages) {
            b->order[b->count++] = (tn_pipe_action){a.what, boundary, a.micro};
        }
    }
    return !tn__pending();
}

static bool find_device(const tn_entry *entry, void *user) {
    *(tn_device *)user = tn_device_of(*entry->field);
    return false;
}

tn_device tn__pipe_device(const tn_pipeline *p) {
    tn_device device = tn_default_device();
    tn_module_each(p->module, (tn_walk){0}, find_device, &device);
    return device;
}

bool tn__pipe_links_begin(tn_pipeline *p, tn__pipe_sends *sends) {
    p->device = tn__pipe_device(p);
    const tn_pipe_schedule *s = p->schedule;
    int rank = tn_group_rank(p->group), before = (rank + s->ranks - 1) % s->ranks;
    size_t most = 2 * (size_t)s->counts[rank]; /* with headers */
    *sends = (tn__pipe_sends){.works = tn__calloc_for(most, sizeof(*sends->works), "pipeline")};
    for (int i = 0; i < p->stages; i++) {
        p->boundaries[i].known = false;
    }
    return sends->works && (!p->outputs.group || expect_from(&p->outputs, s, before, true)) &&
           (!p->backward || !p->gradients.group ||
            expect_from(&p->gradients, s, (rank + 1) % s->ranks, false));
}

void tn__pipe_links_end(tn_pipeline *p, tn__pipe_sends *sends) {
    for (; sends->done < sends->count; sends->done++) {
        tn_work_wait(sends->works[sends->done], 0);
    }
    free(sends->works);
    inbox_free(&p->outputs);
    inbox_free(&p->gradients);
}

/* ---- Sending --------------------------------------------------------------------------------- */

static void send_tensor(tn_group *g, tn__pipe_sends *sends, tn_tensor *t) {
    while (sends->done < sends->count && tn_work_done(sends->works[sends->done])) {
        tn_work_wait(sends->works[sends->done++], 0); /* releases the tensor */
    }
    tn_work *w = tn_send(g, tn_contiguous(tn_detach(t)), other_rank(g));
    if (w) { sends->works[sends->count++] = w; }
}

static void send_header(const tn_pipeline *p, tn__pipe_sends *sends, const tn__pipe_boundary *b) {
    TN_SCOPE;
    TN__ON_CPU;
    const header h = {*b, p->schedule->micros, p->backward};
    send_tensor(p->outputs_to, sends, tn_from_data(&h, TN_DIMS(sizeof(h)), TN_U8));
}

void tn__pipe_send_output(tn_pipeline *p, tn__pipe_sends *sends, int boundary, tn_tensor *y) {
    tn__pipe_boundary *b = &p->boundaries[boundary];
    if (!b->known) {
        b->known = true;
        b->dims = tn_shape(y);
        b->dtype = tn_dtype_of(y);
        send_header(p, sends, b);
    } else if (!tn_dims_equal(b->dims, tn_shape(y)) || b->dtype != tn_dtype_of(y)) {
        tn__raise(TN_ESHAPE, "pipeline",
                  "stage %d gives %s, and gave %s for the step's first micro-batch (all need one "
                  "shape; a loader's option drop_last leaves out an epoch's short batch)",
                  boundary, tn_shape_text(y), tn__dims_text(b->dims));
    }
    if (!tn__pending()) { send_tensor(p->outputs_to, sends, y); }
}

void tn__pipe_send_gradient(tn_pipeline *p, tn__pipe_sends *sends, tn_tensor *dy) {
    send_tensor(p->gradients_to, sends, dy);
}

/* ---- Receiving ------------------------------------------------------------------------------- */

/* Ranks that are not in the same call would wait for messages that never come. False after raising.
 */
static bool same_call(const tn_pipeline *p, int64_t micros, int64_t backward) {
    static const char *const calls[] = {"measures the loss", "runs a step"};
    if (micros == p->schedule->micros && backward == p->backward) { return true; }
    int rank = tn_group_rank(p->group), ranks = tn_group_size(p->group);
    return tn__fail(TN_EMISMATCH, "pipeline",
                    "rank %d %s of %lld micro-batches, and rank %d %s of %d",
                    (rank + ranks - 1) % ranks, calls[backward != 0], (long long)micros, rank,
                    calls[p->backward], p->schedule->micros);
}

static void receive_header(const tn_pipeline *p, tn__pipe_boundary *b) {
    TN_SCOPE;
    TN__ON_CPU;
    header h = {0};
    tn_tensor *t = tn_empty(TN_DIMS(sizeof(h)), TN_U8);
    tn_group *g = p->outputs.group;
    tn_work_wait(tn_recv(g, t, other_rank(g)), 0);
    if (tn_copy_out(t, &h) == TN_OK && same_call(p, h.micros, h.backward)) { *b = h.boundary; }
}

/* Posts the receive of the neighbour's next message. False after raising. */
static bool post_next(tn__pipe_inbox *b, const tn__pipe_boundary *boundary, tn_device device) {
    tn_tensor *t = tn_empty_on(device, boundary->dims, boundary->dtype);
    if (tn_is_inert(t)) { return false; }
    b->tensors[b->posted] = tn_keep(t);
    b->works[b->posted++] = tn_recv(b->group, t, other_rank(b->group));
    return !tn__pending();
}

/* Posts the receives up to this message and some ahead, then waits for it. A boundary's header
 * comes before its first message. */
tn_tensor *tn__pipe_take(tn_pipeline *p, tn__pipe_inbox *b, int boundary, int micro) {
    int at = 0;
    while (b->order[at].stage != boundary || b->order[at].micro != micro) {
        at++; /* the schedule is complete, so it is there */
    }
    while (b->posted <= at || (b->posted < b->count && b->posted <= b->taken + TN__PIPE_AHEAD)) {
        tn__pipe_boundary *next = &p->boundaries[b->order[b->posted].stage];
        if (!next->known && b->posted > at) { break; /* this would wait for its header */ }
        if (!next->known) { receive_header(p, next); }
        if (tn__pending() || !post_next(b, next, p->device)) { return tn_inert(); }
    }
    tn_status status = tn_work_wait(b->works[at], 0);
    b->works[at] = NULL;
    tn_tensor *t = tn_adopt(b->tensors[at]);
    b->tensors[at] = NULL;
    b->taken++;
    return status == TN_OK ? t : tn_inert();
}
