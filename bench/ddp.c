/* GPT-2 124M in f32 under data parallelism: ddp T BATCH [TRACE], one process per rank,
 * driven through bench_serve.
 *
 * BATCH sequences of T random tokens on this rank, AdamW: gpt2.c on several ranks. At the end rank
 * 0 prints seconds in backward's final wait, over all steps, steps, buckets, and their MiB; and
 * writes a trace.
 */
#include "bench/trainer.h"

static void report_ddp(const tn_ddp_state *ddp, const char *trace) {
    tn_ddp_stats s = tn_ddp_statistics(ddp);
    printf("%.6f %lld %d %.1f\n", s.waiting, (long long)s.steps, s.buckets,
           (double)s.bytes / 1048576.0);
    if (trace && tn_flight_trace(trace) != TN_OK) { fprintf(stderr, "%s\n", tn_error_message()); }
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
    trainer_optimise(&t);
    trainer_draw(&t, batch, T, 50257);
    int status = bench_serve(trainer_step, &t);
    if (tn_group_rank(world) == 0) { report_ddp(ddp, argc == 4 ? argv[3] : NULL); }
    trainer_finish(&t);
    tn_dist_finish();
    return status;
}
