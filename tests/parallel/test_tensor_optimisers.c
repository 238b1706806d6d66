/* Every optimiser on models with tensor parallelism, alone and under sharding: weights, clipped
 * norms and averages match one rank's. And the loss scale of f16. Ranks are threads. */
#include "mesh_scaling.h"

#include "tests/parallel/train.h"
#include "tests/support/temp.h"

#define CLIP 0.3

enum { STEPS = 5 };

/* ---- The optimisers -------------------------------------------------------------------------- */

/* eps: gradients that are only rounding errors do not make full steps. */
static tn_optim *make_sgd(void *m) {
    return tn_sgd(m, TN_WITH(tn_sgd, .lr = 0.1, .momentum = 0.9, .nesterov = true));
}
static tn_optim *make_adam(void *m) {
    return tn_adam(m, TN_WITH(tn_adam, .eps = 1e-6, .amsgrad = true));
}
static tn_optim *make_adamw(void *m) {
    return tn_adamw(m, TN_WITH(tn_adamw, .eps = 1e-6, .no_decay = tn_match_vectors));
}
static tn_optim *make_rmsprop(void *m) {
    return tn_rmsprop(m, TN_WITH(tn_rmsprop, .lr = 1e-4, .eps = 1e-6, .centered = true));
}
static tn_optim *make_adagrad(void *m) {
    return tn_adagrad(m, TN_WITH(tn_adagrad, .lr = 1e-3, .eps = 1e-6));
}
static tn_optim *make_adadelta(void *m) {
    return tn_adadelta(m, tn_adadelta_defaults());
}
static tn_optim *make_adamax(void *m) {
    return tn_adamax(m, TN_WITH(tn_adamax, .eps = 1e-6));
}
static tn_optim *make_nadam(void *m) {
    return tn_nadam(m, TN_WITH(tn_nadam, .eps = 1e-6));
}
static tn_optim *make_radam(void *m) {
    return tn_radam(m, TN_WITH(tn_radam, .eps = 1e-6));
}
static tn_optim *make_asgd(void *m) {
    return tn_asgd(m, TN_WITH(tn_asgd, .lr = 0.1));
}
static tn_optim *make_lion(void *m) {
    return tn_lion(m, tn_lion_defaults());
}
static tn_optim *make_lamb(void *m) {
    return tn_lamb(m, TN_WITH(tn_lamb, .lr = 1e-2));
}
static tn_optim *make_adafactor(void *m) {
    return tn_adafactor(m, tn_adafactor_defaults());
}
static tn_optim *make_muon(void *m) {
    return tn_muon(m, TN_WITH(tn_muon, .lr = 1e-2, .adamw_eps = 1e-6));
}

/* flips: for updates by sign, where rounding decides the sign near 0, twice the learning rate. */
static const struct method {
    const char *name;
    tn_optim *(*make)(void *m);
    double flips;
} methods[] = {
    {"sgd", make_sgd, 0},
    {"adam", make_adam, 0},
    {"adamw", make_adamw, 0},
    {"rmsprop", make_rmsprop, 0},
    {"adagrad", make_adagrad, 0},
    {"adadelta", make_adadelta, 0},
    {"adamax", make_adamax, 0},
    {"nadam", make_nadam, 0},
    {"radam", make_radam, 0},
    {"asgd", make_asgd, 0},
    {"lion", make_lion, 2e-4},
    {"lamb", make_lamb, 0},
    {"adafactor", make_adafactor, 0},
    {"muon", make_muon, 0},
};
enum { METHODS = sizeof(methods) / sizeof(*methods) };

/* ---- Runs ------------------------------------------------------------------------------------ */

/* How many numbers differ by more than 1e-5, and the largest difference. */
static int far_apart(train_bits a, train_bits b, double *most) {
    int count = 0;
    *most = 0;
    assert_int_equal(a.bytes, b.bytes);
    for (size_t at = 0; at < a.bytes; at += sizeof(float)) {
        float x, y;
        memcpy(&x, a.data + at, sizeof(x));
        memcpy(&y, b.data + at, sizeof(y));
        double apart = fabs((double)x - (double)y);
        count += !(apart <= 1e-5);
        *most = fmax(*most, apart);
    }
    return count;
}

/* Weights and averages agree to 1e-5; where signs may flip, all but one element in a thousand. */
static void compare_ends(const struct method *method, const train_run *run, const train_end *is,
                         const train_end *want) {
    double most, allowed = method->flips * STEPS;
    int count = far_apart(is->bits, want->bits, &most);
    int numbers = (int)(is->bits.bytes / sizeof(float));
    if (count > (allowed > 0 ? numbers / 1000 : 0) || most > fmax(allowed, 1e-5)) {
        fail_msg("%s: %d of %d numbers are off, by up to %g; %s", method->name, count, numbers,
                 most, train_text(run));
    }
    for (int i = 0; i < STEPS; i++) {
        if (!(fabs(is->norms[i] / want->norms[i] - 1) <= 1e-6)) {
            fail_msg("%s: step %d has the norm %.9g, one rank's is %.9g; %s", method->name, i,
                     is->norms[i], want->norms[i], train_text(run));
        }
    }
    assert_true(want->norms[0] > CLIP); /* it was clipped */
}

/* frozen: a matrix that has two names, and part of a block. */
static void on_meshes(const struct method *method, bool llama, bool frozen, int stage) {
    char sharded[64];
    snprintf(sharded, sizeof(sharded), "tp=2,shard=2,stage=%d", stage);
    const char *const meshes[] = {"tp=2", sharded};
    for (int i = 0; i < 2; i++) {
        train_run run = train_on_mesh(meshes[i], llama, 2 - i);
        run.model.bias = false; /* the gradients of the keys' biases are only rounding errors */
        run.model.dropout = llama ? 0 : 0.1;
        run.steps = STEPS;
        run.clip = CLIP;
        run.averaged = true;
        run.optimiser = method->make;
        run.frozen = !frozen ? NULL : llama ? "layers.0.mlp layers.1.self_attn" : "wte h.0.mlp";
        train_end want = train_on_threads(train_oracle(run, NULL)), is = train_on_threads(run);
        compare_ends(method, &run, &is, &want);
        free(want.bits.data);
        free(is.bits.data);
    }
}

TEST(test_every_optimiser) {
    for (int i = 0; i < METHODS; i++) {
        on_meshes(&methods[i], i % 2, false, 1 + i % 3);
    }
}

TEST(test_frozen_parts) {
    static const char *const names[] = {"adamw", "lamb", "adafactor", "muon"};
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < METHODS; i++) {
            if (strcmp(methods[i].name, names[k]) == 0) {
                on_meshes(&methods[i], k % 2, true, 1 + k % 3);
            }
        }
    }
}

/* ---- The loss scale of f16 ------------------------------------------------------------------- */

/* An overflow in one rank's block, which the others only see in the norm: all skip the step. */
TEST(test_overflow_on_one_rank) {
    static const struct {
        const char *mesh, *path;
        int rank;
    } cases[] = {{"tp=2", "h.0.mlp.c_fc.weight", 1},
                 {"tp=2", "wte.weight", 0},
                 {"tp=2,shard=2", "h.1.", 3},
                 {"tp=2,sequence", "h.1.attn.c_attn.bias", 1}};
    for (int i = 0; i < 4; i++) {
        mesh_scaling s = {cases[i].mesh, TN_F16, true, cases[i].rank, cases[i].path};
        run_ok(i == 2 ? 4 : 2, mesh_scaled_steps, &s);
    }
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
