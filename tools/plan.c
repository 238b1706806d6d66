/* `tern plan`: what training takes before there are ranks. The model has no elements, so any size
 * is planned on any machine. */
#include "tools/plan.h"

#include "text/json_write.h"
#include "tools/error_words.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 10, SEARCHED = 512 << 10 /* tokens of a step */ };

/* ---- The model ------------------------------------------------------------------------------- */

/* NULL after an error. To be freed with tn_lm_free. */
static tn_module *make_model(const plan_command *c) {
    TN_DEFER_INIT;
    if (c->folder) {
        return tn_lm_new(c->model, 0);
    }
    union {
        tn_module base;
        tn_gpt gpt;
        tn_llama llama;
    } *m = calloc(1, sizeof(*m));
    if (m && c->llama.layers) {
        tn_llama_init(&m->llama, c->llama);
    } else if (m) {
        tn_gpt_init(&m->gpt, c->gpt);
    }
    return m && tn_error() == TN_OK ? &m->base : NULL;
}

/* Numbers of a file that count sequences become tokens; without a number of its own a sequence is
 * as long as the model allows, and a search is for steps as people make them, not for the smallest
 * that there are. */
static tn_status settle_tokens(plan_command *c, tn_module *m, bool sequences) {
    tn_lm_shape shape;
    tn_plan_options *o = &c->plan;
    if (tn_lm_shape_of(m, &shape) == TN_OK) {
        o->positions = o->positions ? o->positions : shape.context;
        o->tokens *= sequences ? o->positions : 1;
        int64_t each;
        if (c->search && o->tokens == 0 &&
            !__builtin_mul_overflow(o->batch * o->ranks, o->positions, &each)) {
            o->tokens = (SEARCHED + each - 1) / each * each;
        }
    }
    return tn_error();
}

/* ---- As text --------------------------------------------------------------------------------- */

/* The words of --mesh. */
static const char *mesh_text(const tn_plan *p, char *text, size_t size) {
    const struct {
        const char *name;
        int size;
    } dims[] = {{"pp", p->pp}, {"dp", p->dp}, {"shard", p->shard}, {"cp", p->cp}, {"tp", p->tp}};
    size_t at = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        if (dims[i].size > 1) {
            at += (size_t)snprintf(text + at, size - at, "%s%s=%d", at ? "," : "", dims[i].name,
                                   dims[i].size);
        }
    }
    if (p->stage > 0) {
        at += (size_t)snprintf(text + at, size - at, "%sstage=%d", at ? "," : "", p->stage);
    }
    if (at == 0) {
        snprintf(text, size, "dp=1");
    }
    return text;
}

/* A number in the largest unit of which `most` is at least a tenth; they fall by thousands. */
static void say_number(const char *name, double value, double most, const char *const *unit) {
    for (; most < 0.1 && unit[1]; unit++) {
        most *= 1000;
        value *= 1000;
    }
    printf("  %-34s %9.3f %s", name, value, *unit);
}

static void say_bytes(const char *name, int64_t bytes, const tn_plan *p, const char *how) {
    static const char *const units[] = {"GB", "MB", "kB", NULL};
    if (bytes != 0) {
        say_number(name, (double)bytes / 1e9, (double)p->peak / 1e9, units);
        printf("%s\n", how);
    }
}

static void say_seconds(const char *name, double seconds, const tn_plan *p) {
    static const char *const units[] = {"s", "ms", "us", NULL};
    if (seconds > 0) {
        say_number(name, seconds, p->seconds, units);
        printf("  %3.0f %%\n", 100 * seconds / p->seconds);
    }
}

static void say_head(const plan_command *c, const tn_plan *p) {
    char mesh[96];
    printf("%s, %.4g M parameters, %s%s, on %d rank%s: %s\n", c->model, (double)p->parameters / 1e6,
           tn_dtype_name(c->plan.compute), p->recompute ? ", recompute" : "", c->plan.ranks,
           c->plan.ranks > 1 ? "s" : "", mesh_text(p, mesh, sizeof(mesh)));
    printf("%.0f tokens a step: %d micro-batch%s of %lld x %lld", p->tokens, p->micros,
           p->micros > 1 ? "es" : "", (long long)c->plan.batch, (long long)c->plan.positions);
    int shares = p->dp * p->shard;
    printf(shares > 1 ? " for each of %d shares of the data\n" : "\n", shares);
}

static void say_memory(const plan_command *c, const tn_plan *p) {
    const char *modelled = "  modelled";
    if (p->pp > 1) {
        printf("bytes of rank %d, whose stage needs most; at most %d graphs at once\n", p->rank,
               p->alive);
    } else {
        printf("bytes of a rank\n");
    }
    say_bytes("weights", p->weights, p, "");
    say_bytes("copies to compute with", p->copies, p, "");
    say_bytes("gradients", p->gradients, p, "");
    say_bytes("states of the optimiser", p->states, p, "");
    say_bytes("at rest", p->rest, p, "");
    say_bytes("of these on the CPU", p->host, p, "");
    say_bytes("units that are whole at once", p->gathered, p, modelled);
    say_bytes("activations", p->activations, p, modelled);
    say_bytes("gradients, logits on their way", p->working, p, modelled);
    say_bytes("at most", p->peak, p, modelled);
    printf("  %-34s %9.3f GB\n", p->fits ? "it fits in" : "IT DOES NOT FIT IN",
           c->plan.machine.memory / 1e9);
}

static void say_cost(const plan_command *c, const tn_plan *p) {
    double rate = p->tokens / p->seconds;
    printf("modelled: %.4g tokens per second, %.0f %% of the ranks' operations; limit: %s\n", rate,
           100 * p->utilisation, p->limit);
    if (c->all_tokens > 0) {
        printf("modelled: %.4g hours for %.4g tokens\n", c->all_tokens / rate / 3600,
               c->all_tokens);
    }
    if (c->price > 0) {
        double tokens = c->all_tokens > 0 ? c->all_tokens : 1e9;
        printf("modelled: %.4g for %.4g tokens, at %g for a rank and hour\n",
               c->price * c->plan.ranks * tokens / rate / 3600, tokens, c->price);
    }
}

static void say_plan(const plan_command *c, const tn_plan *p) {
    say_head(c, p);
    say_memory(c, p);
    printf("seconds of a step, modelled\n");
    say_seconds("computing", p->compute, p);
    say_seconds("sums of tp", p->tensor, p);
    say_seconds("exchanges of cp", p->context, p);
    say_seconds("waiting for weights and gradients", p->data, p);
    say_seconds("waiting for other stages", p->bubble, p);
    say_seconds("the optimiser", p->optimiser, p);
    say_seconds("in all", p->seconds, p);
    say_cost(c, p);
}

/* ---- As JSON --------------------------------------------------------------------------------- */

static void put_plan(tn__buffer *j, const tn_plan *p) {
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"pp", p->pp},
                   {"dp", p->dp},
                   {"shard", p->shard},
                   {"cp", p->cp},
                   {"tp", p->tp},
                   {"stage", p->stage},
                   {"recompute", p->recompute},
                   {"micros", p->micros},
                   {"alive", p->alive},
                   {"parameters", (double)p->parameters},
                   {"rank", p->rank},
                   {"weights", (double)p->weights},
                   {"copies", (double)p->copies},
                   {"gradients", (double)p->gradients},
                   {"states", (double)p->states},
                   {"rest", (double)p->rest},
                   {"host", (double)p->host},
                   {"gathered", (double)p->gathered},
                   {"activations", (double)p->activations},
                   {"working", (double)p->working},
                   {"peak", (double)p->peak},
                   {"fits", p->fits},
                   {"seconds", p->seconds},
                   {"compute", p->compute},
                   {"tensor", p->tensor},
                   {"context", p->context},
                   {"data", p->data},
                   {"bubble", p->bubble},
                   {"optimiser", p->optimiser},
                   {"tokens", p->tokens},
                   {"utilisation", p->utilisation}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        tn__buffer_format(j, "%s\"%s\":%.15g", i ? "," : "{", numbers[i].name, numbers[i].value);
    }
    tn__buffer_text(j, ",\"limit\":");
    tn__json_put_string(j, p->limit);
    tn__buffer_text(j, "}");
}

/* `list`: in brackets. */
static void print_json(const tn_plan *plans, int count, bool list) {
    tn__buffer j = {.operation = "plan"};
    tn__buffer_text(&j, list ? "[" : "");
    for (int i = 0; i < count; i++) {
        tn__buffer_text(&j, i ? "," : "");
        put_plan(&j, &plans[i]);
    }
    tn__buffer_text(&j, list ? "]\n" : "\n");
    if (!j.failed) {
        fwrite(j.at, 1, j.bytes, stdout);
    }
    tn__buffer_free(&j);
}

/* ---- Verbs ----------------------------------------------------------------------------------- */

/* A step's course, or its beginning and end; a backward takes two forwards, with recompute three.
 */
static void draw_pipeline(const plan_command *c, const tn_plan *p) {
    int micros = p->micros < 2 * p->pp ? p->micros : 2 * p->pp;
    tn_pipe_schedule *s = tn_pipe_schedule_new(c->plan.mesh.pipeline.kind, p->pp,
                                               c->plan.mesh.pipeline.chunks, micros);
    if (micros < p->micros) {
        printf("with %d of the %d micro-batches:\n", micros, p->micros);
    }
    double half = p->recompute ? 1.5 : 1;
    if (s) {
        tn_pipe_simulate(s, (tn_pipe_cost){1, half, half, 0}, NULL, stdout);
    }
    tn_pipe_schedule_free(s);
}

static tn_status plan_one(const plan_command *c, tn_module *m) {
    tn_plan plan;
    if (tn_plan_of(m, c->plan, &plan) != TN_OK) {
        return tn_error();
    }
    if (c->json) {
        print_json(&plan, 1, false);
    } else {
        say_plan(c, &plan);
    }
    if (c->draw) {
        draw_pipeline(c, &plan);
    }
    return tn_error();
}

static void say_best(const plan_command *c, const tn_plan *best, int count) {
    printf("%s, %.4g M parameters, %s, on %d ranks, %.0f tokens a step, micro-batches of %lld; "
           "modelled\n",
           c->model, (double)best->parameters / 1e6, tn_dtype_name(c->plan.compute), c->plan.ranks,
           best->tokens, (long long)c->plan.batch);
    printf("%-36s %9s %9s %9s %6s  %s\n", "mesh", "GB", "s", "tokens/s", "share", "limit");
    for (int i = 0; i < count; i++) {
        const tn_plan *p = &best[i];
        char mesh[96];
        mesh_text(p, mesh, sizeof(mesh));
        size_t at = strlen(mesh);
        snprintf(mesh + at, sizeof(mesh) - at, "%s", p->recompute ? " recompute" : "");
        printf("%-36s %9.2f %9.4g %9.4g %4.0f %%  %s\n", mesh, (double)p->peak / 1e9, p->seconds,
               p->tokens / p->seconds, 100 * p->utilisation, p->limit);
    }
}

static tn_status search_all(const plan_command *c, tn_module *m) {
    tn_plan best[SHOWN];
    int count = tn_plan_search(m, c->plan, best, SHOWN);
    if (tn_error() == TN_OK && count == 0) {
        return tn_raise(TN_EVALUE, "no mesh of %d ranks fits in %.4g GB", c->plan.ranks,
                        c->plan.machine.memory / 1e9);
    }
    if (count > 0 && c->json) {
        print_json(best, count, true);
    } else if (count > 0) {
        say_best(c, best, count);
    }
    return tn_error();
}

/* Joins the ranks of `tern run`, of which the first speaks. */
static bool measure_here(plan_command *c, tn_module *m) {
    tn_device device = tn_device_named(c->device);
    tn_dist_options d = tn_dist_defaults();
    d.device = device.kind;
    tn_group *world = tn_dist_init(d);
    tn_plan_machine *machine = &c->plan.machine;
    bool first = tn_group_rank(world) == 0;
    if (tn_plan_measure(m, c->plan, world, machine) == TN_OK && first && !c->json) {
        printf("measured: %.4g TFLOP/s, memory %.4g GB/s", machine->flops / 1e12,
               machine->memory_speed / 1e9);
        if (tn_group_size(world) > 1) {
            printf(", %.4g GB/s between ranks after %.3g ms", machine->host_link / 1e9,
                   1e3 * machine->host_delay);
        }
        putchar('\n');
    }
    return first;
}

int plan_main(int argc, char **argv) {
    plan_command c;
    tn_module *m = NULL;
    bool sequences = false, speaks = true;
    bool done = plan_parse(&c, &sequences, argc, argv) == TN_OK && (m = make_model(&c)) != NULL &&
                settle_tokens(&c, m, sequences) == TN_OK;
    if (done && c.measure) {
        speaks = measure_here(&c, m);
    }
    if (done && speaks && tn_error() == TN_OK) {
        tn_status status = c.search ? search_all(&c, m) : plan_one(&c, m);
        (void)status; /* pending */
    }
    tn_lm_free(m);
    if (tn_error() != TN_OK) {
        fprintf(stderr, "tern plan: %s\n", error_why());
        return 1;
    }
    tn_dist_finish();
    return 0;
}
