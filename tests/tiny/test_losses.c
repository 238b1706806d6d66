/* tiny/tiny.c beside Tern: a GPT with the same weights, trained on the same batches, has the same
 * losses and gradients. TABLE=1 in the environment prints the losses as Markdown, for docs/tiny.md.
 *
 * tiny runs in a child, since its ranks are processes that end by themselves. */
#include "tests/tiny/tiny.h"

enum { VOCAB = 65, T = 32, B = 4, STEPS = 20, NUMBERS = 1 << 17 };

static const gpt model = {.vocab = VOCAB, .context = T, .layers = 2, .heads = 4, .width = 64};
static int text[STEPS][B * T + 1]; /* a step's tokens; its targets are one further */

static struct results {
    float loss[STEPS];
    float grad[NUMBERS]; /* of the first step, one parameter after the other */
    bool complete;
} * of_tiny;

/* Weights as tn_gpt_init has them; vectors stay 1. Texts that have something to learn. */
static void make_inputs(void) {
    gpt_call(model, text[0], 1, 1);
    for (int p = 0; p < param_count; p++) {
        for (long i = 0; params[p].t->s.n == 2 && i < count_of(params[p].t->s); i++) {
            params[p].t->mem[i] = (float)(0.02 * normal());
        }
    }
    for (int i = 0; i < STEPS * (B * T + 1); i++) {
        text[i / (B * T + 1)][i % (B * T + 1)] = (int)(VOCAB * uniform() * uniform());
    }
}

static void train_tiny(void) {
    parallel(false);
    optimiser adamw = {
        .kind = ADAMW, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-5f, .decay = 0.1f};
    for (int step = 0; step < STEPS; step++, tape_clear()) {
        tensor *loss = cross_entropy(gpt_call(model, text[step], B, T), text[step] + 1);
        backward(loss);
        parallel_wait();
        for (long p = 0, at = 0; p < param_count && step == 0; at += count_of(params[p++].t->s)) {
            copy_floats(of_tiny->grad + at, params[p].t->grad, count_of(params[p].t->s));
        }
        optimiser_step(&adamw);
        of_tiny->loss[step] = loss->mem[0];
    }
    of_tiny->complete = true;
    _exit(0);
}

/* Losses and gradients of tiny, from a process of its own. */
static void run_tiny(void) {
    size_t size = sizeof(*of_tiny);
    of_tiny = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(of_tiny, MAP_FAILED);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) { train_tiny(); }
    int status = 1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(status == 0 && of_tiny->complete);
}

static void init_tern(tn_gpt *m) {
    tn_gpt_init(m, TN_WITH(tn_gpt, .vocab = VOCAB, .context = T, .layers = model.layers,
                           .heads = model.heads, .width = model.width, .bias = false,
                           .activation = TN_ACT_GELU));
    int64_t numbers = 0;
    for (int p = 0; p < param_count; p++) {
        tn_tensor *w = tn_module_get(m, params[p].name);
        assert_int_equal(tn_count(w), count_of(params[p].t->s));
        TN_NO_GRAD;
        tn_copy_(w, tn_from_data(params[p].t->mem, tn_shape(w), TN_F32));
        numbers += tn_count(w);
    }
    assert_true(numbers == tn_module_count(m));
}

/* Of the first step: to 1e-6 of the largest number of all gradients, and to 2e-6 of the largest in
 * each. */
static void compare_gradients(tn_gpt *m) {
    const float *theirs = of_tiny->grad;
    double far_of_all = 0, most_of_all = 0;
    for (int p = 0; p < param_count; p++) {
        const float *ours = tn_data(tn_contiguous(tn_grad_of(tn_module_get(m, params[p].name))));
        double far = 0, most = 0;
        for (long i = 0; i < count_of(params[p].t->s); i++, theirs++, ours++) {
            assert_true(isfinite(*ours) && isfinite(*theirs));
            far = fmax(far, fabs((double)*ours - (double)*theirs));
            most = fmax(most, fabs((double)*ours));
        }
        assert_true(most > 0 && far <= 2e-6 * most);
        far_of_all = fmax(far_of_all, far), most_of_all = fmax(most_of_all, most);
    }
    assert_true(far_of_all <= 1e-6 * most_of_all);
}

/* A step's loss, before the optimiser changes the weights. */
static double step_tern(tn_gpt *m, tn_optim *adamw, int step) {
    TN_SCOPE;
    tn_tensor *x = tn_from_data(text[step], TN_DIMS(B, T), TN_I32);
    tn_tensor *y = tn_from_data(text[step] + 1, TN_DIMS(B, T), TN_I32);
    tn_tensor *loss = tn_lm_loss(m, tn_cast(x, TN_I64), tn_cast(y, TN_I64));
    tn_backward(loss);
    if (step == 0) { compare_gradients(m); }
    tn_optim_step(adamw);
    tn_optim_zero_grad(adamw);
    return tn_item(loss);
}

TEST(losses_are_those_of_tern) {
    make_inputs();
    run_tiny();
    tn_gpt m;
    init_tern(&m);
    tn_optim *adamw = tn_adamw(&m, TN_WITH(tn_adamw, .lr = 1e-3, .beta2 = 0.99, .eps = 1e-5,
                                           .weight_decay = 0.1, .no_decay = tn_match_vectors));
    bool table = getenv("TABLE") != NULL;
    if (table) { printf("\n| step | Tern | tiny | difference |\n|---|---|---|---|\n"); }
    for (int step = 0; step < STEPS; step++) {
        double ours = step_tern(&m, adamw, step), theirs = (double)of_tiny->loss[step];
        if (table) {
            printf("| %d | %.7f | %.7f | %.1e |\n", step + 1, ours, theirs, theirs - ours);
        }
        assert_float_equal(ours, theirs, 1e-6);
    }
    assert_true(of_tiny->loss[STEPS - 1] < of_tiny->loss[0] - 0.2f); /* they learn */
    tn_optim_free(adamw);
    tn_module_finish(&m);
}
