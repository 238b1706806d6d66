/* GPT-2 124M in f32 under data parallelism: ddp T BATCH [TRACE], one process a rank,
 * driven through bench_serve.
 *
 * BATCH sequences of T random tokens on this rank, AdamW: gpt2.c on several ranks. At the end rank
 * 0 prints, over all steps, seconds in backward's final wait, seconds that buckets travelled,
 * steps, buckets, and their MiB; and writes a trace.
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

static void report_ddp(const tn_ddp_state *ddp, const char *trace) {
    tn_ddp_stats s = tn_ddp_statistics(ddp);
    printf("%.6f %.6f %lld %d %.1f\n", s.waiting, s.traffic, (long long)s.steps, s.buckets,
           (double)s.bytes / 1048576.0);
    if (trace && tn_flight_trace(trace) != TN_OK) {
        fprintf(stderr, "%s\n", tn_error_message());
    }
}

int main(int argc, char **argv) {
    int64_t T = argc > 2 ? atoi(argv[1]) : 0, batch = argc > 2 ? atoi(argv[2]) : 0;
    if (T < 1 || batch < 1 || argc > 4) {
        fprintf(stderr, "usage: ddp T BATCH [TRACE]   (run bench/ddp.py)\n");
        return 2;
    }
    tn_on_error(tn_error_exit);
    tn_group *world = tn_dist_init(tn_dist_defaults());
    tn_seed(1337);
    static trainer t;
    tn_gpt_init(&t.gpt, tn_gpt_defaults());
    tn_ddp_state *ddp = tn_ddp(&t.gpt, world, tn_ddp_defaults());
    tn_adamw_options a = tn_adamw_defaults();
    a.lr = 1e-4;
    t.opt = tn_adamw(&t.gpt, a);
    t.x = tn_randint(0, 50257, TN_DIMS(batch, T), TN_I64);
    t.y = tn_randint(0, 50257, TN_DIMS(batch, T), TN_I64);
    int status = bench_serve(train_step, &t);
    if (tn_group_rank(world) == 0) {
        report_ddp(ddp, argc == 4 ? argv[3] : NULL);
    }
    tn_optim_free(t.opt);
    tn_module_finish(&t.gpt);
    tn_dist_finish();
    return status;
}
