/* The options of `tern plan`, and the models and devices that they name. */
#include "core/folder.h"
#include "tools/error_words.h"
#include "tools/plan.h"

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
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* docs/planning.md says where the numbers are from. */
static const char *const gpu_names[] = {"a100", "h100", "h200", "b200", NULL};
static const struct {
    double memory, tflops, tflops_f32, reached, speed, host, network;
} gpus[] = {{80e9, 312, 19.5, 0.6, 1600, 235, 20},
            {80e9, 989, 67, 0.4, 2600, 350, 40},
            {141e9, 989, 67, 0.4, 3750, 350, 40},
            {180e9, 2250, 75, 0.4, 6200, 700, 40}};

/* ---- Values ---------------------------------------------------------------------------------- */

static void refuse_argument(const char *text, void *unused) {
    tn_options_refuse("unexpected \"%s\": a model is --model NAME or FOLDER", text);
}

/* What "80G" and "512K" say, if a thousand is `base`; -1 for anything else. */
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

/* The place of a name among the sizes; SIZES: it is a folder. */
static size_t find_size(const plan_command *c) {
    size_t i = 0;
    while (i < SIZES && strcmp(c->model, sizes[i].name) != 0) {
        i++;
    }
    if (i == SIZES && !tn__folder_has(c->model, "config.json")) {
        tn_options_refuse("--model %s: neither gpt2, gpt2-medium, gpt2-large, gpt2-xl, llama-1b, "
                          "llama-3b, llama-8b, llama-70b or llama-405b, nor a folder with "
                          "config.json",
                          c->model);
    }
    bool given = c->layers || c->heads || c->width || c->vocab;
    if (given && (i == SIZES || sizes[i].hidden)) {
        tn_options_refuse("--layers, --heads, --width and --vocab are for a GPT by name");
    }
    return i;
}

static tn_llama *new_llama(const plan_command *c, size_t size) {
    tn_llama_options o = tn_llama_defaults();
    o.layers = sizes[size].layers;
    o.heads = sizes[size].heads;
    o.width = sizes[size].width;
    o.hidden = sizes[size].hidden;
    o.head_width = 0;
    o.tied = o.width < 4096;
    o.context = c->plan.positions ? c->plan.positions : 8192;
    return tn_llama_new(o);
}

static tn_gpt *new_gpt(const plan_command *c, size_t size) {
    bool given = c->layers || c->heads || c->width || c->vocab;
    tn_gpt_options o = tn_gpt_defaults();
    o.layers = c->layers ? (int)c->layers : sizes[size].layers;
    o.heads = c->heads ? (int)c->heads : sizes[size].heads;
    o.width = c->width ? c->width : sizes[size].width;
    o.vocab = c->vocab ? c->vocab : o.vocab;
    o.context = given && c->plan.positions ? c->plan.positions : o.context;
    return tn_gpt_new(o);
}

tn_module *plan_model(const plan_command *c) {
    TN_DEFER_INIT;
    size_t size = find_size(c);
    if (size == SIZES) { return tn_lm_new(c->model, 0); }
    void *m = sizes[size].hidden ? (void *)new_llama(c, size) : (void *)new_gpt(c, size);
    return m;
}

/* ---- All of them ----------------------------------------------------------------------------- */

static const char about[] =
    "Says what training a language model on many ranks takes before there are any: bytes of a "
    "rank, seconds of a step, what limits it, and what it costs.\n\n"
    "Bytes at rest are exact. The peak and all times are modelled, from a device's numbers and "
    "links: those of --gpu, among eight in a host.\v"
    "Without --mesh every rank has a copy. The exit status is 1 when a plan cannot be made or "
    "nothing fits, 64 when the command line is wrong. docs/planning.md works through a case.";

tn_status plan_parse(plan_command *c, int argc, char **argv) {
    *c = (plan_command){.model = "gpt2", .plan = tn_plan_defaults()};
    tn_plan_options *o = &c->plan;
    tn_plan_machine *m = &o->machine;
    int64_t ranks = 1, per_host = m->per_host;
    int precision = 1, gpu = 0;
    double memory = 0, flops = 0, reached = 0, speed = 0, host = 0, network = 0; /* not given */
    bool offload = false;
    const tn_option table[] = {
        {.value = "--model NAME|FOLDER --ranks N", .read = refuse_argument},
        {"model", 'm', "NAME",
         "gpt2 (-medium, -large, -xl), llama-8b (-1b, -3b, -70b, -405b), or a folder with "
         "config.json",
         .text = &c->model},
        {"layers", 0, "N", "Of a GPT of another size; heads, width, vocab too", .whole = &c->layers,
         .most = 1e5},
        {"heads", 0, "N", "Of attention", .whole = &c->heads, .most = 1e5},
        {"width", 0, "N", "Of an activation", .whole = &c->width, .most = 1e7},
        {"vocab", 0, "N", "Tokens that there are", .whole = &c->vocab, .most = 1e8},
        {"context", 0, "N", "Tokens of a sequence (the model's)", .whole = &o->positions,
         .most = 1e8},
        {.help = ""},
        {"ranks", 'n', "N", "All of them (1)", .whole = &ranks, .most = 1 << 20},
        {"mesh", 0, "MESH", "What they share: tp=2,pp=2,shard=4, as in `tern train`",
         .read = read_mesh, .to = &o->mesh},
        {"search", 's', NULL, "Tries all meshes, and shows the ten fastest that fit",
         .flag = &c->search},
        {"batch", 'b', "N", "Sequences of a micro-batch (1)", .whole = &o->batch, .most = 1 << 30},
        {"tokens", 0, "N",
         "Of a step of all ranks, such as 512K (a micro-batch each; of --search 512K at least)",
         .read = read_tokens, .to = &o->tokens},
        {"precision", 0, "DTYPE", "Of computing; weights are f32", .choice = &precision,
         .choices = precisions},
        {"recompute", 0, NULL, "Blocks keep only their inputs for backward", .flag = &o->recompute},
        {"offload", 0, NULL,
         "Parts, gradients and states are on the CPU, whose time is not counted", .flag = &offload},
        {.help = ""},
        {"gpu", 0, "NAME", "Whose numbers these are if they are not given", .choice = &gpu,
         .choices = gpu_names},
        {"memory", 0, "BYTES", "Of a rank, such as 80G", .read = read_amount, .to = &memory},
        {"per-host", 0, "N", "Ranks of a host (8)", .whole = &per_host, .most = 1 << 20},
        {"flops", 0, "X", "TFLOP/s of a rank at most", .real = &flops},
        {"reached", 0, "X", "The share of them that products reach", .real = &reached, .most = 1},
        {"memory-speed", 0, "X", "GB/s", .real = &speed},
        {"host-link", 0, "X", "GB/s between ranks of a host", .real = &host},
        {"network-link", 0, "X", "GB/s of a rank to other hosts", .real = &network},
        {.help = ""},
        {"tokens-total", 0, "N", "Of the whole training, such as 300B: says how long it takes",
         .read = read_amount, .to = &c->all_tokens},
        {"price", 0, "X", "Of a rank for an hour: says what it costs", .real = &c->price},
        {"json", 0, NULL, "The plan as one line of JSON", .flag = &c->json},
        {0},
    };
    if (tn_options_parse(argc, argv, about, table) != TN_OK) { return tn_error(); }
    o->ranks = (int)ranks;
    o->compute = dtypes[precision];
    o->mesh.sharding.offload |= offload;
    bool exact = o->compute == TN_F32;
    *m = TN_WITH(tn_plan_machine, .per_host = (int)per_host,
                 .memory = memory ? memory : gpus[gpu].memory,
                 .flops = 1e12 * (flops   ? flops
                                  : exact ? gpus[gpu].tflops_f32
                                          : gpus[gpu].tflops),
                 .reached = reached ? reached : gpus[gpu].reached,
                 .memory_speed = 1e9 * (speed ? speed : gpus[gpu].speed),
                 .host_link = 1e9 * (host ? host : gpus[gpu].host),
                 .network_link = 1e9 * (network ? network : gpus[gpu].network));
    return TN_OK;
}
