/* Writes what whole models compute, for test_torch.py to compare with PyTorch: dump_models FILE
 *
 * CASE/options, f64: what the twin needs to know    CASE/p.NAME, CASE/g.NAME: parameters, gradients
 * CASE/tokens, targets, logits, loss               CASE/positions, mask: for a padded batch
 */
#include "tests/support/dump.h"

enum { BATCH = 3, T = 10, VOCAB = 37 };

/* ---- Batches --------------------------------------------------------------------------------- */

/* Position of token i of a padded batch, negative in the padding: sequences of T, T - 3 and T - 6
 * tokens after padding. */
static int64_t place_of(int64_t i) {
    return i % T - 3 * (i / T);
}

static tn_tensor *padded_positions(void) {
    int64_t p[BATCH * T];
    for (int64_t i = 0; i < BATCH * T; i++) {
        p[i] = place_of(i) > 0 ? place_of(i) : 0;
    }
    return TN_FROM(p, TN_DIMS(BATCH, T), TN_I64);
}

static tn_tensor *padding_mask(void) {
    bool seen[BATCH * T];
    for (int64_t i = 0; i < BATCH * T; i++) {
        seen[i] = place_of(i) >= 0;
    }
    return TN_FROM(seen, TN_DIMS(BATCH, 1, 1, T), TN_BOOL);
}

/* Random targets, of which one, and the padding, is ignored. */
static tn_tensor *some_targets(bool padded) {
    tn_tensor *targets = tn_randint(0, VOCAB, TN_DIMS(BATCH, T), TN_I64);
    int64_t *t = tn_data_mut(targets);
    for (int64_t i = 0; i < BATCH * T; i++) {
        t[i] = i == 3 || (padded && place_of(i) < 0) ? -100 : t[i];
    }
    return targets;
}

/* A forward and a backward of m, which is then finished. */
static void dump_model(const char *name, void *m, bool padded) {
    TN_SCOPE;
    tn_values in = {1, {tn_randint(0, VOCAB, TN_DIMS(BATCH, T), TN_I64)}};
    tn_tensor *targets = some_targets(padded);
    add_tensor(name, "tokens", "", in.v[0]);
    add_tensor(name, "targets", "", targets);
    if (padded) {
        in = (tn_values){3, {in.v[0], padded_positions(), padding_mask()}};
        add_tensor(name, "positions", "", in.v[1]);
        add_tensor(name, "mask", "", in.v[2]);
    }
    tn_tensor *logits = tn_call_values(m, in, NULL).v[0];
    tn_tensor *loss =
        padded ? tn_cross_entropy(logits, targets, TN_MEAN) : tn_lm_loss(m, in.v[0], targets);
    tn_backward(loss);
    add_tensor(name, "logits", "", logits);
    add_tensor(name, "loss", "", loss);
    add_module(name, m);
    tn_module_finish(m);
}

/* ---- Models ---------------------------------------------------------------------------------- */

/* f32 weights keep their initial values, which test_torch.py checks, too. */
static void dump_gpt(const char *name, tn_dtype dtype, bool bias, bool padded) {
    tn_gpt gpt;
    tn_gpt_options o = TN_WITH(tn_gpt, .vocab = VOCAB, .context = 12, .layers = 3, .heads = 2,
                               .width = 16, .bias = bias, .dtype = dtype);
    tn_gpt_init(&gpt, o);
    if (dtype == TN_F64) { stir_module(&gpt); }
    double options[] = {o.layers, o.heads};
    add_tensor(name, "options", "", TN_FROM(options, TN_DIMS(2), TN_F64));
    dump_model(name, &gpt, padded);
}

static void dump_llama(const char *name, tn_llama_options o, bool padded) {
    tn_llama llama;
    tn_llama_init(&llama, o);
    if (o.dtype == TN_F64) { stir_module(&llama); }
    const tn_rotary_options *r = &o.rotary;
    double options[] = {o.layers,
                        o.heads,
                        llama.layers[0].self_attn.head_width,
                        o.eps,
                        r->theta,
                        r->factor,
                        r->low_freq_factor,
                        r->high_freq_factor,
                        (double)r->original_context};
    add_tensor(name, "options", "", TN_FROM(options, TN_DIMS(9), TN_F64));
    dump_model(name, &llama, padded);
}

/* Two layers of four heads of 4; an untied classifier. */
static tn_llama_options small_llama(void) {
    return TN_WITH(tn_llama, .vocab = VOCAB, .context = 12, .layers = 2, .heads = 4, .width = 16,
                   .hidden = 24, .rotary = tn_rotary_defaults(), .eps = 1e-5, .dtype = TN_F64,
                   .tied = false, .kv_heads = 0);
}

static void dump_llamas(void) {
    dump_llama("llama", small_llama(), false);
    dump_llama("llama_padded", small_llama(), true);
    tn_llama_options o = small_llama();
    o.dtype = TN_F32;
    dump_llama("llama_f32", o, false);
    o = small_llama(); /* groups of two, a tied classifier */
    o.kv_heads = 2;
    o.tied = true;
    o.eps = 1e-3;
    dump_llama("llama_tied", o, false);
    o = small_llama(); /* one key head for all; heads wider than width / heads; three layers */
    o.kv_heads = 1;
    o.head_width = 6;
    o.layers = 3;
    o.hidden = 10;
    dump_llama("llama_one_key", o, true);
    o = small_llama(); /* in a context of 50 the four pairs turn 8, 2.5, 0.8 and 0.25 times */
    o.width = 32;
    o.kv_heads = 2;
    o.rotary = TN_WITH(tn_rotary, .theta = 100.0, .factor = 16.0, .original_context = 50);
    dump_llama("llama_scaled", o, false);
}

int main(int argc, char **argv) {
    if (!dump_begin(argc, argv)) { return 1; }
    dump_gpt("gpt", TN_F64, true, false);
    dump_gpt("gpt_padded", TN_F64, false, true);
    dump_gpt("gpt_f32", TN_F32, true, false);
    dump_llamas();
    return tn_safetensors_writer_save(writer, argv[1]) == TN_OK ? 0 : 1;
}
