/* One mesh for every way of splitting a model over ranks: the dimensions, from the text of --mesh
 * to groups, and the order in which each is attached.
 *
 *     rank = (((pp · dps + dp) · shards + shard) · cps + cp) · tps + tp
 *
 * The ranks of tp, which exchange the most, are neighbours; those of pp, which exchange the least,
 * are furthest apart. What a forward computes is split first (pipeline, tensor, context), then what
 * is stored of it (sharding); whole copies come last. A step on it is in spread_step.c.
 */
#include "distributed/group/agree.h"
#include "distributed/parallel/spread.h"

#include "core/error.h"
#include "core/memory.h"
#include "nn/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PP, DP, SHARD, CP, TP, DIMS };
static const char *const names[DIMS] = {"pp", "dp", "shard", "cp", "tp"};

tn_spread_options tn_spread_defaults(void) {
    return (tn_spread_options){.pp = 1,
                               .shard = 1,
                               .cp = 1,
                               .tp = 1,
                               .pipeline = tn_pipeline_defaults(),
                               .tensor = tn_tp_defaults(),
                               .sharding = tn_fsdp_defaults(),
                               .data = tn_ddp_defaults(),
                               .from_defaults = true};
}

static int *size_of(tn_spread_options *o, int dim) {
    int *const sizes[DIMS] = {&o->pp, &o->dp, &o->shard, &o->cp, &o->tp};
    return sizes[dim];
}

/* ---- From text ------------------------------------------------------------------------------- */

/* A whole number above 0, or "all", which is 0. */
static bool read_size(const char *value, int *size) {
    char *end;
    long number = strtol(value, &end, 10);
    bool all = strcmp(value, "all") == 0, fits = *value && !*end && number > 0 && number < 1 << 20;
    *size = fits ? (int)number : 0;
    return all || fits;
}

/* NAME=N or a word. */
static bool read_word(tn_spread_options *o, char *word) {
    char *value = strchr(word, '=');
    if (!value) {
        bool sequence = strcmp(word, "sequence") == 0, keys = strcmp(word, "keys") == 0;
        bool gpipe = strcmp(word, "gpipe") == 0, halves = strcmp(word, "zb_h1") == 0;
        o->tensor.sequence |= sequence;
        o->context = keys ? TN_CP_KEYS : o->context;
        o->pipeline.kind = gpipe ? TN_PIPE_GPIPE : halves ? TN_PIPE_ZERO_BUBBLE : o->pipeline.kind;
        return sequence || keys || gpipe || halves;
    }
    *value++ = '\0';
    if (strcmp(word, "stage") == 0) {
        return read_size(value, &o->sharding.stage) && o->sharding.stage >= 1 &&
               o->sharding.stage <= 3;
    }
    if (strcmp(word, "chunks") == 0) {
        tn_pipe_kind *kind = &o->pipeline.kind; /* of the others making a schedule refuses chunks */
        *kind = *kind == TN_PIPE_1F1B ? TN_PIPE_INTERLEAVED : *kind;
        return read_size(value, &o->pipeline.chunks) && o->pipeline.chunks > 0;
    }
    for (int i = 0; i < DIMS; i++) {
        if (strcmp(word, names[i]) == 0) {
            bool may_be_all = i == DP || i == SHARD;
            return read_size(value, size_of(o, i)) && (*size_of(o, i) > 0 || may_be_all);
        }
    }
    return false;
}

tn_status tn_spread_read(tn_spread_options *o, const char *mesh) {
    char text[256];
    if (!o || !mesh || strlen(mesh) >= sizeof(text)) {
        const char *what = !o ? "options are NULL" : !mesh ? "mesh is NULL" : "mesh is too long";
        return tn__raise(TN_EVALUE, "spread_read", "the %s", what);
    }
    if (!tn__options_made(o->from_defaults, "spread_read", "tn_spread")) { return tn_error(); }
    snprintf(text, sizeof(text), "%s", mesh);
    tn_spread_options read = *o;
    for (char *left = text, *word; (word = strsep(&left, ",")) != NULL;) {
        char given[64];
        snprintf(given, sizeof(given), "%s", word);
        if (!read_word(&read, word)) {
            return tn__raise(
                TN_EVALUE, "spread_read",
                "\"%s\" of \"%s\" is not one of pp=N, dp=N, shard=N, cp=N, tp=N (dp=all, "
                "shard=all), stage=1|2|3, sequence, keys, gpipe, zb_h1, chunks=N, with "
                "commas between",
                given, mesh);
        }
    }
    *o = read;
    return TN_OK;
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

bool tn__spread_sizes(tn_spread_options *o, int ranks) {
    int rest = o->shard == 0 ? SHARD : DP;
    int64_t product = 1;
    if (rest == SHARD && o->dp == 0) { o->dp = 1; }
    for (int i = 0; i < DIMS; i++) {
        int size = *size_of(o, i);
        if (size < 0 || (size == 0 && i != rest)) {
            return tn__fail(TN_EVALUE, "spread", "%s is %d", names[i], size);
        }
        product *= size && product < INT32_MAX ? size : 1; /* enough to say that it is wrong */
    }
    if (*size_of(o, rest) == 0 && ranks % product == 0) {
        *size_of(o, rest) = (int)(ranks / product);
        return true;
    }
    if (product == ranks) { return true; }
    return tn__fail(
        TN_EVALUE, "spread",
        "pp=%d,dp=%d,shard=%d,cp=%d,tp=%d is a mesh of %lld ranks%s, and there are %d (tern "
        "run -n %lld would do)",
        o->pp, o->dp, o->shard, o->cp, o->tp, (long long)product,
        *size_of(o, rest) == 0 ? " or a multiple" : "", ranks,
        (long long)(*size_of(o, rest) ? product : (ranks / product + 1) * product));
}

/* ---- Attaching ------------------------------------------------------------------------------- */

/* False after raising. shards: uses FSDP, even where one rank has all (offload, stages of one). */
static bool attach_all(tn_spread *s, bool shards) {
    const tn_spread_options *o = &s->options;
    void *m = s->module;
    if (o->inference) { tn_module_requires_grad(m, false); }
    if (o->pp > 1) { s->pipeline = tn_pipeline_new(m, tn_mesh_group(s->mesh, "pp"), o->pipeline); }
    if (o->tp > 1 && !tn__pending()) {
        tn_tensor_parallel(m, tn_mesh_group(s->mesh, "tp"), o->tensor);
    }
    if (o->cp > 1 && !tn__pending()) {
        tn_context_parallel(m, tn_mesh_group(s->mesh, "cp"), o->context);
    }
    if (tn__pending()) { return false; }
    if (shards) {
        tn_fsdp(m, tn_mesh_group(s->mesh, o->cp > 1 ? "shard cp" : "shard"),
                o->dp > 1 ? tn_mesh_group(s->mesh, "dp") : NULL, o->sharding);
    } else if (!o->inference) {
        tn_module_materialize(m);
        tn_ddp(m, tn_mesh_group(s->mesh, o->cp > 1 ? "dp cp" : "dp"), o->data);
    }
    return !tn__pending();
}

/* Ends tn__agree_begin: ranks with different meshes would wait for each other in different groups.
 */
static tn_status agree_on_mesh(tn_module *m, tn_group *world, const tn_spread_options *o) {
    tn_pipe_kind kind = o->pipeline.kind;
    char mesh[192];
    snprintf(mesh, sizeof(mesh), "pp=%d,dp=%d,shard=%d,cp=%d,tp=%d%s%s,stage=%d,chunks=%d%s%s",
             o->pp, o->dp, o->shard, o->cp, o->tp, o->tensor.sequence ? ",sequence" : "",
             o->context == TN_CP_KEYS ? ",keys" : "", o->sharding.stage, o->pipeline.chunks,
             kind == TN_PIPE_GPIPE         ? ",gpipe"
             : kind == TN_PIPE_ZERO_BUBBLE ? ",zb_h1"
                                           : "",
             o->inference ? ",inference" : "");
    return tn__parallel_agree(m, world, mesh, "spread");
}

static const tn__parallel_rules spread_rules = {.operation = "spread", .deferred = true};

TN__ALIVE_LIST(spreads, "spread");

tn_spread *tn_spread_new(void *m, tn_group *world, tn_spread_options options) {
    if (!tn__agree_begin(world, "spread")) { return NULL; }
    bool shards = options.shard != 1 || options.sharding.offload;
    tn_spread *s = tn__calloc_for(1, sizeof(*s), "spread");
    if (s && tn__parallel_may_attach(m, world, &spread_rules) &&
        tn__options_made(options.from_defaults, "spread", "tn_spread")) {
        tn__parallel_unsplit(m, "spread");
    }
    if (agree_on_mesh(m, world, &options) != TN_OK || !s ||
        !tn__spread_sizes(&options, tn_group_size(world))) { /* on all ranks */
        free(s);
        return NULL;
    }
    *s = (tn_spread){.options = options, .module = m, .world = world};
    tn__alive_begin(&spreads, s);
    s->mesh = tn_mesh_new(
        world, DIMS, (int[]){options.pp, options.dp, options.shard, options.cp, options.tp}, names);
    if (!s->mesh || !attach_all(s, shards)) {
        tn_spread_free(s);
        return NULL;
    }
    return s;
}

tn_group *tn_spread_group(tn_spread *s, const char *dims) {
    if (!s) { return tn__fail_null(TN_EVALUE, "spread_group", "the spread is NULL"); }
    if (!tn__alive_is(&spreads, s, "spread_group")) { return NULL; }
    return tn_mesh_group(s->mesh, dims);
}

tn_group *tn_spread_data(tn_spread *s) {
    return tn_spread_group(s, "dp shard");
}

void tn_spread_free(tn_spread *s) {
    if (s && tn__alive_end(&spreads, s, "spread_free")) {
        tn_mesh_free(s->mesh);
        free(s);
    }
}

/* ---- A picture ------------------------------------------------------------------------------- */

/* The first parameter that is cut, as an example. */
typedef struct example {
    char path[128];
    tn_layout layout;
} example;

static bool find_cut(const tn_entry *entry, void *user) {
    example *e = user;
    if (entry->layout.dim < 0) { return true; }
    snprintf(e->path, sizeof(e->path), "%s", entry->path);
    e->layout = entry->layout;
    return false;
}

/* The parts of rank pp of the pipeline: ", parts 0 to 3 and 8 of 14". */
static void print_parts(const tn_spread *s, int pp, FILE *f) {
    int parts = tn_pipeline_parts(s->pipeline), ranges = 0;
    for (int i = 0, first = 0; i < parts; i++) {
        int stage = tn_pipeline_stage(s->pipeline, i);
        first = i > 0 && tn_pipeline_stage(s->pipeline, i - 1) == stage ? first : i;
        bool last = i + 1 == parts || tn_pipeline_stage(s->pipeline, i + 1) != stage;
        if (last && stage % s->options.pp == pp) {
            fprintf(f, "%s %d", ranges++ ? " and" : ", parts", first);
            if (first < i) { fprintf(f, " to %d", i); }
        }
    }
    fprintf(f, " of %d", parts);
}

static void print_rank(const tn_spread *s, const example *cut, int rank, FILE *f) {
    const tn_spread_options *o = &s->options;
    int tp = rank % o->tp, cp = rank / o->tp % o->cp;
    int shard = rank / o->tp / o->cp % o->shard, dp = rank / o->tp / o->cp / o->shard % o->dp;
    int pp = rank / o->tp / o->cp / o->shard / o->dp;
    fprintf(f, "%6d  %4d %4d %6d %4d %4d  batch %d of %d", rank, pp, dp, shard, cp, tp,
            dp * o->shard + shard + 1, o->dp * o->shard);
    if (s->pipeline) { print_parts(s, pp, f); }
    if (o->cp > 1) { fprintf(f, ", positions %d of %d", cp + 1, o->cp); }
    if (cut->path[0]) {
        tn_layout l = cut->layout;
        l.slice = tp;
        tn__slice rows = tn__layout_slice(&l);
        fprintf(f, ", %s %lld to %lld of %s", l.dim == 0 ? "rows" : "columns",
                (long long)rows.first, (long long)(rows.first + rows.count - 1), cut->path);
    }
    if (o->shard * o->cp > 1 && o->shard > 1) {
        fprintf(f, ", part %d of %d", shard * o->cp + cp + 1, o->shard * o->cp);
    }
    fputc('\n', f);
}

void tn_spread_print(tn_spread *s, FILE *f) {
    if (!s || !f) {
        tn__raise(TN_EVALUE, "spread_print", "the %s is NULL", s ? "file" : "spread");
        return;
    }
    const tn_spread_options *o = &s->options;
    example cut = {0};
    tn_module_each(s->module, (tn_walk){0}, find_cut, &cut);
    fprintf(f, "pp %d x dp %d x shard %d x cp %d x tp %d%s\n", o->pp, o->dp, o->shard, o->cp, o->tp,
            o->tp > 1 && o->tensor.sequence ? ", sequence" : "");
    fprintf(f, "  rank    pp   dp  shard   cp   tp\n");
    for (int rank = 0; rank < tn_group_size(s->world); rank++) {
        print_rank(s, &cut, rank, f);
    }
}
