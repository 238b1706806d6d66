/* For test_pypi_onnx.py: exports every operation of the registry on its samples, and models, with
 * what Tern computes from the same inputs.
 *
 *   dump_onnx FOLDER
 *
 * onnx_case.h says what it writes.
 */
#include "ops/check.h"
#include "tests/io/onnx_case.h"

int example_main(int argc, char **argv);
#define main example_main
#include "examples/15_resnet.c"
#undef main

static void dump_case(const char *name, tn_forward f, void *user, void *m, tn_values in) {
    dump_case_as(name, f, user, m, in, in, 0);
}

/* ---- Operations ------------------------------------------------------------------------------ */

typedef struct op_case {
    tn_op_samples sampler;
    const tn_op *op;
    const void *args;
    int sample;
} op_case;

static tn_values apply_op(void *user, tn_values in) {
    const op_case *d = user;
    tn_values out = {.n = d->op->results ? d->op->results : 1};
    tn_apply_many(d->op, d->args, in.v, in.n, out.v);
    return out;
}

static void dump_sample(tn_op_samples *s, const tn_sample *sample) {
    TN_SCOPE;
    op_case *d = (op_case *)s;
    char name[128];
    tn_values in = {.n = sample->inputs};
    d->args = sample->args;
    for (int i = 0; i < in.n; i++) {
        in.v[i] = tn__spec_tensor(&sample->in[i], TN_F32, i % 2 ? TN__TRANSPOSED : TN__PLAIN, false,
                                  (uint64_t)(20 * d->sample + i));
    }
    snprintf(name, sizeof(name), "op.%s.%d", d->op->name, d->sample++);
    dump_case(name, apply_op, d, NULL, in);
}

static void dump_operations(void) {
    for (int i = 0; i < tn_op_count(); i++) {
        op_case d = {.sampler = {.add = dump_sample}, .op = tn_op_at(i)};
        tn_op_list_samples(d.op, &d.sampler);
    }
}

/* ---- Models ---------------------------------------------------------------------------------- */

static tn_values call_model(void *user, tn_values in) {
    return tn_call_values(user, in, NULL);
}

static bool stir_entry(const tn_entry *entry, void *user) {
    TN_NO_GRAD;
    tn_tensor *t = *entry->field;
    if (tn_dtype_is_float(tn_dtype_of(t))) { /* variances stay positive */
        tn_add_(t, tn_mul_scalar(tn_rand(tn_shape(t), tn_dtype_of(t)), 0.2));
    }
    return true;
}

/* Moves parameters off their initial zeros and ones, so that each one affects the result. */
static void dump_model(const char *name, void *m, tn_values in, uint32_t batch_inputs) {
    static const int64_t rows[] = {1, 2, 7};
    tn_module_each(m, (tn_walk){.buffers = true}, stir_entry, NULL);
    tn_module_train(m, false);
    dump_case(name, call_model, m, m, in);
    for (size_t k = 0; k < sizeof(rows) / sizeof(*rows); k++) {
        TN_SCOPE;
        char text[128];
        tn_values other = in;
        for (int i = 0; i < in.n; i++) {
            if (batch_inputs >> i & 1) {
                tn_tensor *more[] = {in.v[i], tn_flip(in.v[i], TN_DIMS(1)), in.v[i], in.v[i]};
                other.v[i] = tn_narrow(tn_cat(more, 4, 0), 0, 0, rows[k]);
            }
        }
        snprintf(text, sizeof(text), "%s.batch_of_%d", name, (int)rows[k]);
        dump_case_as(text, call_model, m, m, other, in, batch_inputs);
    }
}

static tn_tensor *as_pictures(tn_tensor *x) {
    return tn_reshape(x, TN_DIMS(-1, 8, 4, 4));
}

static tn_tensor *twice_as_large(tn_tensor *x) {
    tn_interpolate_options options =
        TN_WITH(tn_interpolate, .scale_factor = 2, .mode = TN_INTERPOLATE_LINEAR);
    return tn_interpolate(x, options);
}

static tn_tensor *random_tokens(int64_t rows, int64_t times, int64_t vocab) {
    tn_tensor *t = tn_mul_scalar(tn_rand(TN_DIMS(rows, times), TN_F32), (double)vocab);
    return tn_cast(tn_floor(t), TN_I64);
}

static void dump_pictures(void) {
    TN_SCOPE;
    tn_tensor *x = tn_randn(TN_DIMS(2, 3, 16, 16), TN_F32);
    tn_sequential *mlp = TN_SEQUENTIAL(tn_linear_new(8, 16), TN_FN(tn_gelu), tn_linear_new(16, 3));
    dump_model("model.mlp", mlp, TN_VALUES(tn_randn(TN_DIMS(5, 8), TN_F32)), 1);
    tn_module_free(mlp);
    tn_sequential *cnn = TN_SEQUENTIAL(tn_conv2d_new_with(3, 8, TN_DIMS(3), tn_conv_strided(1, 1)),
                                       TN_FN(tn_relu), tn_max_pool2d_new(2),
                                       tn_conv2d_new_with(8, 8, TN_DIMS(5), tn_conv_strided(2, 2)),
                                       tn_batch_norm2d_new(8), TN_FN(tn_silu),
                                       tn_flatten_new(1, -1), tn_linear_new(8 * 4 * 4, 10));
    dump_model("model.cnn", cnn, TN_VALUES(x), 1);
    tn_module_free(cnn);
    resnet net;
    resnet_init(&net, 8, 10);
    dump_model("model.resnet18", &net, TN_VALUES(x), 1);
    tn_module_finish(&net);
    tn_sequential *decoder = TN_SEQUENTIAL(
        tn_linear_new(6, 8 * 4 * 4), TN_FN(as_pictures), TN_FN(tn_relu),
        tn_conv_transpose2d_new_with(8, 8, TN_DIMS(4), tn_conv_strided(2, 1)), TN_FN(tn_relu),
        TN_FN(twice_as_large), tn_conv2d_new_with(8, 1, TN_DIMS(3), tn_conv_strided(1, 1)),
        TN_FN(tn_sigmoid));
    dump_model("model.vae_decoder", decoder, TN_VALUES(tn_randn(TN_DIMS(3, 6), TN_F32)), 1);
    tn_module_free(decoder);
}

/* Classifies by the last layer's states: an embedding, then two layers in both directions. */
typedef struct {
    tn_module base;
    tn_embedding *words;
    tn_rnn *net;
    tn_linear *fc;
} text_model;

static tn_values text_forward(tn_module *self, tn_values in, void *context) {
    text_model *m = (text_model *)self;
    tn_tensor *x = tn_call(m->words, in.v[0]);
    tn_values state = tn_call_values(m->net, TN_VALUES(x, NULL), NULL);
    return TN_VALUES(tn_call(m->fc, state.v[0]), state.v[1]);
}

static void dump_texts(void) {
    static const struct {
        const char *name;
        tn_rnn *(*make)(int64_t in, int64_t hidden, tn_rnn_options options);
    } nets[] = {{"model.rnn_text", tn_rnn_new_with},
                {"model.gru_text", tn_gru_new_with},
                {"model.lstm_text", tn_lstm_new_with}};
    tn_rnn_options options =
        TN_WITH(tn_rnn, .layers = 2, .bidirectional = true, .batch_first = true);
    for (size_t i = 0; i < sizeof(nets) / sizeof(*nets); i++) {
        TN_SCOPE;
        text_model *m = tn_module_new_values(sizeof(*m), "text", text_forward);
        TN_OWN(m, words, tn_embedding_new(20, 6));
        TN_OWN(m, net, nets[i].make(6, 5, options));
        TN_OWN(m, fc, tn_linear_new(10, 4));
        dump_model(nets[i].name, m, TN_VALUES(random_tokens(3, 7, 20)), 1);
        tn_module_free(m);
    }
}

static void dump_transformers(void) {
    TN_SCOPE;
    tn_transformer_options options = TN_WITH(tn_transformer, .hidden = 32);
    tn_transformer *both = tn_transformer_new_with(16, 4, 2, 2, options);
    tn_tensor *seen = tn_tril(tn_ones(TN_DIMS(5, 5), TN_BOOL), 0);
    dump_model("model.transformer", both,
               TN_VALUES(tn_randn(TN_DIMS(2, 6, 16), TN_F32), tn_randn(TN_DIMS(2, 5, 16), TN_F32),
                         NULL, seen),
               3);
    tn_module_free(both);
    tn_gpt_options small = tn_gpt_defaults();
    small.vocab = 50, small.context = 16, small.layers = 2, small.heads = 2, small.width = 16;
    tn_gpt gpt;
    tn_gpt_init(&gpt, small);
    dump_model("model.gpt2", &gpt, TN_VALUES(random_tokens(2, 9, 50)), 1);
    tn_module_finish(&gpt);
    tn_llama_options options2 = tn_llama_defaults();
    options2.vocab = 50, options2.context = 64, options2.layers = 2, options2.heads = 4;
    options2.kv_heads = 2, options2.width = 16, options2.hidden = 40, options2.head_width = 0;
    tn_llama llama;
    tn_llama_init(&llama, options2);
    dump_model("model.llama", &llama, TN_VALUES(random_tokens(2, 9, 50)), 1);
    tn_module_finish(&llama);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: dump_onnx FOLDER\n");
        return 2;
    }
    if (!cases_begin(argv[1])) { return 1; }
    tn_seed(1);
    dump_operations();
    dump_pictures();
    dump_texts();
    dump_transformers();
    return !cases_end();
}
