/* `tern plan`: what training takes before there are ranks. The model has no elements, so any size
 * is planned on any machine. */
#include "tools/plan.h"

#include "tensor/fields.h"
#include "tools/error_words.h"

#include <stdio.h>
#include <string.h>

enum { SHOWN = 10 };

/* ---- As text --------------------------------------------------------------------------------- */

static void say_head(const plan_command *c, const tn_plan *p) {
    printf("%s, %.4g M parameters, %s, on %d rank%s, %.0f tokens a step, micro-batches of %lld\n",
           c->model, (double)p->parameters / 1e6, tn_dtype_name(c->plan.compute), c->plan.ranks,
           c->plan.ranks > 1 ? "s" : "", p->tokens, (long long)c->plan.batch);
}

static void say_share(const char *name, double value, double all) {
    if (value > 0) { printf("  %-44s %9.4g %5.0f %%\n", name, value, 100 * value / all); }
}

static void say_bytes(const char *name, int64_t bytes, const tn_plan *p) {
    say_share(name, (double)bytes / 1e9, (double)p->peak / 1e9);
}

static void say_plan(const plan_command *c, const tn_plan *p) {
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

static void say_table(const plan_command *c, const tn_plan *plans, int count) {
    printf("modelled:\n%4s %4s %5s %4s %4s %5s %9s %9s %9s %9s %9s %6s\n", "pp", "dp", "shard",
           "cp", "tp", "stage", "recompute", "GB", "s", "tokens/s", "computing", "share");
    for (int i = 0; i < count; i++) {
        const tn_plan *p = &plans[i];
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

#define MEMBER(name) TN_FIELD(tn_plan, name)

static const tn_field members[] = {
    MEMBER(pp),      MEMBER(dp),        MEMBER(shard),       MEMBER(cp),          MEMBER(tp),
    MEMBER(stage),   MEMBER(recompute), MEMBER(micros),      MEMBER(parameters),  MEMBER(rank),
    MEMBER(weights), MEMBER(copies),    MEMBER(gradients),   MEMBER(states),      MEMBER(rest),
    MEMBER(host),    MEMBER(gathered),  MEMBER(activations), MEMBER(working),     MEMBER(peak),
    MEMBER(fits),    MEMBER(seconds),   MEMBER(compute),     MEMBER(exchange),    MEMBER(data),
    MEMBER(bubble),  MEMBER(optimiser), MEMBER(tokens),      MEMBER(utilisation), {0}};

static void print_json(const tn_plan *plans, int count) {
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

/* Raises if no plan fits. */
static int find_plans(const plan_command *c, tn_module *m, tn_plan *plans) {
    if (!c->search) { return tn_plan_of(m, c->plan, plans) == TN_OK; }
    int count = tn_plan_search(m, c->plan, plans, SHOWN);
    if (count == 0 && tn_error() == TN_OK) {
        tn_raise(TN_EVALUE, "no mesh of %d ranks fits in %.4g GB", c->plan.ranks,
                 c->plan.machine.memory / 1e9);
    }
    return count;
}

static void plan_all(const plan_command *c, tn_module *m) {
    tn_plan plans[SHOWN];
    int count = find_plans(c, m, plans);
    if (c->json) {
        print_json(plans, count);
    } else if (count > 0) {
        say_head(c, plans);
        if (!c->search) { say_plan(c, plans); }
        say_table(c, plans, count);
    }
}

int plan_main(int argc, char **argv) {
    plan_command c;
    if (plan_parse(&c, argc, argv) == TN_OK) {
        tn_module *m = plan_model(&c);
        if (m && tn_error() == TN_OK) { plan_all(&c, m); }
        tn_lm_free(m);
    }
    if (tn_error() != TN_OK) {
        fprintf(stderr, "tern plan: %s\n", error_why());
        return 1;
    }
    return 0;
}
