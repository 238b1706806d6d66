/* `tern plan`: what training takes before there are ranks. The model has no elements, so any size
 * is planned on any machine. */
#include "tools/verbs.h"

#include "core/error.h"
#include "core/folder.h"
#include "distributed/parallel/plan/plan.h"
#include "tensor/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/tern.h>

enum { SHOWN = 10 };

typedef struct plan_command {
    const char *model; /* by name, or a folder */
    double price;      /* per rank and hour; 0: not given */
    bool search, json;
    tn__plan_options plan;
} plan_command;

/* ---- Models and devices by name -------------------------------------------------------------- */

/* GPT-2s, and with `hidden` Llama 3s. */
typedef struct model_size {
    const char *name;
    int layers, heads;
    int64_t width, hidden;
} model_size;

static const model_size sizes[] = {{"gpt2", 12, 12, 768, 0},
                                   {"gpt2-medium", 24, 16, 1024, 0},
                                   {"gpt2-large", 36, 20, 1280, 0},
                                   {"gpt2-xl", 48, 25, 1600, 0},
                                   {"llama-1b", 16, 32, 2048, 8192},
                                   {"llama-3b", 28, 24, 3072, 8192},
                                   {"llama-8b", 32, 32, 4096, 14336},
                                   {"llama-70b", 80, 64, 8192, 28672},
                                   {"llama-405b", 126, 128, 16384, 53248},
                                   {0}};

#define MODELS "gpt2 (-medium, -large, -xl), llama-8b (-1b, -3b, -70b, -405b)"

/* docs/planning.md says where the numbers are from. */
static const char *const gpu_names[] = {"a100", "h100", "h200", "b200", NULL};
static const tn__plan_machine gpus[] = {{8, 80e9, 312e12, 19.5e12, 0.6, 1600e9, 235e9, 20e9},
                                        {8, 80e9, 989e12, 67e12, 0.4, 2600e9, 350e9, 40e9},
                                        {8, 141e9, 989e12, 67e12, 0.4, 3750e9, 350e9, 40e9},
                                        {8, 180e9, 2250e12, 75e12, 0.4, 6200e9, 700e9, 40e9}};

static tn_module *named_model(const model_size *size, int64_t context) {
    if (!size->hidden) {
        return (tn_module *)tn_gpt_new(
            TN_WITH(tn_gpt, .layers = size->layers, .heads = size->heads, .width = size->width));
    }
    return (tn_module *)tn_llama_new(TN_WITH(tn_llama, .layers = size->layers, .heads = size->heads,
                                             .width = size->width, .hidden = size->hidden,
                                             .head_width = 0, .tied = size->width < 4096,
                                             .context = context ? context : 8192));
}

/* The model, without elements, to be freed with tn_module_free. Exits with 64 if there is none;
 * NULL after an error. */
static tn_module *make_model(const plan_command *c) {
    TN_DEFER_INIT;
    for (const model_size *size = sizes; size->name; size++) {
        if (strcmp(c->model, size->name) == 0) { return named_model(size, c->plan.positions); }
    }
    if (!tn__folder_has(c->model, "config.json")) {
        tn_options_refuse("--model %s: neither " MODELS ", nor a folder with config.json",
                          c->model);
    }
    return tn_lm_new(c->model, 0);
}

/* ---- Options --------------------------------------------------------------------------------- */

static const char *const precisions[] = {"f32", "bf16", "f16", NULL};
static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};

static void refuse_argument(const char *text, void *unused) {
    tn_options_refuse("unexpected \"%s\": a model is --model NAME or FOLDER", text);
}

static void read_mesh(const char *text, void *to) {
    if (tn_spread_read(to, text) != TN_OK) {
        tn_options_refuse("--mesh %s: %s", text, tn__error_why());
    }
}

static double given_or(double given, double unit, double usual) {
    return given > 0 ? given * unit : usual;
}

static const char about[] =
    "Says what training a language model on many ranks takes before there are any: bytes of a "
    "rank, seconds of a step, where they go, and what they cost.\n\n"
    "Bytes at rest are exact. The peak and all times are modelled, from a device's numbers and "
    "links: those of --gpu, among eight in a host.\v"
    "Without --mesh every rank has a copy. The exit status is 1 when a plan cannot be made or "
    "nothing fits, 64 when the command line is wrong. docs/planning.md works through a case.";

/* Exits with 64 if the command line is wrong. */
static tn_status parse_command(plan_command *c, int argc, char **argv) {
    *c = (plan_command){.model = "gpt2", .plan = tn__plan_defaults()};
    tn__plan_options *o = &c->plan;
    int64_t ranks = 1, per_host = 8;
    int precision = 1, gpu = 0;
    tn__plan_machine given = {0};
    const tn_option table[] = {
        {.value = "--model NAME|FOLDER --ranks N", .read = refuse_argument},
        {"model", 'm', "NAME", MODELS ", or a folder with config.json", .text = &c->model},
        {"context", 0, "N", "Tokens of a sequence (the model's)", .whole = &o->positions,
         .most = 1e8},
        {"ranks", 'n', "N", "All of them (1)", .whole = &ranks, .most = 1 << 20},
        {"mesh", 0, "MESH", "What they share: tp=2,pp=2,shard=4, as in `tern train`",
         .read = read_mesh, .to = &o->mesh},
        {"search", 's', NULL, "Tries all meshes, and shows the ten fastest that fit",
         .flag = &c->search},
        {"batch", 'b', "N", "Sequences of a micro-batch (1)", .whole = &o->batch, .most = 1 << 30},
        {"tokens", 0, "N", "Of a step of all ranks (524288, or the next that they divide)",
         .whole = &o->tokens},
        {"precision", 0, "DTYPE", "Of computing; weights are f32", .choice = &precision,
         .choices = precisions},
        {"recompute", 0, NULL, "Blocks keep only their inputs for backward", .flag = &o->recompute},
        {"offload", 0, NULL,
         "Parts, gradients and states are on the CPU, whose time is not counted",
         .flag = &o->mesh.sharding.offload},
        {.help = ""},
        {"gpu", 0, "NAME", "Whose numbers these are if they are not given", .choice = &gpu,
         .choices = gpu_names},
        {"memory", 0, "X", "GB of a rank", .real = &given.memory},
        {"per-host", 0, "N", "Ranks of a host (8)", .whole = &per_host, .most = 1 << 20},
        {"flops", 0, "X", "TFLOP/s of a rank at most", .real = &given.flops},
        {"reached", 0, "X", "The share of them that products reach", .real = &given.reached,
         .least = 1e-6, .most = 1},
        {"memory-speed", 0, "X", "GB/s", .real = &given.memory_speed},
        {"host-link", 0, "X", "GB/s between ranks of a host", .real = &given.host_link},
        {"network-link", 0, "X", "GB/s of a rank to other hosts", .real = &given.network_link},
        {.help = ""},
        {"price", 0, "X", "Of a rank for an hour: says what tokens cost", .real = &c->price},
        {"json", 0, NULL, "Each plan as a line of JSON", .flag = &c->json},
        {0},
    };
    if (tn_options_parse(argc, argv, about, table) != TN_OK) { return tn_error(); }
    const tn__plan_machine *usual = &gpus[gpu];
    o->ranks = (int)ranks;
    o->compute = dtypes[precision];
    o->machine =
        (tn__plan_machine){.per_host = (int)per_host,
                           .memory = given_or(given.memory, 1e9, usual->memory),
                           .flops = given_or(given.flops, 1e12, usual->flops),
                           .flops_f32 = given_or(given.flops, 1e12, usual->flops_f32),
                           .reached = given_or(given.reached, 1, usual->reached),
                           .memory_speed = given_or(given.memory_speed, 1e9, usual->memory_speed),
                           .host_link = given_or(given.host_link, 1e9, usual->host_link),
                           .network_link = given_or(given.network_link, 1e9, usual->network_link)};
    return TN_OK;
}

/* ---- As text --------------------------------------------------------------------------------- */

static void say_head(const plan_command *c, const tn__plan_result *p) {
    printf("%s, %.4g M parameters, %s, on %d rank%s, %.0f tokens a step, micro-batches of %lld\n",
           c->model, (double)p->parameters / 1e6, tn_dtype_name(c->plan.compute), c->plan.ranks,
           c->plan.ranks > 1 ? "s" : "", p->tokens, (long long)c->plan.batch);
}

static void say_share(const char *name, double value, double all) {
    if (value > 0) { printf("  %-44s %9.4g %5.0f %%\n", name, value, 100 * value / all); }
}

static void say_bytes(const char *name, int64_t bytes, const tn__plan_result *p) {
    say_share(name, (double)bytes / 1e9, (double)p->peak / 1e9);
}

static void say_plan(const plan_command *c, const tn__plan_result *p) {
    printf("GB of rank %d, with %d micro-batch%s a step\n", p->rank, p->micros,
           p->micros > 1 ? "es" : "");
    say_bytes("weights", p->weights, p);
    say_bytes("copies to compute with", p->copies, p);
    say_bytes("gradients", p->gradients, p);
    say_bytes("states of the optimiser", p->states, p);
    say_bytes("of these on the CPU", p->host, p);
    say_bytes("units that are whole at once, modelled", p->gathered, p);
    say_bytes("activations, modelled", p->activations, p);
    say_bytes("gradients and logits on their way, modelled", p->working, p);
    say_bytes("at most, modelled", p->peak, p);
    printf("  %-44s %9.4g\n", p->fits ? "it fits in" : "IT DOES NOT FIT IN",
           c->plan.machine.memory / 1e9);
    printf("seconds of a step, modelled\n");
    say_share("computing", p->compute, p->seconds);
    say_share("exchanges of tp and cp", p->exchange, p->seconds);
    say_share("waiting for weights and gradients", p->data, p->seconds);
    say_share("waiting for other stages", p->bubble, p->seconds);
    say_share("the optimiser", p->optimiser, p->seconds);
}

static void say_table(const plan_command *c, const tn__plan_result *plans, int count) {
    printf("modelled:\n%4s %4s %5s %4s %4s %5s %9s %9s %9s %9s %9s %6s\n", "pp", "dp", "shard",
           "cp", "tp", "stage", "recompute", "GB", "s", "tokens/s", "computing", "share");
    for (int i = 0; i < count; i++) {
        const tn__plan_result *p = &plans[i];
        printf("%4d %4d %5d %4d %4d %5d %9s %9.2f %9.4g %9.4g %7.0f %% %4.0f %%\n", p->pp, p->dp,
               p->shard, p->cp, p->tp, p->stage, p->recompute ? "yes" : "no", (double)p->peak / 1e9,
               p->seconds, p->tokens / p->seconds, 100 * p->compute / p->seconds,
               100 * p->utilisation);
    }
    if (c->price > 0) {
        double hours = 1e9 * plans->seconds / plans->tokens / 3600;
        printf("modelled: %.4g for a billion tokens of the first, in %.4g hours\n",
               c->price * c->plan.ranks * hours, hours);
    }
}

/* ---- As JSON --------------------------------------------------------------------------------- */

#define MEMBER(name) TN_FIELD(tn__plan_result, name)

static const tn_field members[] = {
    MEMBER(pp),      MEMBER(dp),        MEMBER(shard),       MEMBER(cp),          MEMBER(tp),
    MEMBER(stage),   MEMBER(recompute), MEMBER(micros),      MEMBER(parameters),  MEMBER(rank),
    MEMBER(weights), MEMBER(copies),    MEMBER(gradients),   MEMBER(states),      MEMBER(rest),
    MEMBER(host),    MEMBER(gathered),  MEMBER(activations), MEMBER(working),     MEMBER(peak),
    MEMBER(fits),    MEMBER(seconds),   MEMBER(compute),     MEMBER(exchange),    MEMBER(data),
    MEMBER(bubble),  MEMBER(optimiser), MEMBER(tokens),      MEMBER(utilisation), {0}};

static void print_json(const tn__plan_result *plans, int count) {
    tn__buffer j = {.operation = "plan"};
    for (int i = 0; i < count; i++) {
        tn__members m = tn__members_begin(&j);
        tn__fields_put(&m, members, &plans[i], false);
        tn__members_end(&m);
        tn__buffer_text(&j, "\n");
    }
    if (!j.failed) { fwrite(j.at, 1, j.bytes, stdout); }
    tn__buffer_free(&j);
}

/* ---- The command ----------------------------------------------------------------------------- */

/* Returns how many there are; 0 after raising. */
static int find_plans(const plan_command *c, tn__plan_result *plans) {
    int count = 0;
    tn_module *m = make_model(c);
    if (m && !c->search) {
        count = tn__plan_of(m, c->plan, plans) == TN_OK;
    } else if (m) {
        count = tn__plan_search(m, c->plan, plans, SHOWN);
        if (count == 0 && tn_error() == TN_OK) {
            tn_raise(TN_EVALUE, "no mesh of %d ranks fits in %.4g GB", c->plan.ranks,
                     c->plan.machine.memory / 1e9);
        }
    }
    tn_module_free(m);
    return count;
}

int plan_main(int argc, char **argv) {
    plan_command c;
    tn__plan_result plans[SHOWN];
    int count = parse_command(&c, argc, argv) == TN_OK ? find_plans(&c, plans) : 0;
    if (c.json) {
        print_json(plans, count);
    } else if (count > 0) {
        say_head(&c, plans);
        if (!c.search) { say_plan(&c, plans); }
        say_table(&c, plans, count);
    }
    return 0;
}
