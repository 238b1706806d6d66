/* The input is a checkpoint; its digest is corrected first, or nothing after that check would ever
 * run. It is loaded, or refused with an error and nothing has changed: for its own run, and for
 * another one. */
#include "tests/fuzz/bytes.h"

#include "tern/tern.h"

#include <string.h>

#include "tests/support/digest.h"

/* What it is loaded into: weights and state are constants, so a change shows. */
typedef struct target {
    tn_linear model;
    tn_optim *optim;
    tn_loader *loader;
    tn_schedule schedule;
    tn_generator generator;
} target;

static bool reset_state(const char *name, tn_tensor *t, void *user) {
    tn_fill_(t, 2);
    return true;
}

static void reset_target(target *t) {
    TN_NO_GRAD;
    tn_fill_(t->model.weight, 1);
    tn_fill_(t->model.bias, 1);
    tn_optim_each(t->optim, reset_state, NULL);
    tn_optim_set_steps(t->optim, 2);
    tn_optim_set_lr(t->optim, 0.5);
    must_hold(tn_loader_seek(t->loader, (tn_loader_place){3, 1}) == TN_OK, "seeking");
    t->generator = (tn_generator){.seed = 4, .stream = 5, .call = 6};
}

static target *open_target(void) {
    static target t;
    TN_SCOPE;
    tn_linear_init(&t.model, 2, 1, tn_linear_defaults());
    t.optim = tn_adamw(&t.model, tn_adamw_defaults());
    t.schedule = tn_schedule_constant(0.5, 0);
    tn_loader_options o = TN_WITH(tn_loader, .epochs = 0);
    t.loader = tn_loader_new(tn_tensor_dataset(tn_zeros(TN_DIMS(3, 2), TN_F32), NULL),
                             tn_random_sampler(1), o);
    must_hold(tn_error() == TN_OK, "the target");
    return &t;
}

static bool is_two(const char *name, tn_tensor *t, void *user) {
    TN_SCOPE;
    TN_NO_GRAD;
    *(bool *)user = *(bool *)user && tn_equal(t, tn_full(tn_shape(t), 2, tn_dtype_of(t)));
    return true;
}

static bool is_as_reset(target *t) {
    TN_SCOPE;
    TN_NO_GRAD;
    bool same = tn_equal(tn_detach(t->model.weight), tn_ones(TN_DIMS(1, 2), TN_F32)) &&
                tn_equal(tn_detach(t->model.bias), tn_ones(TN_DIMS(1), TN_F32)) &&
                tn_optim_lr(t->optim) == 0.5 && tn_loader_where(t->loader).epoch == 3 &&
                tn_loader_where(t->loader).index == 1 && t->generator.seed == 4 &&
                t->generator.stream == 5 && t->generator.call == 6;
    tn_optim_set_steps(t->optim, 2); /* to compare the rest: the counter is a state tensor too */
    tn_optim_each(t->optim, is_two, &same);
    return same;
}

static void load_checkpoint(target *t, const char *path, bool other_run) {
    reset_target(t);
    int64_t steps = tn_optim_steps(t->optim);
    tn_checkpoint c = {.model = &t->model,
                       .optim = t->optim,
                       .schedule = &t->schedule,
                       .loader = t->loader,
                       .generator = &t->generator,
                       .step = 77,
                       .other_run = other_run};
    if (tn_checkpoint_load(&c, path) != TN_OK) {
        must_hold(tn_error() != TN_EIO && tn_error() != TN_ESTATE, "an unexpected error");
        tn_error_clear();
        must_hold(c.step == 77 && tn_optim_steps(t->optim) == steps && is_as_reset(t),
                  "refused, but something has changed");
    } else {
        must_hold(c.step >= 0 && memchr(c.note, 0, sizeof(c.note)) != NULL, "step or note");
        must_hold(tn_loader_has(t->loader, tn_loader_where(t->loader)), "an invalid place");
    }
}

static target *opened;

static void make_target(void) {
    opened = open_target();
}

FUZZ(checkpoint, make_target) {
    uint8_t *copy = malloc(bytes + 1);
    memcpy(copy, data, bytes);
    put_digest(copy, bytes);
    bytes_file file = bytes_file_open(copy, bytes);
    load_checkpoint(opened, file.path, false);
    load_checkpoint(opened, file.path, true);
    bytes_file_close(&file);
    free(copy);
}
