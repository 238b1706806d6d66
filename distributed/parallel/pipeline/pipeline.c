/* Attaching a pipeline: which stage has which parts, which parameters are absent on this rank, and
 * which several ranks have.
 *
 * A stage is a range of the model's parts. The model itself stays what it is, with every name: the
 * parameters that only other ranks' stages use lose their elements (tn__module_set_absent), so
 * nothing that walks over it steps, saves or sends them. Sums over all parameters, such as a norm,
 * follow the chain of groups that each parameter gets here (tn_parts).
 */
#include "distributed/group/agree.h"
#include "distributed/parallel/pipeline/pipeline.h"

#include "core/buffer.h"
#include "core/memory.h"
#include "nn/misuse.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const tn__parallel_rules pipeline_rules = {.operation = "pipeline", .deferred = true};

tn_pipeline_options tn_pipeline_defaults(void) {
    return (tn_pipeline_options){.chunks = 1, .from_defaults = true};
}

tn_module *tn__pipe_part(const tn_pipeline *p, int i) {
    return p->family ? p->family->part(p->module, i)
                     : tn__module_in_place(p->module->lists->children[i], "pipeline");
}

int tn_pipeline_parts(const tn_pipeline *p) {
    return p ? p->parts : 0;
}

int tn_pipeline_stage(const tn_pipeline *p, int part) {
    int stage = 0;
    while (p && stage + 1 < p->stages && part >= p->first[stage + 1]) {
        stage++;
    }
    return stage;
}

int tn_pipeline_alive(const tn_pipeline *p) {
    return p ? p->alive : 0;
}

/* ---- Stages ---------------------------------------------------------------------------------- */

/* The cost of a micro-batch, counted in elements of weights that are multiplied: a lookup in an
 * embedding is free. */
static bool add_cost(const tn_entry *entry, void *user) {
    bool free_lookup = strcmp(entry->owner->kind, "embedding") == 0;
    *(double *)user += free_lookup ? 0 : (double)tn_count(*entry->field);
    return true;
}

double tn__pipe_cost(tn_module *part) {
    double cost = 1; /* so that parts without parameters are spread, too */
    tn_module_each(part, (tn_walk){.with_shared = true}, add_cost, &cost);
    return cost;
}

/* Into how many stages of at most this cost the parts fit, and where these begin; INT_MAX: a part
 * costs more. */
static int count_stages(const double *costs, int parts, double most, int *first) {
    int stages = 0;
    double cost = 0;
    for (int i = 0; i < parts; i++) {
        if (costs[i] > most) { return INT_MAX; }
        if (i == 0 || cost + costs[i] > most) {
            if (first) { first[stages] = i; }
            stages++;
            cost = 0;
        }
        cost += costs[i];
    }
    return stages;
}

/* What the most expensive stage costs is a sum over consecutive parts, the smallest for which there
 * are enough stages. */
void tn__pipe_cut(const double *costs, int parts, int stages, int *first) {
    double best = INFINITY;
    for (int i = 0; i < parts; i++) {
        double sum = 0;
        for (int k = i; k < parts && sum < best; k++) {
            sum += costs[k];
            bool enough = count_stages(costs, parts, sum, NULL) <= stages;
            best = enough && sum < best ? sum : best;
        }
    }
    int made = count_stages(costs, parts, best, first);
    /* where fewer stages are as cheap, the last parts get one each */
    for (int s = stages - 1, end = parts; s >= 0; end = first[s--]) {
        bool fits = s < made && first[s] < end;
        first[s] = fits ? first[s] : end - 1;
    }
}

/* False after raising. */
static bool take_cuts(tn_pipeline *p, const int *cuts) {
    for (int s = 1; s < p->stages; s++) {
        p->first[s] = cuts[s - 1];
        if (p->first[s] <= p->first[s - 1] || p->first[s] >= p->parts) {
            return tn__fail(
                TN_EVALUE, pipeline_rules.operation,
                "stage %d begins with part %d and stage %d with %d, of %d parts (each needs "
                "one)",
                s - 1, p->first[s - 1], s, p->first[s], p->parts);
        }
    }
    return true;
}

static bool find_stages(tn_pipeline *p) {
    if (p->parts < p->stages) {
        return tn__fail(TN_EVALUE, pipeline_rules.operation,
                        "a %s of %d parts has not enough for %d stages", p->module->kind, p->parts,
                        p->stages);
    }
    p->first[p->stages] = p->parts;
    if (p->options.cuts) { return take_cuts(p, p->options.cuts); }
    double *costs = tn__calloc_for((size_t)p->parts, sizeof(*costs), pipeline_rules.operation);
    for (int i = 0; i < p->parts && costs; i++) {
        costs[i] = tn__pipe_cost(tn__pipe_part(p, i));
    }
    if (costs && !tn__pending()) { tn__pipe_cut(costs, p->parts, p->stages, p->first); }
    free(costs);
    return !tn__pending();
}

/* ---- Parameters ------------------------------------------------------------------------------ */

typedef struct parameter {
    char *path;
    tn_tensor *tensor;
} parameter;

typedef struct parameters {
    parameter *at; /* [count] */
    int count;
    int64_t capacity;
    bool *uses; /* [count x ranks]: a stage of the rank uses the parameter */
    int ranks, rank;
} parameters;

static bool list_parameter(const tn_entry *entry, void *user) {
    parameters *list = user;
    if (!tn__grow(&list->at, list->count + 1, &list->capacity, sizeof(*list->at), "pipeline")) {
        return false;
    }
    char *path = tn__strdup_for(entry->path, "pipeline");
    list->at[list->count++] = (parameter){path, *entry->field};
    return path != NULL;
}

/* A parameter that a stage of list->rank uses. */
static bool note_use(const tn_entry *entry, void *user) {
    const parameters *list = user;
    int i = 0;
    while (i < list->count && list->at[i].tensor != *entry->field) {
        i++;
    }
    if (i < list->count) { list->uses[i * list->ranks + list->rank] = true; }
    return true;
}

/* False after raising. */
static bool list_parameters(const tn_pipeline *p, parameters *list) {
    list->ranks = tn_group_size(p->group);
    tn_module_each(p->module, (tn_walk){0}, list_parameter, list);
    size_t cells = (size_t)list->count * (size_t)list->ranks + 1;
    list->uses = tn__calloc_for(cells, sizeof(*list->uses), "pipeline");
    for (int i = 0; i < p->parts && !tn__pending(); i++) {
        list->rank = tn_pipeline_stage(p, i) % list->ranks;
        tn_module_each(tn__pipe_part(p, i), (tn_walk){.with_shared = true}, note_use, list);
    }
    return !tn__pending();
}

typedef struct chaining {
    const tn_tensor *tensor;
    const tn_parts *chain;
} chaining;

static bool set_chain(const tn_entry *entry, void *user) {
    const chaining *c = user;
    if (*entry->field == c->tensor) {
        tn__record_set_part(tn__entry_record(entry), NULL, NULL, c->chain);
    }
    return true;
}

/* Every rank calls: those that have the parameter make a group. */
static void add_tie(tn_pipeline *p, const parameter *of, bool here) {
    tn_group *g = tn_group_split(p->group, here ? 0 : -1);
    if (!here || !g) {
        tn_group_free(g);
        return;
    }
    p->ties[p->tie_count++] =
        (tn__pipe_tie){.path = tn__strdup_for(of->path, "pipeline"), .group = g};
}

/* Sets the parameter's chain, and makes it absent where another stage uses it. The chain of an
 * absent one leads to the other stages too: a stage with nothing to train takes part in their sums.
 */
static bool place_parameter(tn_pipeline *p, const parameter *of, const bool *uses) {
    int rank = tn_group_rank(p->group), users = 0, first = -1;
    for (int r = tn_group_size(p->group) - 1; r >= 0; r--) {
        users += uses[r];
        first = uses[r] ? r : first;
    }
    if (users == 0) {
        return tn__fail(TN_EVALUE, "pipeline", "the parameter %s is in no part of the %s", of->path,
                        p->module->kind);
    }
    if (users > 1) { add_tie(p, of, uses[rank]); }
    if (!uses[rank] && tn__module_set_absent(p->module, of->path) != TN_OK) { return false; }
    chaining c = {of->tensor, !uses[rank] || users == 1 ? &p->chain
                              : rank == first           ? &p->tied
                                                        : &p->again};
    tn_module_each(p->module, (tn_walk){.with_shared = true, .absent = true}, set_chain, &c);
    return !tn__pending();
}

/* All ranks come to the same conclusions, in the same order. */
static bool place_parameters(tn_pipeline *p) {
    parameters list = {0};
    bool fine = list_parameters(p, &list);
    p->ties = tn__calloc_for((size_t)list.count + 1, sizeof(*p->ties), "pipeline");
    for (int i = 0; i < list.count && fine && p->ties; i++) {
        fine = place_parameter(p, &list.at[i], list.uses + i * list.ranks);
    }
    for (int i = 0; i < list.count; i++) {
        free(list.at[i].path);
    }
    free(list.at);
    free(list.uses);
    return !tn__pending();
}

/* ---- The beginning and the end --------------------------------------------------------------- */

static void pipeline_free(void *user) {
    tn_pipeline *p = user;
    tn__pipe_links_free(p);
    for (int i = 0; i < p->tie_count; i++) {
        tn_group_free(p->ties[i].group);
        tn_release(p->ties[i].aside);
        free(p->ties[i].path);
    }
    free(p->ties);
    free(p->first);
    free(p->boundaries);
    if (p->schedule != p->options.schedule) { tn_pipe_schedule_free(p->schedule); }
    free(p);
}

/* How many stages the options ask for; 0 after raising. */
static int stages_wanted(const tn_pipeline_options *o, int ranks) {
    const tn_pipe_schedule *s = o->schedule;
    const char *operation = pipeline_rules.operation;
    if (s && tn_pipe_simulate(s, (tn_pipe_cost){1, 1, 1, 0}, NULL, NULL) != TN_OK) { return 0; }
    if (s && s->ranks != ranks) {
        tn__raise(TN_EVALUE, operation, "the schedule is for %d ranks, and there are %d", s->ranks,
                  ranks);
    } else if (s && ranks == 1 && s->stages > 1) {
        tn__raise(TN_EVALUE, operation, "the schedule has %d stages on one rank, which has one",
                  s->stages);
    } else if (!s) { /* making a schedule checks the options */
        tn_pipe_schedule_free(tn_pipe_schedule_new(o->kind, ranks, o->chunks, ranks));
    }
    return tn__pending() ? 0 : s ? s->stages : ranks * (ranks > 1 ? o->chunks : 1);
}

/* How many parts the module has; sets p->family. 0 after raising. */
static int count_parts(tn_pipeline *p) {
    tn_module *m = p->module;
    if (strcmp(m->kind, "sequential") == 0) { return m->lists ? m->lists->child_count : 0; }
    p->family = tn__lm_family_of(m, pipeline_rules.operation);
    return p->family ? tn_lm_parts(m, NULL, 0) : 0;
}

/* The text that the ranks compare. An error shows the first line that differs. */
static void describe_options(const tn_pipeline *p, tn__buffer *text) {
    const tn_pipe_schedule *schedule = p->options.schedule;
    tn__buffer_format(text, "kind %d\n", (int)p->options.kind);
    for (int s = 0; s < p->stages; s++) {
        tn__buffer_format(text, "stage %d from part %d\n", s, p->first[s]);
    }
    for (int r = 0; schedule && r < schedule->ranks; r++) {
        for (int i = 0; i < schedule->counts[r]; i++) {
            tn_pipe_action a = schedule->rows[r][i];
            tn__buffer_format(text, "a schedule with %c%d.%d as action %d of rank %d\n", a.what,
                              a.stage, a.micro, i, r);
        }
    }
}

/* What each rank finds by itself. */
static void lay_out_stages(tn_pipeline *p) {
    static const char operation[] = "pipeline";
    p->parts = count_parts(p);
    p->stages = tn__pending() ? 0 : stages_wanted(&p->options, tn_group_size(p->group));
    if (p->stages > 0) {
        p->first = tn__calloc_for((size_t)p->stages + 1, sizeof(*p->first), operation);
        p->boundaries = tn__calloc_for((size_t)p->stages, sizeof(*p->boundaries), operation);
    }
    if (!tn__pending() && p->first && find_stages(p)) {
        tn__parallel_unsplit(p->module, operation);
    }
}

/* Ends tn__agree_begin. False after raising on all ranks. */
static bool agree_on_stages(tn_pipeline *p) {
    tn__buffer text = {.operation = pipeline_rules.operation};
    if (!tn__pending()) { describe_options(p, &text); }
    bool same = tn__parallel_make_same(p->module, p->group, NULL, &pipeline_rules, text.at);
    tn__buffer_free(&text);
    return same;
}

/* The module owns p. */
static void take_stages(tn_pipeline *p) {
    if (tn_group_size(p->group) == 1) { return; }
    if (place_parameters(p) && tn__pipe_links_make(p)) {
        tn__pipe_set_forward(p);
    } else {
        p->module->state = TN__MODULE_BROKEN; /* some of it is absent */
        tn__pipe_abort(p);
    }
}

tn_pipeline *tn_pipeline_new(void *m, tn_group *pp, tn_pipeline_options options) {
    static const char operation[] = "pipeline";
    if (!tn__agree_begin(pp, operation)) { return NULL; }
    tn_pipeline *p = tn__calloc_for(1, sizeof(*p), operation);
    if (!p) {
        tn__agree(pp, NULL, operation);
        return NULL;
    }
    *p = (tn_pipeline){.module = m,
                       .group = pp,
                       .options = options,
                       .schedule = (tn_pipe_schedule *)options.schedule};
    p->chain =
        (tn_parts){.sum = tn__parallel_sum_parts, .group = pp, .counts = true, .others = true};
    p->tied = (tn_parts){.next = &p->chain, .counts = true, .others = true, .copied = true};
    p->again = (tn_parts){.next = &p->chain, .others = true, .copied = true};
    if (tn__parallel_may_attach(m, pp, &pipeline_rules) &&
        tn__options_made(options.from_defaults, operation, "tn_pipeline")) {
        lay_out_stages(p);
    }
    if (!agree_on_stages(p)) {
        pipeline_free(p);
        return NULL;
    }
    tn_module_hooks hooks = {.before = tn__pipe_begin_call, .user = p, .free_user = pipeline_free};
    bool hooked = tn_module_hook(m, hooks) != 0;
    if (hooked) {
        take_stages(p);
    } else {
        pipeline_free(p);
    }
    if (tn__pending()) { tn_group_abort(pp, tn_error_message()); }
    return hooked && !tn__pending() ? p : NULL;
}
