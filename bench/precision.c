/* GPT-2 124M, one training step after the other, in f32 or with a policy: precision T f32|bf16, driven through bench_serve.
 *
 * As gpt2.c; with bf16 the parameters stay f32. peers/torch_gpt2.py is the same in PyTorch, under its autocast.
 */
#include "bench/bench.h"

typedef struct trainer {
    tn_gpt gpt;
    tn_optim *opt;
    tn_tensor *x, *y;
} trainer;

static double train_step(void *user) {
    trainer *t = user;
    TN_SCOPE;
    tn_tensor *loss = tn_gpt_loss(&t->gpt, t->x, t->y);
    tn_backward(loss);
    tn_optim_step(t->opt);
    tn_optim_zero_grad(t->opt);
    return tn_item(loss);
}

int main(int argc, char **argv) {
    int64_t T = argc == 3 ? atoi(argv[1]) : 0;
    bool bf16 = argc == 3 && strcmp(argv[2], "bf16") == 0;
    if (T < 1 || (!bf16 && strcmp(argv[2], "f32") != 0)) {
        fprintf(stderr, "usage: precision T f32|bf16   (run bench/precision.py)\n");
        return 2;
    }
    tn_on_error(tn_error_exit);
    tn_seed(1337);
    static trainer t;
    tn_gpt_init(&t.gpt, tn_gpt_defaults());
    if (bf16) {
        tn_module_set_precision(&t.gpt, tn_precision_defaults());
    }
    tn_adamw_options a = tn_adamw_defaults();
    a.lr = 1e-4;
    t.opt = tn_adamw(&t.gpt, a);
    t.x = tn_randint(0, 50257, TN_DIMS(4, T), TN_I64);
    t.y = tn_randint(0, 50257, TN_DIMS(4, T), TN_I64);
    int status = bench_serve(train_step, &t);
    tn_optim_free(t.opt);
    tn_module_finish(&t.gpt);
    return status;
}
