/* The options of `tern plan`. */
#include "core/folder.h"
#include "core/reader.h"
#include "tools/error_words.h"
#include "tools/plan.h"
#include "train/deepspeed/file.h"

#include <stdlib.h>
#include <string.h>

static const char *const precisions[] = {"f32", "bf16", "f16", NULL};
static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

/* GPT-2s, and with `hidden` Llama 3s. */
static const struct {
    const char *name;
    int layers, heads;
    int64_t width, hidden;
} sizes[] = {{"gpt2", 12, 12, 768, 0},
             {"gpt2-medium", 24, 16, 1024, 0},
             {"gpt2-large", 36, 20, 1280, 0},
             {"gpt2-xl", 48, 25, 1600, 0},
             {"llama-1b", 16, 32, 2048, 8192},
             {"llama-3b", 28, 24, 3072, 8192},
             {"llama-8b", 32, 32, 4096, 14336},
             {"llama-70b", 80, 64, 8192, 28672},
             {"llama-405b", 126, 128, 16384, 53248}};

/* docs/planning.md says where the numbers are from. */
static const char *const gpu_names[] = {"a100", "h100", "h200", "b200", NULL};
static const struct {
    double memory, tflops, tflops_f32, reached, speed, host, network;
} gpus[] = {{80e9, 312, 19.5, 0.6, 1600, 235, 20},
            {80e9, 989, 67, 0.4, 2600, 350, 40},
            {141e9, 989, 67, 0.4, 3750, 350, 40},
            {180e9, 2250, 75, 0.4, 6200, 700, 40}};

static void refuse_argument(const char *text, void *unused) {
    tn_options_refuse("unexpected \"%s\": a model is --model NAME or FOLDER", text);
}

/* ---- Numbers with a letter ------------------------------------------------------------------- */

/* What "80G" and "512K" say, if a thousand is `base`; NaN for anything else. */
static double read_scaled(const char *text, double base) {
    static const char letters[] = "KMGT";
    char *end;
    double value = strtod(text, &end);
    const char *letter = *end ? strchr(letters, *end == 'B' ? 'G' : *end) : NULL;
    bool fits = end != text && value > 0 && value < 1e18 && (!*end || (letter && !end[1]));
    for (const char *l = letters; letter && l <= letter; l++) {
        value *= base;
    }
    return fits ? value : -1;
}

static void read_amount(const char *text, void *to) {
    double value = read_scaled(text, 1000);
    if (value < 0) {
        tn_options_refuse("\"%s\" should be a number above 0, such as 80G, 300B or 1.5T", text);
    }
    *(double *)to = value;
}

static void read_tokens(const char *text, void *to) {
    double value = read_scaled(text, 1024);
    if (value < 1 || value > 1e15 || value != (double)(int64_t)value) {
        tn_options_refuse("--tokens %s: a whole number, such as 524288, 512K or 4M (K is 1024)",
                          text);
    }
    *(int64_t *)to = (int64_t)value;
}

static void read_mesh(const char *text, void *to) {
    if (tn_spread_read(to, text) != TN_OK) {
        tn_options_refuse("--mesh %s: %s", text, error_why());
    }
}

/* ---- Models ---------------------------------------------------------------------------------- */

/* The shape by name, into which sizes that are given for a GPT go. */
static void find_model(plan_command *c, int64_t layers, int64_t heads) {
    size_t i = 0, count = sizeof(sizes) / sizeof(sizes[0]);
    while (i < count && strcmp(c->model, sizes[i].name) != 0) {
        i++;
    }
    bool given = layers || heads || c->gpt.width || c->gpt.vocab;
    c->folder = i == count && tn__folder_has(c->model, "config.json");
    if (i == count && !c->folder) {
        tn_options_refuse("--model %s: neither gpt2, gpt2-medium, gpt2-large, gpt2-xl, llama-1b, "
                          "llama-3b, llama-8b, llama-70b or llama-405b, nor a folder with "
                          "config.json",
                          c->model);
    }
    if ((c->folder || sizes[i].hidden) && given) {
        tn_options_refuse("--layers, --heads, --width and --vocab are for a GPT by name");
    }
    if (c->folder) {
        return;
    }
    if (sizes[i].hidden) {
        c->llama = TN_WITH(tn_llama, .layers = sizes[i].layers, .heads = sizes[i].heads,
                           .width = sizes[i].width, .hidden = sizes[i].hidden, .head_width = 0,
                           .tied = sizes[i].width < 4096,
                           .context = c->plan.positions ? c->plan.positions : 8192);
        return;
    }
    tn_gpt_options o = tn_gpt_defaults();
    o.layers = layers ? (int)layers : sizes[i].layers;
    o.heads = heads ? (int)heads : sizes[i].heads;
    o.width = c->gpt.width ? c->gpt.width : sizes[i].width;
    o.vocab = c->gpt.vocab ? c->gpt.vocab : o.vocab;
    o.context = given && c->plan.positions ? c->plan.positions : o.context;
    if (o.width % o.heads != 0) {
        tn_options_refuse("--width %lld is no multiple of %d heads", (long long)o.width, o.heads);
    }
    c->gpt = o;
}

/* ---- A file in DeepSpeed's format ------------------------------------------------------------ */

/* Micro-batch, accumulation, precision, stage and offload; the rest has no part in a plan. */
static void read_deepspeed(plan_command *c, const char *path) {
    tn__ds_file file;
    size_t bytes = 0;
    char *text = tn__read_whole(path, &bytes, "plan");
    bool done = text && tn__ds_read(&file, "plan", path, text, bytes, c->plan.ranks);
    free(text);
    if (!done) {
        return;
    }
    tn_plan_options *o = &c->plan;
    o->batch = file.micro_batch;
    o->compute = file.fp16.enabled ? TN_F16 : file.bf16.enabled ? TN_BF16 : TN_F32;
    o->tokens = file.batch; /* sequences, until the model's positions are known */
    if (file.stage > 0) {
        o->mesh.shard = 0;
        o->mesh.sharding.stage = (int)file.stage;
        o->mesh.sharding.offload = file.offload_optimizer || file.offload_param;
    }
}

/* ---- All of them ----------------------------------------------------------------------------- */

static const char about[] =
    "Says what training a language model on many ranks takes before there are any: bytes of a "
    "rank, seconds of a step, what limits it, and what it costs.\n\n"
    "Bytes at rest are exact. The peak and all times are modelled, from a device's numbers and "
    "links (those of --gpu, among eight in a host), or from what --measure finds here.\v"
    "Without --mesh every rank has a copy. The exit status is 1 when a plan cannot be made or "
    "nothing fits, 64 when the "
    "command line is wrong. docs/planning.md works through a case.";

tn_status plan_parse(plan_command *c, bool *sequences, int argc, char **argv) {
    *c = (plan_command){.model = "gpt2", .device = "cpu", .plan = tn_plan_defaults()};
    tn_plan_options *o = &c->plan;
    tn_plan_machine *m = &o->machine;
    int64_t ranks = 1, per_host = m->per_host, layers = 0, heads = 0;
    int precision = 1, gpu = 0;
    double flops = 0, reached = 0, speed = 0, host = 0, network = 0;
    const char *deepspeed = NULL;
    bool offload = false;
    const tn_option table[] = {
        {.value = "--model NAME|FOLDER --ranks N", .read = refuse_argument},
        {"model", 'm', "NAME",
         "gpt2 (-medium, -large, -xl), llama-8b (-1b, -3b, -70b, -405b), or a folder with "
         "config.json",
         .text = &c->model},
        {"layers", 0, "N", "Of a GPT of another size; heads, width, vocab too", .whole = &layers,
         .most = 1e5},
        {"heads", 0, "N", "Of attention", .whole = &heads, .most = 1e5},
        {"width", 0, "N", "Of an activation", .whole = &c->gpt.width, .most = 1e7},
        {"vocab", 0, "N", "Tokens that there are", .whole = &c->gpt.vocab, .most = 1e8},
        {"context", 0, "N", "Tokens of a sequence (the model's)", .whole = &o->positions,
         .most = 1e8},
        {.help = ""},
        {"ranks", 'n', "N", "All of them (1)", .whole = &ranks, .most = 1 << 20},
        {"mesh", 0, "MESH", "What they share: tp=2,pp=2,shard=4, as in `tern train`",
         .read = read_mesh, .to = &o->mesh},
        {"search", 's', NULL, "Tries all meshes, and shows the ten fastest that fit",
         .flag = &c->search},
        {"batch", 'b', "N", "Sequences of a micro-batch (1)", .whole = &o->batch,
         .most = INT32_MAX},
        {"tokens", 0, "N",
         "Of a step of all ranks, such as 512K (a micro-batch each; of --search 512K at least)",
         .read = read_tokens, .to = &o->tokens},
        {"precision", 0, "DTYPE", "Of computing; weights are f32", .choice = &precision,
         .choices = precisions},
        {"recompute", 0, NULL, "Blocks keep only their inputs for backward", .flag = &o->recompute},
        {"offload", 0, NULL,
         "Parts, gradients and states are on the CPU, whose time is not counted", .flag = &offload},
        {"deepspeed", 0, "FILE", "Batch, accumulation, precision, stage and offload from this file",
         .text = &deepspeed},
        {.help = ""},
        {"gpu", 0, "NAME", "Whose numbers these are if they are not given", .choice = &gpu,
         .choices = gpu_names},
        {"memory", 0, "BYTES", "Of a rank, such as 80G", .read = read_amount, .to = &m->memory},
        {"per-host", 0, "N", "Ranks of a host (8)", .whole = &per_host, .most = 1 << 20},
        {"flops", 0, "X", "TFLOP/s of a rank at most", .real = &flops},
        {"reached", 0, "X", "The share of them that products reach", .real = &reached, .most = 1},
        {"memory-speed", 0, "X", "GB/s", .real = &speed},
        {"host-link", 0, "X", "GB/s between ranks of a host", .real = &host},
        {"network-link", 0, "X", "GB/s of a rank to other hosts", .real = &network},
        {"measure", 0, NULL,
         "All of that from this machine: alone what a block reaches, under tern run the links too",
         .flag = &c->measure},
        {"device", 0, "NAME", "To measure: cpu, cuda, cuda:1", .text = &c->device},
        {.help = ""},
        {"tokens-total", 0, "N", "Of the whole training, such as 300B: says how long it takes",
         .read = read_amount, .to = &c->all_tokens},
        {"price", 0, "X", "Of a rank for an hour: says what it costs", .real = &c->price},
        {"draw", 0, NULL, "The pipeline's course as text, with two micro-batches for each stage",
         .flag = &c->draw},
        {"json", 0, NULL, "The plan as one line of JSON", .flag = &c->json},
        {0},
    };
    m->memory = 0; /* not given */
    if (tn_options_parse(argc, argv, about, table) != TN_OK) {
        return tn_error();
    }
    o->ranks = (int)ranks;
    o->compute = dtypes[precision];
    o->mesh.sharding.offload |= offload;
    m->per_host = (int)per_host;
    bool exact = o->compute == TN_F32;
    m->memory = m->memory ? m->memory : gpus[gpu].memory;
    m->flops = 1e12 * (flops ? flops : exact ? gpus[gpu].tflops_f32 : gpus[gpu].tflops);
    m->reached = reached ? reached : gpus[gpu].reached;
    m->memory_speed = 1e9 * (speed ? speed : gpus[gpu].speed);
    m->host_link = 1e9 * (host ? host : gpus[gpu].host);
    m->network_link = 1e9 * (network ? network : gpus[gpu].network);
    find_model(c, layers, heads);
    if (c->draw && (o->mesh.pp < 2 || c->search)) {
        tn_options_refuse("--draw draws a pipeline: --mesh pp=2");
    }
    *sequences = deepspeed != NULL;
    if (deepspeed) {
        read_deepspeed(c, deepspeed);
    }
    return tn_error();
}
