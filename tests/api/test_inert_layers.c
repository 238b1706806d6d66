/* The functions of layers.h, transformer.h and init.h, called as no one should; see
 * test_inert.c. */
#include "inert.h"

/* ---- Layers in the caller's memory ----------------------------------------------------------- */

static tn_tensor *same_tensor(tn_tensor *x) {
    return x;
}

static tn_tensor *module_forward(tn_module *self, tn_tensor *x) {
    return x;
}

static tn_values module_forward_values(tn_module *self, tn_values in, void *context) {
    return in;
}

typedef void (*conv_init)(tn_conv *m, int64_t in, int64_t out, tn_dims kernel,
                          tn_conv_options options);
static const conv_init convs[] = {
    tn_conv1d_init,           tn_conv2d_init,           tn_conv3d_init,
    tn_conv_transpose1d_init, tn_conv_transpose2d_init, tn_conv_transpose3d_init,
};
enum { CONVS = sizeof convs / sizeof *convs };

static void null_layers(tn_tensor *t) {
    DOES(tn_module_init(NULL, "m", module_forward));
    DOES(tn_module_init_values(NULL, "m", module_forward_values));
    DOES(tn_linear_init(NULL, 2, 2, tn_linear_defaults()));
    DOES(tn_embedding_init(NULL, 2, 2, tn_embedding_defaults()));
    for (int i = 0; i < CONVS; i++) {
        DOES(convs[i](NULL, 2, 2, TN_DIMS(1), tn_conv_defaults()));
    }
    DOES(tn_layer_norm_init(NULL, 2, tn_norm_defaults()));
    DOES(tn_rms_norm_init(NULL, 2, tn_norm_defaults()));
    DOES(tn_rnn_init(NULL, 2, 2, tn_rnn_defaults()));
    DOES(tn_gru_init(NULL, 2, 2, tn_rnn_defaults()));
    DOES(tn_lstm_init(NULL, 2, 2, tn_rnn_defaults()));
    DOES(tn_rnn_cell_init(NULL, 2, 2, tn_rnn_cell_defaults()));
    DOES(tn_gru_cell_init(NULL, 2, 2, tn_rnn_cell_defaults()));
    DOES(tn_lstm_cell_init(NULL, 2, 2, tn_rnn_cell_defaults()));
    DOES(tn_dropout_init(NULL, 0.5));
    DOES(tn_dropout1d_init(NULL, 0.5));
    DOES(tn_dropout2d_init(NULL, 0.5));
    DOES(tn_dropout3d_init(NULL, 0.5));
    DOES(tn_upsample_init(NULL, tn_interpolate_defaults()));
    DOES(tn_self_attention_init(NULL, 2, tn_self_attention_defaults()));
    DOES(tn_mlp_init(NULL, 2, tn_mlp_defaults()));
    DOES(tn_grouped_attention_init(NULL, 2, tn_grouped_attention_defaults()));
    DOES(tn_gated_mlp_init(NULL, 2, 2, tn_gated_mlp_defaults()));
    DOES(tn_llama_block_init(NULL, 2, 2, tn_llama_block_defaults()));
    DOES(tn_llama_init(NULL, tn_llama_defaults()));
    DOES(tn_block_init(NULL, 2, tn_block_defaults()));
    DOES(tn_sequential_init(NULL));
    DOES(tn_function_init(NULL, "f", same_tensor));
    DOES(tn_gpt_init(NULL, tn_gpt_defaults()));
}

typedef union layer_memory {
    tn_module m;
    tn_linear linear;
    tn_embedding embedding;
    tn_conv conv;
    tn_layer_norm norm;
    tn_rms_norm rms;
    tn_dropout dropout;
    tn_self_attention attention;
    tn_mlp mlp;
    tn_block block;
    tn_function function;
    tn_gpt gpt;
    tn_grouped_attention grouped;
    tn_gated_mlp gated;
    tn_llama_block llama_block;
    tn_llama llama;
} layer_memory;

#define MADE(init) /* and finished: what failed must be finished too */                       \
    do {                                                                                      \
        memset(&u, 0, sizeof u);                                                              \
        init;                                                                                 \
        check_call(__LINE__, #init, true, true);                                              \
        check_call(__LINE__, #init, tn_is_inert(tn_call(&u, tn_ones(TN_DIMS(1, 2), TN_F32))), \
                   true);                                                                     \
        tn_module_finish(&u);                                                                 \
    } while (0)

static void odd_sizes(tn_tensor *t) {
    layer_memory u;
    for (int i = 0; i < LONGS; i++) {
        if (longs[i] > 0 && longs[i] < INT64_MAX) {
            continue;
        }
        int64_t n = longs[i] ? longs[i] : -1;
        MADE(tn_linear_init(&u.linear, n, 2, tn_linear_defaults()));
        MADE(tn_linear_init(&u.linear, n, n, (tn_linear_options){0}));
        MADE(tn_embedding_init(&u.embedding, n, n, tn_embedding_defaults()));
        for (int k = 0; k < CONVS; k++) {
            MADE(convs[k](&u.conv, n, 2, TN_DIMS(1), tn_conv_defaults()));
            MADE(convs[k](&u.conv, 2, 2, TN_DIMS(n), tn_conv_defaults()));
            MADE(convs[k](&u.conv, 2, 2, TN_DIMS(1), (tn_conv_options){0}));
        }
        MADE(tn_layer_norm_init(&u.norm, n, tn_norm_defaults()));
        MADE(tn_rms_norm_init(&u.rms, n, tn_norm_defaults()));
        MADE(tn_self_attention_init(&u.attention, n, tn_self_attention_defaults()));
        MADE(tn_mlp_init(&u.mlp, n, tn_mlp_defaults()));
        MADE(tn_block_init(&u.block, n, tn_block_defaults()));
        tn_gpt_options o = tn_gpt_defaults();
        o.vocab = o.width = n;
        o.layers = 1;
        MADE(tn_gpt_init(&u.gpt, o));
        MADE(tn_grouped_attention_init(&u.grouped, n, tn_grouped_attention_defaults()));
        MADE(tn_gated_mlp_init(&u.gated, n, n, tn_gated_mlp_defaults()));
        MADE(tn_llama_block_init(&u.llama_block, n, n, tn_llama_block_defaults()));
        tn_llama_options llama = tn_llama_defaults();
        llama.vocab = llama.width = n;
        llama.layers = 1;
        MADE(tn_llama_init(&u.llama, llama));
    }
}

static void odd_options(tn_tensor *t) {
    layer_memory u;
    MADE(tn_module_init(&u.m, NULL, NULL));
    MADE(tn_module_init_values(&u.m, NULL, NULL));
    MADE(tn_function_init(&u.function, NULL, NULL));
    MADE(tn_dropout_init(&u.dropout, NAN));
    MADE(tn_self_attention_init(&u.attention, 4, (tn_self_attention_options){0}));
    MADE(tn_self_attention_init(&u.attention, 4, TN_WITH(tn_self_attention, .heads = -1)));
    MADE(tn_block_init(&u.block, 4, TN_WITH(tn_block, .heads = 3)));
    MADE(tn_gpt_init(&u.gpt, (tn_gpt_options){0}));
    MADE(tn_grouped_attention_init(&u.grouped, 4, (tn_grouped_attention_options){0}));
    MADE(tn_grouped_attention_init(&u.grouped, 4, TN_WITH(tn_grouped_attention, .heads = -1)));
    MADE(tn_llama_init(&u.llama, (tn_llama_options){0}));
    MADE(tn_llama_init(&u.llama,
                       TN_WITH(tn_llama, .vocab = 4, .context = 4, .layers = 1, .width = 4)));
    MADE(tn_gpt_init(
        &u.gpt, TN_WITH(tn_gpt, .vocab = 8, .context = 8, .layers = -1, .heads = -1, .width = 4)));
    MADE(tn_linear_init(&u.linear, 2, 2, TN_WITH(tn_linear, .dtype = no_dtype)));
}

/* ---- Layers on the heap: made wrongly, and freed all the same -------------------------------- */

#define NEW(make)                                                                               \
    do {                                                                                        \
        void *new_ = (make);                                                                    \
        check_call(__LINE__, #make, true, true);                                                \
        check_call(__LINE__, #make, tn_is_inert(tn_call(new_, tn_ones(TN_DIMS(1, 2), TN_F32))), \
                   true);                                                                       \
        tn_module_free(new_);                                                                   \
    } while (0)

static void heap_modules(tn_tensor *t) {
    NEW(tn_module_new(0, "m", module_forward));
    NEW(tn_module_new(sizeof(tn_module), "m", NULL));
    NEW(tn_module_new_values(0, NULL, module_forward_values));
    NEW(tn_module_new_values(sizeof(tn_module), NULL, NULL));
    NEW(tn_function_new(NULL, NULL));
    NEW(tn_function_new_with(NULL, NULL, NAN));
    NEW(tn_sequential_of((void *[]){NULL}, 1));
    TAKES(tn_module_free(tn_sequential_of(NULL, 5)));
    TAKES(tn_module_free(tn_sequential_new()));
    TAKES(tn_module_free(tn_module_list_new()));
    NEW(tn_reversible_new(NULL, NULL, -1));
    NEW(tn_reversible_new((void *[]){NULL}, NULL, 1));
    TAKES(tn_module_free(NULL));
    DOES(tn_module_list_init(NULL));
    DOES(tn_reversible_init(NULL, NULL, NULL, 1));
}

static void heap_weights(tn_tensor *t) {
    NEW(tn_linear_new(0, 2));
    NEW(tn_linear_new_with(2, -1, tn_linear_defaults()));
    NEW(tn_conv1d_new(0, 2, 1));
    NEW(tn_conv1d_new_with(0, 2, TN_DIMS(1), tn_conv_defaults()));
    NEW(tn_conv2d_new(2, -1, 3));
    NEW(tn_conv2d_new_with(2, -1, TN_DIMS(3), tn_conv_defaults()));
    NEW(tn_conv3d_new(2, 2, 0));
    NEW(tn_conv3d_new_with(2, 2, TN_DIMS(0), tn_conv_defaults()));
    NEW(tn_conv_transpose1d_new(0, 2, 1));
    NEW(tn_conv_transpose1d_new_with(0, 2, TN_DIMS(1), tn_conv_defaults()));
    NEW(tn_conv_transpose2d_new(2, -1, 3));
    NEW(tn_conv_transpose2d_new_with(2, -1, TN_DIMS(3), tn_conv_defaults()));
    NEW(tn_conv_transpose3d_new(2, 2, -1));
    NEW(tn_conv_transpose3d_new_with(2, 2, TN_DIMS(-1), tn_conv_defaults()));
    NEW(tn_embedding_new(-1, 2));
    NEW(tn_embedding_new_with(4, 2, TN_WITH(tn_embedding, .padding_idx = 4)));
    NEW(tn_rnn_new(0, 2));
    NEW(tn_gru_new(2, INT64_MAX));
    NEW(tn_lstm_new(INT64_MIN, 2));
    NEW(tn_rnn_new_with(2, 2, TN_WITH(tn_rnn, .layers = -1)));
    NEW(tn_gru_new_with(2, 2, TN_WITH(tn_rnn, .layers = 1, .dropout = NAN)));
    NEW(tn_lstm_new_with(2, 2, TN_WITH(tn_rnn, .layers = 1, .dtype = (tn_dtype)-1)));
    NEW(tn_rnn_cell_new(0, 2));
    NEW(tn_gru_cell_new(2, INT64_MAX));
    NEW(tn_lstm_cell_new(INT64_MIN, 2));
}

static void heap_norms(tn_tensor *t) {
    NEW(tn_layer_norm_new(0));
    NEW(tn_layer_norm_new_with(0, tn_norm_defaults()));
    NEW(tn_rms_norm_new(INT64_MIN));
    NEW(tn_rms_norm_new_with(0, tn_norm_defaults()));
    NEW(tn_batch_norm1d_new(0));
    NEW(tn_batch_norm2d_new(-1));
    NEW(tn_batch_norm3d_new(INT64_MIN));
    NEW(tn_batch_norm1d_new_with(2, TN_WITH(tn_batch_norm, .eps = NAN)));
    NEW(tn_batch_norm2d_new_with(2, TN_WITH(tn_batch_norm, .dtype = no_dtype)));
    NEW(tn_batch_norm3d_new_with(0, tn_batch_norm_defaults()));
    NEW(tn_group_norm_new(0, 2));
    NEW(tn_group_norm_new_with(2, 3, tn_norm_defaults()));
    NEW(tn_instance_norm1d_new(0));
    NEW(tn_instance_norm2d_new(-1));
    NEW(tn_instance_norm3d_new(-1));
    NEW(tn_instance_norm1d_new_with(0, tn_norm_defaults()));
    NEW(tn_instance_norm2d_new_with(0, tn_norm_defaults()));
    NEW(tn_instance_norm3d_new_with(0, tn_norm_defaults()));
    DOES(tn_batch_norm1d_init(NULL, 2, tn_batch_norm_defaults()));
    DOES(tn_batch_norm2d_init(NULL, 2, tn_batch_norm_defaults()));
    DOES(tn_batch_norm3d_init(NULL, 2, tn_batch_norm_defaults()));
    DOES(tn_group_norm_init(NULL, 2, 2, tn_norm_defaults()));
    DOES(tn_instance_norm1d_init(NULL, 2, tn_norm_defaults()));
    DOES(tn_instance_norm2d_init(NULL, 2, tn_norm_defaults()));
    DOES(tn_instance_norm3d_init(NULL, 2, tn_norm_defaults()));
    FAILS(tn_batch_norm_share(NULL, NULL, NULL));
}

static void heap_pools(tn_tensor *t) {
    NEW(tn_max_pool1d_new(0));
    NEW(tn_max_pool1d_new_with(TN_DIMS(), (tn_pool_options){0}));
    DOES(tn_max_pool1d_init(NULL, TN_DIMS(2), tn_pool_defaults()));
    NEW(tn_adaptive_max_pool1d_new(TN_DIMS(-1)));
    DOES(tn_adaptive_max_pool1d_init(NULL, TN_DIMS(2)));
    NEW(tn_max_pool2d_new(0));
    NEW(tn_max_pool2d_new_with(TN_DIMS(), (tn_pool_options){0}));
    DOES(tn_max_pool2d_init(NULL, TN_DIMS(2), tn_pool_defaults()));
    NEW(tn_adaptive_max_pool2d_new(TN_DIMS(-1)));
    DOES(tn_adaptive_max_pool2d_init(NULL, TN_DIMS(2)));
    NEW(tn_max_pool3d_new(0));
    NEW(tn_max_pool3d_new_with(TN_DIMS(), (tn_pool_options){0}));
    DOES(tn_max_pool3d_init(NULL, TN_DIMS(2), tn_pool_defaults()));
    NEW(tn_adaptive_max_pool3d_new(TN_DIMS(-1)));
    DOES(tn_adaptive_max_pool3d_init(NULL, TN_DIMS(2)));
    NEW(tn_avg_pool1d_new(0));
    NEW(tn_avg_pool1d_new_with(TN_DIMS(), (tn_pool_options){0}));
    DOES(tn_avg_pool1d_init(NULL, TN_DIMS(2), tn_pool_defaults()));
    NEW(tn_adaptive_avg_pool1d_new(TN_DIMS(-1)));
    DOES(tn_adaptive_avg_pool1d_init(NULL, TN_DIMS(2)));
    NEW(tn_avg_pool2d_new(0));
    NEW(tn_avg_pool2d_new_with(TN_DIMS(), (tn_pool_options){0}));
    DOES(tn_avg_pool2d_init(NULL, TN_DIMS(2), tn_pool_defaults()));
    NEW(tn_adaptive_avg_pool2d_new(TN_DIMS(-1)));
    DOES(tn_adaptive_avg_pool2d_init(NULL, TN_DIMS(2)));
    NEW(tn_avg_pool3d_new(0));
    NEW(tn_avg_pool3d_new_with(TN_DIMS(), (tn_pool_options){0}));
    DOES(tn_avg_pool3d_init(NULL, TN_DIMS(2), tn_pool_defaults()));
    NEW(tn_adaptive_avg_pool3d_new(TN_DIMS(-1)));
    DOES(tn_adaptive_avg_pool3d_init(NULL, TN_DIMS(2)));
}

static void heap_others(tn_tensor *t) {
    NEW(tn_dropout_new(NAN));
    NEW(tn_dropout1d_new(-1));
    NEW(tn_dropout2d_new(2));
    NEW(tn_dropout3d_new(NAN));
    NEW(tn_upsample_new(NAN));
    NEW(tn_upsample_new_with(TN_WITH(tn_interpolate, .size = TN_DIMS(-1))));
    TAKES(tn_module_free(tn_flatten_new(INT32_MIN, INT32_MAX)));
    NEW(tn_unflatten_new(INT32_MIN, TN_DIMS()));
    DOES(tn_flatten_init(NULL, 1, -1));
    DOES(tn_unflatten_init(NULL, 1, TN_DIMS(2)));
}

static void heap_transformers(tn_tensor *t) {
    NEW(tn_multi_head_attention_new(4, 3));
    NEW(tn_multi_head_attention_new_with(4, 2, TN_WITH(tn_multi_head_attention, .kdim = -1)));
    NEW(tn_transformer_encoder_new(0, 1, 1));
    NEW(tn_transformer_encoder_new_with(4, 1, -1, tn_transformer_defaults()));
    NEW(tn_transformer_decoder_new(4, 0, 1));
    NEW(tn_transformer_decoder_new_with(4, 1, 1, (tn_transformer_options){0}));
    NEW(tn_transformer_new(4, 3, 1, 1));
    NEW(tn_transformer_new_with(4, 1, 1, -1, tn_transformer_defaults()));
    DOES(tn_multi_head_attention_init(NULL, 4, 2, tn_multi_head_attention_defaults()));
    DOES(tn_transformer_encoder_layer_init(NULL, 4, 2, tn_transformer_defaults()));
    DOES(tn_transformer_decoder_layer_init(NULL, 4, 2, tn_transformer_defaults()));
    DOES(tn_transformer_encoder_init(NULL, 4, 2, 1, tn_transformer_defaults()));
    DOES(tn_transformer_decoder_init(NULL, 4, 2, 1, tn_transformer_defaults()));
    DOES(tn_transformer_init(NULL, 4, 2, 1, 1, tn_transformer_defaults()));
}

/* ---- Counts ---------------------------------------------------------------------------------- */

/* Counts are refused before memory is taken for that many. Everything else would be accepted. */
static void odd_counts(tn_tensor *t) {
    static const int counts[] = {INT32_MIN, -1, INT32_MAX};
    layer_memory u;
    tn_gpt_options gpt =
        TN_WITH(tn_gpt, .vocab = 8, .context = 8, .layers = 1, .heads = 1, .width = 4);
    tn_llama_options llama = TN_WITH(tn_llama, .vocab = 8, .context = 8, .layers = 1, .heads = 1,
                                     .kv_heads = 1, .width = 4, .hidden = 4);
    int *const varied[] = {&gpt.layers, &gpt.heads, &llama.layers, &llama.heads, &llama.kv_heads};
    enum { VARIED = sizeof(varied) / sizeof(*varied), OF_GPT = 2 };
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        int n = counts[i];
        for (int k = 0; k < VARIED; k++) {
            int before = *varied[k];
            *varied[k] = n;
            if (k < OF_GPT) {
                MADE(tn_gpt_init(&u.gpt, gpt));
            } else {
                MADE(tn_llama_init(&u.llama, llama));
            }
            *varied[k] = before;
        }
        NEW(tn_rnn_new_with(2, 2, TN_WITH(tn_rnn, .layers = n)));
        NEW(tn_gru_new_with(2, 2, TN_WITH(tn_rnn, .layers = n)));
        NEW(tn_lstm_new_with(2, 2, TN_WITH(tn_rnn, .layers = n, .bidirectional = true)));
        NEW(tn_multi_head_attention_new(4, n));
        NEW(tn_transformer_encoder_new(4, n, 1));
        NEW(tn_transformer_encoder_new(4, 1, n));
        NEW(tn_transformer_decoder_new(4, n, 1));
        NEW(tn_transformer_decoder_new(4, 1, n));
        NEW(tn_transformer_new(4, 1, n, 1));
        NEW(tn_transformer_new(4, 1, 1, n));
        NEW(tn_reversible_new(NULL, NULL, n));
        NEW(tn_reversible_new((void *[]){NULL}, (void *[]){NULL}, n));
    }
}

/* Windows so large that the product of their sizes would overflow. */
static void odd_windows(tn_tensor *t) {
    tn_tensor *none = tn_empty(TN_DIMS(1, 1, 0, 1, 1), TN_F32),
              *one = tn_ones(TN_DIMS(1, 1, 1, 1), TN_F32);
    tn_dims most = TN_DIMS(INT32_MAX), past = TN_DIMS(INT32_MAX + INT64_C(1));
    tn_dims sizes[] = {most, past, TN_DIMS(INT64_MAX), TN_DIMS(INT64_MIN)};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        INERT(tn_adaptive_avg_pool3d_op(none, sizes[i]));
        INERT(tn_adaptive_max_pool3d_op(none, sizes[i]));
        INERT(tn_avg_pool3d_op(none, TN_DIMS(1), TN_WITH(tn_pool, .dilation = sizes[i])));
        INERT(tn_max_pool3d_op(none, TN_DIMS(2), TN_WITH(tn_pool, .dilation = sizes[i])));
        INERT(tn_unfold(one, TN_DIMS(2), TN_WITH(tn_unfold, .padding = sizes[i])));
        INERT(tn_fold(one, sizes[i], TN_DIMS(2), TN_WITH(tn_unfold, .padding = sizes[i])));
    }
}

/* ---- Initial values -------------------------------------------------------------------------- */

static void initial_values(tn_tensor *t) {
    DOES(tn_init_uniform(t, 0.0, 1.0));
    DOES(tn_init_normal(t, 0.0, 1.0));
    DOES(tn_init_constant(t, 0.0));
    DOES(tn_init_xavier_uniform(t, 1.0));
    DOES(tn_init_xavier_normal(t, 1.0));
    DOES(tn_init_kaiming_uniform(t, 0.0));
    DOES(tn_init_kaiming_normal(t, 0.0));
    DOES(tn_init_kaiming_uniform_with(t, tn_kaiming_defaults()));
    DOES(tn_init_kaiming_normal_with(t, tn_kaiming_defaults()));
    DOES(tn_init_trunc_normal(t, 0.0, 1.0, -2.0, 2.0));
    DOES(tn_init_eye(t));
    DOES(tn_init_dirac(t, 1));
    DOES(tn_init_orthogonal(t, 1.0));
    DOES(tn_init_sparse(t, 0.5, 1.0));
    for (int i = 0; i < LONGS; i++) {
        TAKES(tn_causal_mask(longs[i]));
        TAKES(tn_sinusoids(longs[i], longs[i], TN_F32));
        TAKES(tn_sinusoids(longs[i], 2, no_dtype));
    }
    QUIET(tn_calculate_gain((tn_nonlinearity)99, 0.0), 0.0);
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    for (int i = 0; i < REALS; i++) {
        TAKES(tn_init_trunc_normal(x, 0.0, reals[i], -1.0, reals[i]));
        TAKES(tn_init_orthogonal(x, reals[i]));
        TAKES(tn_init_sparse(x, reals[i], reals[i]));
    }
    for (int i = 0; i < LONGS; i++) {
        TAKES(tn_init_dirac(x, longs[i]));
    }
}

/* ---- The parts ------------------------------------------------------------------------------- */

PART(null_layers)
PART(odd_sizes)
PART(odd_options)
PART(heap_modules)
PART(heap_weights)
PART(heap_norms)
PART(heap_pools)
PART(heap_others)
PART(heap_transformers)
PART(odd_counts)
PART(odd_windows)
PART(initial_values)

int main(int argc, char **argv) {
    return RUN_PARTS(argc, argv);
}
