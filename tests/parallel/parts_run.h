/* A run whose model is laid out on ranks in one of several ways, for tests of checkpoints in parts.
 * Nothing is trained: every element's value follows from its name and its place in the whole
 * tensor, so what was saved in one layout and loaded in another can be checked element by
 * element. */
#ifndef TERN_TESTS_PARALLEL_PARTS_RUN_H
#define TERN_TESTS_PARALLEL_PARTS_RUN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/layout.h"
#include "tern/tern.h"
#include "tests/distributed/rank_check.h"

/* For the ranks' threads, where cmocka's assertions cannot be used. */
#define must(truth) ((truth) ? (void)0 : rank_failed(#truth, __FILE__, __LINE__))
static inline void rank_failed(const char *what, const char *file, int line) {
    fprintf(stderr, "%s:%d: not true: %s; the error is \"%s\"\n", file, line, what,
            tn_error_message());
    abort();
}

typedef enum lie {
    LIES_WHOLE, /* the whole model on every rank */
    LIES_FLAT,  /* parameters one after another in a flat buffer, each rank with a range of it */
    LIES_CUT,   /* cut along dimension 0 between two neighbours, each block in ranges */
    LIES_ODD,   /* ranges of unequal length; the last ranks have no elements */
    LIES_TP_2,  /* tensor parallelism on two ranks, and sharding over the rest */
    LIES_TP_4,  /* tensor parallelism on four ranks, likewise */
} lie;
enum { WAYS = LIES_ODD + 1 };

typedef struct parts_net {
    tn_module base;
    tn_linear in, out;
    tn_tensor *seen; /* a buffer; its values differ between ranks */
} parts_net;

typedef struct parts_run {
    tn_group *world;
    tn_mesh *mesh; /* only for LIES_TP_… */
    lie how;
    parts_net net;
    tn_optim *optim;
    tn_generator generator;
    tn_checkpoint c;
    tn_saver *saver; /* parts_run_saver's; or NULL */
} parts_run;

static inline tn_tensor *parts_forward(tn_module *self, tn_tensor *x) {
    parts_net *n = (parts_net *)self;
    return tn_call(&n->out, tn_call(&n->in, x));
}

static int64_t parts_width = 6; /* a multiple of 6 */

static inline void parts_net_init(parts_net *n) {
    tn_module_init(n, "parts_net", parts_forward);
    tn_linear_init(&n->in, parts_width, 2 * parts_width, tn_linear_defaults());
    tn_linear_init(&n->out, 2 * parts_width, parts_width, tn_linear_defaults());
    tn_module_add(n, "in", &n->in);
    tn_module_add(n, "out", &n->out);
    tn_module_buffer(n, "seen", &n->seen, tn_zeros(TN_DIMS(5), TN_F32));
}

/* ---- Laying it out on ranks ------------------------------------------------------------------ */

/* What the r-th of n ranges of S elements has of [begin, begin + count), counted from begin. */
static inline void cut_range(int64_t begin, int64_t count, int64_t S, int r, tn_layout *l) {
    int64_t from = r * S - begin, to = (r + 1) * S - begin;
    from = from < 0 ? 0 : from > count ? count : from;
    to = to < 0 ? 0 : to > count ? count : to;
    l->start = from;
    l->length = to - from;
}

/* The layout of a parameter that begins at element `offset` of `total`. */
static inline tn_layout layout_of(const parts_run *r, tn_dims whole, int64_t offset,
                                  int64_t total) {
    tn_layout l = tn__layout_whole(whole);
    int rank = tn_group_rank(r->world), n = tn_group_size(r->world);
    int64_t count = l.length;
    if (r->how == LIES_FLAT) {
        cut_range(offset, count, (total + n - 1) / n, rank, &l);
    } else if (r->how == LIES_ODD) {
        l.start = rank == 0 ? 0 : count / 3;
        l.length = rank == 0 ? count / 3 : rank == 1 ? count - count / 3 : 0;
        if (n == 1) { l.length = count; }
    } else if (r->how == LIES_CUT && n % 2 == 0) {
        l.dim = 0;
        l.pieces = whole.ndim > 1 ? 3 : 1;
        l.slices = 2;
        l.slice = rank % 2;
        cut_range(0, count / 2, (count / 2 + n / 2 - 1) / (n / 2), rank / 2, &l);
    }
    return l;
}

typedef struct placing {
    parts_run *run;
    int64_t offset, total;
    struct {
        char path[64];
        tn_layout layout;
    } parts[8];
    int count;
} placing;

static inline bool place_entry(const tn_entry *entry, void *user) {
    placing *p = user;
    tn_layout l = layout_of(p->run, entry->layout.whole, p->offset, p->total);
    p->offset += tn_dims_count(entry->layout.whole);
    snprintf(p->parts[p->count].path, sizeof(p->parts[0].path), "%s", entry->path);
    p->parts[p->count++].layout = l;
    if (l.dim >= 0) { /* the field holds the block */
        tn_dims block = l.whole;
        block.size[l.dim] /= l.slices;
        tn_tensor *field = tn_set_requires_grad(tn_zeros(block, TN_F32), true);
        tn_release(*entry->field);
        *entry->field = tn_keep(field);
    }
    return true;
}

static inline void lay_on_ranks(parts_run *r) {
    TN_SCOPE;
    placing p = {.run = r, .total = tn_module_count(&r->net)};
    if (r->how == LIES_WHOLE) { return; }
    tn_module_each(&r->net, (tn_walk){0}, place_entry, &p);
    for (int i = 0; i < p.count; i++) {
        tn_tensor *part =
            tn_set_requires_grad(tn_zeros(TN_DIMS(p.parts[i].layout.length), TN_F32), true);
        must(tn_module_set_part(&r->net, p.parts[i].path, part, p.parts[i].layout, NULL) == TN_OK);
    }
}

static inline void lay_on_mesh(parts_run *r) {
    static const tn_tp_rule plan[] = {
        {"in", TN_TP_ENTER, 0}, {"in", TN_TP_COLUMN, 1}, {"out", TN_TP_ROW, 0}, {NULL, 0, 0}};
    int tp = r->how == LIES_TP_2 ? 2 : 4, shards = tn_group_size(r->world) / tp;
    r->mesh = tn_mesh_new(r->world, 2, (int[]){shards, tp}, (const char *[]){"shard", "tp"});
    must(tn_tensor_parallel(&r->net, tn_mesh_group(r->mesh, "tp"), TN_WITH(tn_tp, .plan = plan)) ==
         TN_OK);
    if (shards > 1) {
        must(tn_fsdp(&r->net, tn_mesh_group(r->mesh, "shard"), NULL, tn_fsdp_defaults()) != NULL);
    }
}

/* ---- Values ---------------------------------------------------------------------------------- */

static inline float value_of(const char *name, int64_t element, uint64_t seed) {
    uint64_t h = 0xcbf29ce484222325u + seed;
    for (const char *c = name; *c; c++) {
        h = (h ^ (unsigned char)*c) * 0x100000001b3u;
    }
    h = (h ^ (uint64_t)element) * 0x9e3779b97f4a7c15u;
    return (float)(h >> 42); /* 22 bits: exact in f32 */
}

typedef struct visiting {
    parts_run *run;
    uint64_t seed;
    bool check;
} visiting;

static inline void visit_values(const visiting *v, const char *name, tn_tensor *t,
                                const tn_layout *l, int64_t shift) {
    float *at = tn_data_mut(t);
    for (int64_t i = 0; i < l->length; i++) {
        float value = value_of(name, tn__layout_run(l, i).whole, v->seed) + (float)shift;
        if (!v->check) {
            at[i] = value;
        } else if (at[i] != value) {
            fprintf(stderr, "rank %d: %s: element %lld here is %g but should be %g\n",
                    tn_group_rank(v->run->world), name, (long long)i, (double)at[i], (double)value);
            abort();
        }
    }
}

static inline bool visit_entry(const tn_entry *entry, void *user) {
    const visiting *v = user;
    /* after loading, buffers are rank 0's */
    bool own = entry->buffer && !v->check;
    visit_values(v, entry->path, entry->stored, &entry->layout,
                 own ? 1000 * tn_group_rank(v->run->world) : 0);
    return true;
}

typedef struct finding {
    const char *path;
    size_t length;
    tn_layout layout;
} finding;

static inline bool find_layout(const tn_entry *entry, void *user) {
    finding *f = user;
    if (strlen(entry->path) == f->length && strncmp(entry->path, f->path, f->length) == 0) {
        f->layout = entry->layout;
        return false;
    }
    return true;
}

static inline bool visit_state(const char *name, tn_tensor *t, void *user) {
    const visiting *v = user;
    if (tn_dtype_of(t) == TN_I64) { /* a step count, the same on all ranks */
        int64_t *steps = tn_data_mut(t), expected = 11 + (int64_t)v->seed;
        if (v->check) { must(*steps == expected); }
        *steps = expected;
        return true;
    }
    finding f = {.path = name, .length = (size_t)(strrchr(name, '.') - name)};
    tn_module_each(&v->run->net, (tn_walk){0}, find_layout, &f);
    visit_values(v, name, t, &f.layout, 0);
    return true;
}

/* Gives every element its value in run `seed`, or checks it. */
static inline void parts_run_values(parts_run *r, uint64_t seed, bool check) {
    TN_NO_GRAD;
    visiting v = {r, seed, check};
    tn_module_each(&r->net, (tn_walk){.buffers = true}, visit_entry, &v);
    tn_optim_each(r->optim, visit_state, &v);
    if (check) {
        must(r->generator.seed == seed && r->generator.call == 2 * seed);
        must(tn_optim_steps(r->optim) == 5 + (int64_t)seed);
    } else {
        r->generator = (tn_generator){.seed = seed, .call = 2 * seed};
        tn_optim_set_steps(r->optim, 5 + (int64_t)seed);
    }
}

/* ---- The run --------------------------------------------------------------------------------- */

static inline void parts_run_open(parts_run *r, tn_group *world, lie how) {
    TN_SCOPE;
    *r = (parts_run){.world = world, .how = how};
    parts_net_init(&r->net);
    r->how < LIES_TP_2 ? lay_on_ranks(r) : lay_on_mesh(r);
    r->optim = tn_adamw(&r->net, tn_adamw_defaults());
    must(r->optim != NULL);
    r->c = (tn_checkpoint){.model = &r->net, .optim = r->optim, .generator = &r->generator};
}

/* Ends a saver, and begins another of this folder. */
static inline void parts_run_saver(parts_run *r, const char *folder, tn_saver_options options) {
    tn_saver_free(r->saver);
    r->saver = tn_saver_new(r->world, folder, options);
    must(r->saver != NULL);
}

static inline void parts_run_close(parts_run *r) {
    tn_saver_free(r->saver);
    tn_optim_free(r->optim);
    tn_module_finish(&r->net);
    tn_mesh_free(r->mesh);
}

/* A timeout that no save exceeds, however busy the machine is. */
static inline tn_saver_options patient_options(bool behind) {
    return TN_WITH(tn_saver, .behind = behind, .timeout = 120);
}

/* The newest step, which is `step` and has its values. */
static inline void parts_run_loads(parts_run *r, int64_t step) {
    bool found;
    must(tn_saver_load(r->saver, &r->c, &found) == TN_OK && found && r->c.step == step);
    parts_run_values(r, (uint64_t)step, true);
}

static inline void parts_run_begin(parts_run *r, tn_group *world, lie how, const char *folder) {
    parts_run_open(r, world, how);
    parts_run_saver(r, folder, patient_options(true));
}

#endif
