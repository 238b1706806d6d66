/* Options for where and how a program computes: device, threads, precision, and how the model is
 * spread over the ranks. */
#include "core/error.h"
#include "models/language.h"
#include "train/options.h"

#include <string.h>

static const char *const precisions[] = {"f32", "bf16", "f16", NULL};

tn_setup tn_setup_defaults(void) {
    return (tn_setup){.device = "cpu", .from_defaults = true};
}

int tn__setup_options(tn_setup *s, tn_option *rows) {
    const tn_option all[] = {
        {.help = "Where and how to compute:"},
        {"device", 'D', "NAME", "cpu, cuda or cuda:N; with several ranks each uses its own GPU",
         .text = &s->device},
        {"precision", 'p', "NAME", "of the computation, weights stay f32", .choice = &s->precision,
         .choices = precisions},
        {"threads", 0, "N", "threads per rank; otherwise the cores are shared among the ranks",
         .whole = &s->threads, .most = 4096},
        {"shard", 0, "N|all", "N ranks share one copy of the model; further ranks hold more copies",
         .whole = &s->shard, .word = "all"},
        {"stage", 0, "1|2|3",
         "what is split: the optimiser's state (1), gradients too (2), parameters too (3)",
         .whole = &s->stage, .most = 3},
        {"mesh", 0, "DIMS", "pp=N,tp=N,cp=N,shard=N,dp=N,stage=N,sequence,…: docs/splitting.md",
         .text = &s->mesh},
        {"offload", 0, .help = "parts are kept in CPU memory, and stepped there",
         .flag = &s->offload},
        {"recompute", 0,
         .help = "blocks keep only their inputs for backward: less memory, a third more work",
         .flag = &s->recompute},
        {"peak", 0, "TFLOPS", "of the device, for MFU (known for a few GPUs)", .real = &s->peak},
    };
    memcpy(rows, all, sizeof(all));
    return (int)(sizeof(all) / sizeof(all[0]));
}

tn_group *tn_setup_world(const tn_setup *s) {
    if (s && !tn__options_made(s->from_defaults, "setup_world", "tn_setup")) { return NULL; }
    if (!s || !s->device) {
        return tn__fail_null(TN_EVALUE, "setup_world", "the %s is NULL", s ? "device" : "setup");
    }
    tn_device device = tn_device_named(s->device);
    tn_dist_options d = tn_dist_defaults();
    d.device = device.kind;
    tn_group *world = tn__pending() ? NULL : tn_dist_init(d);
    if (world && strchr(s->device, ':')) { tn_set_default_device(device); }
    if (world && s->threads > 0) { tn_set_threads((int)s->threads); }
    return world;
}

/* ---- The model ------------------------------------------------------------------------------- */

/* --mesh, or its short forms --shard and --stage. */
static tn_spread_options spread_of(tn_setup *s) {
    tn_spread_options o = tn_spread_defaults();
    if (s->mesh && (s->shard != 0 || s->stage > 0)) {
        tn__raise(TN_EVALUE, "setup_model",
                  "--mesh %s excludes --shard and --stage: write shard=N, stage=N in it", s->mesh);
    } else if (s->mesh) {
        tn_spread_read(&o, s->mesh);
    } else if (s->shard != 0 || s->stage > 0 || s->offload) {
        o.shard = s->shard > 0 ? (int)s->shard : 0;
        o.sharding.stage = s->stage > 0 ? (int)s->stage : 3;
    }
    o.sharding.offload = s->offload;
    return o;
}

tn_status tn_setup_model(tn_setup *s, tn_group *world, void *m) {
    if (!s || !m || tn__pending()) {
        return tn__raise(TN_EVALUE, "setup_model", "the %s is NULL", s ? "model" : "setup");
    }
    if (!tn__options_made(s->from_defaults, "setup_model", "tn_setup")) { return tn_error(); }
    if (s->recompute) { tn__lm_recompute_blocks(m); }
    if (s->precision != TN_SETUP_F32) { /* instead of the dtype of its weights */
        bool f16 = s->precision == TN_SETUP_F16;
        tn_module_set_precision(m, TN_WITH(tn_precision, .compute = f16 ? TN_F16 : TN_BF16));
    }
    tn_spread_options o = spread_of(s);
    s->spread = tn__pending() ? NULL : tn_spread_new(m, world, o);
    s->stage = o.shard != 1 ? o.sharding.stage : 0;
    return tn_error();
}

tn_group *tn_setup_data(const tn_setup *s) {
    if (s && !tn__options_made(s->from_defaults, "setup_data", "tn_setup")) { return NULL; }
    return tn_spread_data(s ? s->spread : NULL);
}

void tn_setup_finish(tn_setup *s) {
    if (s) {
        tn_spread_free(s->spread);
        s->spread = NULL;
    }
}

/* ---- For the loop ---------------------------------------------------------------------------- */

tn_scaler *tn_setup_scaler(const tn_setup *s) {
    tn_scaler_options o = tn_scaler_defaults();
    o.enabled = s && s->precision == TN_SETUP_F16;
    return tn_scaler_new(o);
}

int64_t tn_micro_batches(tn_group *world, int64_t units, int64_t at_once) {
    int64_t ranks = tn_group_size(world), all;
    bool fits = at_once > 0 && units >= 0 && !__builtin_mul_overflow(at_once, ranks, &all);
    if (!fits || units % all != 0) {
        tn__raise(TN_EVALUE, "micro_batches",
                  "%lld per step are not a multiple of %lld on each of %lld rank%s",
                  (long long)units, (long long)at_once, (long long)ranks, ranks == 1 ? "" : "s");
        return 1;
    }
    return units > 0 ? units / all : 1;
}
