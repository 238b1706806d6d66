/* What this machine reaches: a block's forward and backward, the optimiser's step over it, and
 * gathers of three sizes. Each is done for a while, by all ranks at once as in a step, so that what
 * they share is measured as it is shared; the fastest of several tries counts. */
#include "core/clock.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/plan/plan.h"

#include <math.h>

enum { TRIES = 3, GATHERS = 8 };
static const char operation[] = "plan_measure";
static const double long_enough = 0.2; /* seconds of a try: ranks that share a processor take turns
                                        * of some milliseconds */
static const double gathered[] = {1 << 16, 1 << 20, 1 << 23}; /* bytes */

/* The slowest rank's, on every rank. */
static double slowest_of(tn_group *world, double seconds) {
    TN_SCOPE;
    TN__ON_CPU;
    tn_tensor *t = tn_from_data(&seconds, TN_DIMS(1), TN_F64);
    if (tn_group_size(world) > 1) {
        tn_work_wait(tn_all_reduce(world, t, TN_MAX), 0);
    }
    return tn__pending() ? NAN : tn_item(t);
}

/* Seconds of one `once`, which every rank calls for a while; with `alone` only the first rank does,
 * and the others wait. */
static double time_work(void (*once)(void *user), void *user, tn_group *world, bool alone) {
    double best = INFINITY;
    bool works = !alone || tn_group_rank(world) == 0;
    for (int i = 0; i <= TRIES && !tn__pending(); i++) {
        int count = 0;
        double seconds = slowest_of(world, 0); /* all begin together */
        double began = tn__now();
        while (works && !tn__pending() && (count == 0 || (i > 0 && seconds < long_enough))) {
            once(user);
            tn_device_synchronize(tn_default_device());
            count++;
            seconds = tn__now() - began;
        }
        seconds = slowest_of(world, count > 0 ? seconds / count : 0);
        best = i > 0 && seconds < best ? seconds : best; /* the first one allocates */
    }
    return best;
}

typedef struct block_work {
    tn_module *block;
    tn_tensor *x;
    tn_optim *opt;
} block_work;

static void pass_block(void *user) {
    TN_SCOPE;
    const block_work *w = user;
    tn_optim_zero_grad(w->opt);
    tn_backward(tn_sum_all(tn_call(w->block, w->x)));
}

static void step_block(void *user) {
    tn_optim_step(((const block_work *)user)->opt);
}

/* Seconds of a forward and backward of the block, of all ranks at once and of one alone, and of a
 * step of AdamW over its parameters. */
typedef struct block_seconds {
    double passes, alone, step;
} block_seconds;

static block_seconds time_block(tn_module *block, const tn__plan_case *c, tn_group *world) {
    TN_SCOPE;
    int64_t width = c->model->shape.width;
    tn_tensor *x = tn_randn(TN_DIMS(c->o.batch, c->positions, width), TN_F32);
    block_work w = {.block = block,
                    .x = tn_set_requires_grad(tn_cast(x, c->o.compute), true),
                    .opt = tn_adamw(block, tn_adamw_defaults())};
    block_seconds t;
    t.passes = t.alone = time_work(pass_block, &w, world, false);
    if (tn_group_size(world) > 1) {
        t.alone = time_work(pass_block, &w, world, true);
    }
    t.step = time_work(step_block, &w, world, false);
    tn_optim_free(w.opt);
    return t;
}

/* Writes what fits these seconds: a forward's time is operations / flops + bytes / speed, and
 * backward takes twice that. */
static void fit_block(const tn__plan_case *c, const tn_module *block, block_seconds t,
                      tn_plan_machine *machine) {
    tn__plan_load load = tn__plan_block(c);
    double numbers = 3 + 2.0 * 2; /* of AdamW, read or written */
    machine->memory_speed = 4 * numbers * (double)tn_module_count((void *)block) / t.step;
    double forward = t.passes / 3, products = forward - load.bytes / machine->memory_speed;
    /* where bytes alone would take as long, they are in caches */
    machine->flops = load.operations / fmax(products, forward / 4);
    machine->reached = 1;
    machine->shared = fmax(1, t.passes / t.alone);
}

/* ---- Links ----------------------------------------------------------------------------------- */

/* Between the same memory each time, as in training. */
static double time_gather(tn_group *world, double bytes) {
    TN_SCOPE;
    double best = INFINITY;
    int ranks = tn_group_size(world);
    int64_t each = (int64_t)(bytes / 4 / ranks);
    tn_tensor *part = tn_zeros(TN_DIMS(each), TN_F32);
    tn_tensor *all = tn_group_empty_on(world, tn_default_device(), TN_DIMS(ranks, each), TN_F32);
    for (int i = 0; i <= TRIES && !tn__pending(); i++) {
        tn_barrier(world);
        double began = tn__now();
        for (int k = 0; k < GATHERS && !tn__pending(); k++) {
            tn_work_wait(tn_all_gather(world, all, part), 0);
        }
        tn_device_synchronize(tn_default_device());
        double seconds = slowest_of(world, (tn__now() - began) / GATHERS);
        best = i > 0 && seconds < best ? seconds : best;
    }
    return best;
}

/* delay + (n - 1) / n bytes / link through the smallest and the largest; the middle one must not be
 * slower than both say, so a link with a knee counts by its slower half. */
static void fit_links(tn_group *world, tn_plan_machine *machine) {
    enum { SIZES = sizeof(gathered) / sizeof(gathered[0]) };
    int ranks = tn_group_size(world);
    double seconds[SIZES], share = (ranks - 1.0) / ranks;
    for (int i = 0; i < SIZES; i++) {
        seconds[i] = time_gather(world, gathered[i]);
    }
    double link = INFINITY;
    for (int i = 0; i + 1 < SIZES; i++) {
        double more = seconds[i + 1] - seconds[i];
        if (more > 0) {
            link = fmin(link, share * (gathered[i + 1] - gathered[i]) / more);
        }
    }
    double delay = fmax(0, seconds[0] - share * gathered[0] / link);
    if (tn__pending() || !isfinite(link)) {
        return; /* what there was stays */
    }
    bool here = ranks <= machine->per_host;
    *(here ? &machine->host_link : &machine->network_link) = link;
    *(here ? &machine->host_delay : &machine->network_delay) = delay;
}

/* ---- All of it ------------------------------------------------------------------------------- */

tn_status tn_plan_measure(void *m, tn_plan_options options, tn_group *world,
                          tn_plan_machine *machine) {
    tn__plan_model model = {0};
    if (!machine) {
        return tn__raise(TN_EVALUE, operation, "the machine is NULL");
    }
    if (tn__pending() || !tn__options_made(options.from_defaults, operation, "tn_plan") ||
        !tn__plan_read_model(m, &model)) {
        tn__plan_model_free(&model);
        return tn_error();
    }
    tn_plan_options o = tn_plan_defaults();
    o.batch = options.batch;
    o.compute = options.compute;
    o.positions = options.positions ? options.positions : model.shape.context;
    tn__plan_case c = {.model = &model, .o = o, .positions = o.positions};
    tn_module *block = model.part[1];
    if (o.compute != TN_F32) {
        tn_module_set_precision(block, TN_WITH(tn_precision, .compute = o.compute));
    }
    if (!tn__pending() && tn_module_materialize(block) == TN_OK) {
        block_seconds t = time_block(block, &c, world);
        if (!tn__pending()) {
            fit_block(&c, block, t, machine);
        }
    }
    if (!tn__pending() && world && tn_group_size(world) > 1) {
        fit_links(world, machine);
    }
    machine->overlap = tn_default_device().kind != TN_CPU;
    tn__plan_model_free(&model);
    return tn_error();
}
