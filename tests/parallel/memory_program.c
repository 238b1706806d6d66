/* memory_program STAGE RANKS bf16|f32: trains a small GPT (stage 0: DDP) and prints the bytes of
 * tensors that all ranks together have between two steps; rank 0's bytes of gradient buffers, and
 * of gathered parameters at their peak; then the inputs of the formula: parameters, parameter
 * tensors, and parameters in each of the 4 blocks. Ranks are threads, so tn_memory counts all of
 * them. */
#include <tern/tern.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct setting {
    int stage;
    bool bf16;
    int64_t before, between; /* bytes */
    tn_fsdp_stats stats;     /* of rank 0 */
    int64_t all, block;      /* parameters */
    int tensors;
} setting;

static bool count_tensor(const tn_entry *entry, void *user) {
    setting *s = user;
    s->tensors++;
    (void)entry;
    return true;
}

static tn_fsdp_state *spread_model(tn_gpt *gpt, tn_group *world, const setting *s) {
    if (s->stage == 0) {
        tn_ddp(gpt, world, tn_ddp_defaults());
        return NULL;
    }
    tn_fsdp_options f = tn_fsdp_defaults();
    f.stage = s->stage;
    f.units = "h.*";
    return tn_fsdp(gpt, world, NULL, f);
}

static void train_step(tn_gpt *gpt, tn_optim *opt) {
    TN_SCOPE;
    tn_tensor *x = tn_randint(0, 64, TN_DIMS(1, 8), TN_I64);
    tn_backward(tn_lm_loss(gpt, x, x));
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
}

static void train_rank(tn_group *world, void *user) {
    setting *s = user;
    bool first = tn_group_rank(world) == 0;
    tn_barrier(world);
    s->before = first ? tn_memory().allocated : s->before;
    tn_barrier(world);
    tn_gpt_options g = tn_gpt_defaults();
    g.vocab = 256;
    g.context = 16;
    g.layers = 4;
    g.heads = 2;
    g.width = 128;
    static _Thread_local tn_gpt gpt;
    tn_gpt_init(&gpt, g);
    if (first) {
        s->all = tn_module_count(&gpt);
        s->block = tn_module_count(&gpt.h[0]);
        tn_module_each(&gpt, (tn_walk){0}, count_tensor, s);
    }
    if (s->bf16) {
        tn_module_set_precision(&gpt, tn_precision_defaults());
    }
    const tn_fsdp_state *fsdp = spread_model(&gpt, world, s);
    tn_optim *opt = tn_adamw(&gpt, tn_adamw_defaults());
    train_step(&gpt, opt);
    train_step(&gpt, opt);
    tn_barrier(world);
    if (first) {
        s->between = tn_memory().allocated;
        s->stats = tn_fsdp_statistics(fsdp);
    }
    tn_barrier(world);
    tn_optim_free(opt);
    tn_module_finish(&gpt);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    if (argc != 4) {
        return 2;
    }
    static setting s;
    s.stage = atoi(argv[1]);
    s.bf16 = strcmp(argv[3], "bf16") == 0;
    tn_local_run(atoi(argv[2]), train_rank, &s);
    printf("%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d %" PRId64 "\n", s.between - s.before,
           s.stats.buffers, s.stats.most_whole, s.all, s.tensors, s.block);
    return 0;
}
