/* A llama sharded over two ranks: one rank's bits, and checkpoints in parts. Ranks are threads. */
#include "tests/support/test.h"

#include "tests/support/temp.h"
#include "train.h"

enum { RANKS = 2, STEPS = 4, SAVED = 2, VOCAB = 37, LAYERS = 3 };

typedef struct program {
    bool tied, bf16;
    const char *folder; /* NULL: no checkpoints */
    bool resume;        /* from the checkpoint of step SAVED; false: writes it */
    train_bits bits[RANKS];
} program;

static void init_llama(tn_llama *m, const program *p) {
    tn_llama_options o = tn_llama_defaults();
    o.vocab = VOCAB;
    o.context = TRAIN_CONTEXT;
    o.layers = LAYERS;
    o.heads = 4;
    o.kv_heads = 2;
    o.width = 12;
    o.head_width = 2;
    o.hidden = 10;
    o.tied = p->tied;
    tn_seed(p->resume ? 77 : 3);
    tn_llama_init(m, o);
    if (p->bf16) {
        tn_module_set_precision(m, tn_precision_defaults());
    }
}

/* Each rank has one of the two micro-batches of a step; one rank alone has both. */
static void train_step_of(tn_llama *m, tn_group *g, int64_t step) {
    train_run run = train_run_of(TRAIN_FSDP, RANKS);
    for (int i = 0; i < RANKS; i++) {
        if (i % tn_group_size(g) == tn_group_rank(g)) {
            TN_SCOPE;
            tn_tensor *x = train_tokens(&run, 4 * step + 2 * i),
                      *y = train_tokens(&run, 4 * step + 2 * i + 1);
            tn_tensor *sum = tn_cross_entropy(tn_call(m, x), y, TN_SUM);
            tn_backward(tn_mul_scalar(sum, 1.0 / (RANKS * TRAIN_TOKENS)));
        }
    }
}

static void spread_llama(tn_llama *m, tn_group *g) {
    tn_fsdp_options o = tn_fsdp_defaults(); /* stage 3; units NULL: the model's layers */
    o.sum = true;
    tn_fsdp_state *s = tn_fsdp(m, g, NULL, o);
    if (s && tn_fsdp_statistics(s).units != LAYERS + 1) {
        tn_raise(TN_EVALUE, "%d units", (int)tn_fsdp_statistics(s).units);
    }
}

static void run_program(tn_group *g, void *user) {
    TN_SCOPE;
    program *p = user;
    tn_llama m;
    init_llama(&m, p);
    if (g) {
        spread_llama(&m, g);
    }
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    tn_saver *saver = g && p->folder ? tn_saver_new(g, p->folder, tn_saver_defaults()) : NULL;
    tn_checkpoint c = {.model = &m, .optim = opt};
    bool found = false;
    if (saver && p->resume && (tn_saver_load(saver, &c, &found) != TN_OK || c.step != SAVED)) {
        tn_raise(TN_EVALUE, "the checkpoint was not loaded");
    }
    while (c.step < STEPS && tn_error() == TN_OK) {
        train_step_of(&m, g, c.step);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        if (++c.step == SAVED && saver) {
            tn_status status = tn_saver_save(saver, &c);
            (void)status; /* tn_local_run raises it */
        }
    }
    tn_saver_free(saver);
    p->bits[tn_group_rank(g)] = train_whole(&m, g);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* The weights after all steps, on RANKS ranks, which must agree, or on one. */
static train_bits weights_of(program p, int ranks) {
    if (ranks == 1) {
        run_program(NULL, &p);
    } else if (tn_local_run(ranks, run_program, &p) != TN_OK) {
        fail_msg("tied %d, bf16 %d: %s", p.tied, p.bf16, tn_error_message());
    } else {
        assert_true(train_same(p.bits[0], p.bits[1]));
        free(p.bits[1].data);
    }
    assert_true(p.bits[0].bytes > 1000);
    return p.bits[0];
}

TEST(bits_and_checkpoints) {
    for (int kind = 0; kind < 4; kind++) { /* bit 0: tied, bit 1: computed in bf16 */
        char folder[512];
        snprintf(folder, sizeof(folder), "%s%d", temp_path("llama"), kind);
        program p = {.tied = kind & 1, .bf16 = kind & 2, .folder = folder};
        train_bits alone = weights_of(p, 1), spread = weights_of(p, RANKS);
        p.resume = true;
        train_bits resumed = weights_of(p, RANKS);
        assert_true(train_same(alone, spread));
        assert_true(train_same(alone, resumed));
        free(alone.data);
        free(spread.data);
        free(resumed.data);
    }
}
