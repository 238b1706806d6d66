/* `tern plan`: what training takes before there are ranks. The model has no elements, so any size
 * is planned on any machine. */
#include "tools/plan.h"

#include "tensor/fields.h"
#include "tools/error_words.h"

#include <stdio.h>
#include <string.h>

enum { SHOWN = 10, SEARCHED = 512 << 10 /* tokens of a step */ };

/* A sequence is as long as the model allows unless it is given, and a search is for steps as people
 * make them, not for the smallest that there are. */
static tn_status settle_tokens(plan_command *c, tn_module *m) {
    tn_lm_shape shape;
    tn_plan_options *o = &c->plan;
    if (tn_lm_shape_of(m, &shape) == TN_OK) {
        o->positions = o->positions ? o->positions : shape.context;
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
        int size, least; /* below which there is no word */
    } words[] = {{"pp", p->pp, 2}, {"dp", p->dp, 2}, {"shard", p->shard, 2},
                 {"cp", p->cp, 2}, {"tp", p->tp, 2}, {"stage", p->stage, 1}};
    size_t at = 0;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (words[i].size >= words[i].least) {
            at += (size_t)snprintf(text + at, size - at, "%s%s=%d", at ? "," : "", words[i].name,
                                   words[i].size);
        }
    }
    if (at == 0) { snprintf(text, size, "dp=1"); }
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
        strncat(mesh, p->recompute ? " recompute" : "", sizeof(mesh) - strlen(mesh) - 1);
        printf("%-36s %9.2f %9.4g %9.4g %4.0f %%  %s\n", mesh, (double)p->peak / 1e9, p->seconds,
               p->tokens / p->seconds, 100 * p->utilisation, p->limit);
    }
}

/* ---- As JSON --------------------------------------------------------------------------------- */

#define MEMBER(name) TN_FIELD(tn_plan, name)

static const tn_field members[] = {MEMBER(pp),          MEMBER(dp),        MEMBER(shard),
                                   MEMBER(cp),          MEMBER(tp),        MEMBER(stage),
                                   MEMBER(recompute),   MEMBER(micros),    MEMBER(alive),
                                   MEMBER(parameters),  MEMBER(rank),      MEMBER(weights),
                                   MEMBER(copies),      MEMBER(gradients), MEMBER(states),
                                   MEMBER(rest),        MEMBER(host),      MEMBER(gathered),
                                   MEMBER(activations), MEMBER(working),   MEMBER(peak),
                                   MEMBER(fits),        MEMBER(seconds),   MEMBER(compute),
                                   MEMBER(tensor),      MEMBER(context),   MEMBER(data),
                                   MEMBER(bubble),      MEMBER(optimiser), MEMBER(tokens),
                                   MEMBER(utilisation), MEMBER(limit),     {0}};

/* `list`: in brackets. */
static void print_json(const tn_plan *plans, int count, bool list) {
    tn__buffer j = {.operation = "plan"};
    tn__buffer_text(&j, list ? "[" : "");
    for (int i = 0; i < count; i++) {
        tn__buffer_text(&j, i ? "," : "");
        tn__members m = tn__members_begin(&j);
        tn__fields_put(&m, members, &plans[i], false);
        tn__members_end(&m);
    }
    tn__buffer_text(&j, list ? "]\n" : "\n");
    if (!j.failed) { fwrite(j.at, 1, j.bytes, stdout); }
    tn__buffer_free(&j);
}

/* ---- Verbs ----------------------------------------------------------------------------------- */

static void plan_one(const plan_command *c, tn_module *m) {
    tn_plan plan;
    if (tn_plan_of(m, c->plan, &plan) != TN_OK) { return; }
    if (c->json) {
        print_json(&plan, 1, false);
    } else {
        say_plan(c, &plan);
    }
}

static void search_all(const plan_command *c, tn_module *m) {
    tn_plan best[SHOWN];
    int count = tn_plan_search(m, c->plan, best, SHOWN);
    if (count == 0) {
        tn_raise(TN_EVALUE, "no mesh of %d ranks fits in %.4g GB", c->plan.ranks,
                 c->plan.machine.memory / 1e9);
    } else if (c->json) {
        print_json(best, count, true);
    } else {
        say_best(c, best, count);
    }
}

int plan_main(int argc, char **argv) {
    plan_command c;
    if (plan_parse(&c, argc, argv) == TN_OK) {
        tn_module *m = plan_model(&c);
        if (m && settle_tokens(&c, m) == TN_OK) { (c.search ? search_all : plan_one)(&c, m); }
        tn_module_free(m);
    }
    if (tn_error() != TN_OK) {
        fprintf(stderr, "tern plan: %s\n", error_why());
        return 1;
    }
    return 0;
}
