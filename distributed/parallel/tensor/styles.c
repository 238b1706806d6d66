/* Tensor parallelism: what a rank computes.
 *
 * A region has a matrix cut by rows, which gives some columns of its result; whatever acts on each
 * of these alone (an activation, a head's attention); and a matrix cut by columns, which gives a
 * part of a sum:
 *
 *     x ──copy──> x A_r^T ──> activation ──> h_r B_r^T ──sum──> y
 *
 * x and y are one value that all ranks hold; `copy` does nothing in forward and sums in backward,
 * and `sum` the other way round (tn_dist_copy, tn_dist_sum_parts). So one sum in forward and one in
 * backward are all that is sent for a region. Under `sequence` ranks hold T / N positions of x and
 * y: copy becomes a gather, sum a scatter, which together send as much as the sum did. What is
 * between regions (norms, dropout, residual sums) is computed once instead of N times. Parameters
 * used there see a part of the positions, so their gradients are summed: they are read through
 * tn_dist_copy.
 */
#include "distributed/group/values.h"
#include "distributed/parallel/tensor/tensor.h"

#include "autograd/mode.h"
#include "models/language.h"
#include "nn/cache.h"

#include <string.h>

enum { NOTE_WHOLE, NOTE_SPLIT };

/* Whether this forward, or its second run in backward, has T / N positions between regions. */
static bool is_split(const tn__tp *tp) {
    return tp->sequence && tn__grad_self.note == NOTE_SPLIT;
}

/* ---- Around a region ------------------------------------------------------------------------- */

static tn_values enter_region(tn_module *m, tn_values in, void *user) {
    const tn__tp_place *place = user;
    const tn__tp *tp = place->of;
    in.v[0] =
        is_split(tp) ? tn_dist_gather_dim(tp->group, in.v[0], 1) : tn_dist_copy(tp->group, in.v[0]);
    return in;
}

/* The sum of all ranks' y, or this rank's positions of it. */
static tn_tensor *leave_region(const tn__tp *tp, tn_tensor *y) {
    return is_split(tp) ? tn_dist_scatter_dim(tp->group, y, 1) : tn_dist_sum_parts(tp->group, y);
}

/* A parameter that is used between regions. */
static tn_tensor *shared_param(const tn__tp *tp, tn_tensor *t) {
    return t && is_split(tp) ? tn_dist_copy(tp->group, t) : t;
}

/* ---- Modules --------------------------------------------------------------------------------- */

/* y = sum over ranks of x_r w_r^T, + bias once */
static tn_tensor *row_forward(tn_module *self, tn_tensor *x) {
    const tn__tp_place *place = self->lists->split;
    const tn_linear *m = (tn_linear *)self;
    tn_tensor *part = m->weight_scale ? tn_linear_q8(x, m->weight, m->weight_scale, NULL)
                                      : tn_linear_op(x, m->weight, NULL);
    tn_tensor *y = leave_region(place->of, part);
    return m->bias ? tn_add(y, shared_param(place->of, m->bias)) : y;
}

/* Rows that are here, 0 for those of other ranks; the sum of all ranks. An index outside all rows
 * stays outside, so that the lookup refuses it. */
static tn_tensor *vocab_forward(tn_module *self, tn_tensor *index) {
    const tn__tp_place *place = self->lists->split;
    const tn_embedding *m = (tn_embedding *)self;
    double last = (double)tn_size(m->weight, 0) - 1, end = (double)place->whole - 1;
    tn_tensor *at = tn_add_scalar(index, -(double)place->first);
    tn_tensor *nearest = tn_clamp(at, 0.0, last);
    tn_tensor *exists = tn_eq(tn_clamp(index, 0.0, end), index);
    tn_tensor *rows = place->forward(self, tn_where(exists, nearest, at));
    tn_tensor *elsewhere = tn_unsqueeze(tn_ne(nearest, at), -1);
    return leave_region(place->of, tn_masked_fill(rows, elsewhere, 0.0));
}

/* The module's own forward between regions: its parameters are shared, an embedding looks up this
 * rank's positions, and dropout draws different numbers than on other ranks. */
static tn_tensor *sequence_forward(tn_module *self, tn_tensor *x) {
    const tn__tp_place *place = self->lists->split;
    const tn__tp *tp = place->of;
    if (!is_split(tp)) { return place->forward(self, x); }
    tn_tensor *mine[4];
    int n = self->lists->record_count;
    for (int i = 0; i < n; i++) {
        tn__record *record = self->lists->records[i];
        mine[i] = *record->field;
        *record->field = record->buffer ? mine[i] : shared_param(tp, mine[i]);
    }
    uint64_t apart = (uint64_t)tn_group_rank(tp->group) << 32;
    tn_default_generator()->call += apart;
    bool looks_up = strcmp(self->kind, "embedding") == 0;
    tn_tensor *y = place->forward(self, looks_up ? tn_dist_slice(tp->group, x, -1) : x);
    tn_default_generator()->call -= apart;
    for (int i = 0; i < n; i++) {
        *self->lists->records[i]->field = mine[i];
    }
    return y;
}

bool tn__tp_apply(tn__tp_place *place) {
    tn_module *m = place->module;
    static const tn_module_forward forwards[] = {
        [TN_TP_ROW] = row_forward,
        [TN_TP_VOCAB] = vocab_forward,
        [TN_TP_SEQUENCE] = sequence_forward,
    };
    tn_tp_style style = place->rule->style;
    if (style == TN_TP_ENTER) {
        return tn_module_hook(m, (tn_module_hooks){.before = enter_region, .user = place}) != 0;
    }
    if (style == TN_TP_COLUMN || style == TN_TP_LOGITS) { /* a linear with fewer rows */
        return true;
    }
    if (!tn__module_lists(m, "tensor_parallel")) { return false; }
    place->forward = m->forward;
    m->lists->split = place;
    m->forward = forwards[style];
    return true;
}

/* ---- Around the whole model ------------------------------------------------------------------ */

/* In the first call of training and of each evaluation: batches that differ would be mixed; and a
 * program may have seeded each rank apart, but the masks of what all hold must be the same. Each
 * generated token may differ. */
static void make_alike(tn__tp *tp, const tn_tensor *x, bool generating) {
    const tn_module *m = tp->root;
    tp->compared.any &= !generating;
    bool due = tn__compare_due(&tp->compared, m) && x && !tn_is_inert(x);
    tn__parallel_same_input(tp->group, x, m, &tp->compared, "tensor_parallel");
    if (due && m->training && !generating && !tn__pending()) {
        tn__broadcast_values(tp->group, tn_default_generator(), sizeof(tn_generator), TN_U8, 0);
        tp->compared = (tn__compared){true, true}; /* x may not be tokens */
    }
}

/* Generation goes token by token. */
static bool is_generating(const tn_module *m) {
    const tn__lm_family *family = tn__lm_family_kind(m->kind);
    return family && tn__cache_open(family->cache(m));
}

static tn_values begin_call(tn_module *m, tn_values in, void *user) {
    tn__tp *tp = user;
    bool generating = is_generating(m), split = tp->sequence && m->training && !generating;
    make_alike(tp, in.n > 0 ? in.v[0] : NULL, generating);
    tp->around = tn__grad_self.note;
    tn__grad_self.note = split ? NOTE_SPLIT : NOTE_WHOLE;
    return in;
}

/* All columns of the logits, whose last rank may have fewer than the others. */
static tn_tensor *join_columns(const tn__tp *tp, tn_tensor *x) {
    int64_t each = tn__tp_slice(tp->group, 0, tp->classes).count;
    int last = tn_ndim(x) - 1;
    if (tn_size(x, last) < each) {
        x = tn_pad(x, TN_DIMS(0, each - tn_size(x, last)), TN_PAD_CONSTANT, 0.0);
    }
    return tn_narrow(tn_dist_join(tp->group, x, last), last, 0, tp->classes);
}

static tn_values end_call(tn_module *m, tn_values in, tn_values out, void *user) {
    const tn__tp *tp = user;
    tn__grad_self.note = tp->around;
    bool logits = tp->classes > 0 && out.n > 0 && !tn_is_inert(out.v[0]) && tn_ndim(out.v[0]) > 0;
    if (logits && !m->lists->loss.calling) { out.v[0] = join_columns(tp, out.v[0]); }
    return out;
}

static tn_tensor *loss_of(void *state, tn_tensor *logits, tn_tensor *targets,
                          tn_cross_entropy_options options) {
    const tn__tp *tp = state;
    return tn_dist_cross_entropy(tp->group, logits, targets, tp->classes, options);
}

bool tn__tp_hook_root(tn__tp *tp, void (*free_user)(void *tp)) {
    tn_module_hooks hooks = {
        .before = begin_call, .after = end_call, .user = tp, .free_user = free_user};
    if (!tn_module_hook(tp->root, hooks)) { return false; }
    if (tp->classes > 0) { tp->root->lists->loss = (tn__loss_rule){.f = loss_of, .state = tp}; }
    return true;
}
