/* The functions of nn.h, optim.h, data.h, io.h and train.h,
 * called as no one should; see test_inert.c. */
#include "inert.h"

#include <limits.h>
#include <tern/sys/optim.h>

/* ---- nn.h ------------------------------------------------------------------------------------ */

static tn_tensor *same(tn_tensor *x) {
    return x;
}

static tn_tensor *module_forward(tn_module *self, tn_tensor *x) {
    (void)self;
    return x;
}

static tn_values module_forward_values(tn_module *self, tn_values in, void *context) {
    (void)self;
    (void)context;
    return in;
}

static bool see_entry(const tn_entry *entry, void *user) {
    (void)user;
    return entry != NULL;
}

static bool see_module(tn_module *m, const char *path, void *user) {
    (void)user;
    return m && path;
}

/* m: NULL, a struct of zeros, or a module that is finished. */
static void bad_module(void *m, tn_tensor *t) {
    bool was = null;
    tn_tensor *field = NULL, *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    null = true; /* a bad module is always an error */
    FAILS(tn_module_add(m, "child", m));
    FAILS(tn_module_param(m, "weight", &field, x));
    FAILS(tn_module_buffer(m, "state", &field, x));
    FAILS(tn_module_scratch(m, "state", &field, x));
    FAILS(tn_module_tie(m, "a", "b"));
    FAILS(tn_module_set_buffer(m, "state", x));
    FAILS(tn_module_set_part(m, "weight", x, (tn_layout){.whole = TN_DIMS(2, 3)}, NULL));
    INERT(tn_call(m, x));
    INERT(tn_call(m, t));
    EMPTY(tn_call_values(m, (tn_values){1, {x}}, NULL));
    INERT(tn_rnn_call(m, x, &(tn_rnn_state){t, t}, t));
    INERT(tn_rnn_call(m, x, NULL, NULL));
    INERT(tn_call_list(m, TN_VALUES(x, x)));
    NOTHING(tn_module_hook(m, (tn_module_hooks){0}));
    TAKES(tn_module_unhook(m, 5));
    DOES(tn_module_each(m, (tn_walk){0}, see_entry, NULL));
    DOES(tn_module_each_module(m, see_module, NULL));
    TAKES(tn_module_count(m));
    INERT(tn_module_get(m, "weight"));
    NOTHING(tn_module_child(m, "fc"));
    TAKES(tn_module_print(m, stdout));
    FAILS(tn_module_graph_dot(m, t, "/nowhere/graph.dot"));
    DOES(tn_module_train(m, true));
    DOES(tn_module_requires_grad(m, true));
    DOES(tn_freeze(m, "h"));
    DOES(tn_unfreeze(m, NULL));
    DOES(tn_module_zero_grad(m));
    DOES(tn_module_set_recompute(m, true));
    DOES(tn_module_set_apart(m, true));
    DOES(tn_module_to(m, tn_cpu()));
    DOES(tn_module_materialize(m));
    DOES(tn_quantize(m));
    FAILS(tn_sequential_add(m, m));
    FAILS(tn_module_append(m, m));
    NOTHING(tn_module_own(m, "child", m));
    NOTHING(tn_module_children(m));
    NOTHING(tn_module_at(m, 0));
    FAILS(tn_cache_begin(m, (tn_attention_cache_options){1, 4}));
    TAKES(tn_cache_rewind(m, 0));
    TAKES(tn_cache_end(m));
    tn_lm_shape shape;
    FAILS(tn_lm_shape_of(m, &shape));
    NOTHING(tn_lm_parts(m, NULL, 0));
    INERT(tn_lm_loss(m, x, x));
    int32_t token = 0;
    tn_prompt prompt = {&token, 1};
    tn_generated generated;
    FAILS(tn_generate(m, &prompt, 1, tn_generate_defaults(), &generated));
    tn_lm_specials specials;
    FAILS(tn_lm_specials_of(m, NULL, temp_path(""), &specials));
    NOTHING(tn_sgd(m, tn_sgd_defaults()));
    NOTHING(tn_adam(m, tn_adam_defaults()));
    NOTHING(tn_adamw(m, tn_adamw_defaults()));
    NOTHING(tn_rmsprop(m, tn_rmsprop_defaults()));
    NOTHING(tn_adagrad(m, tn_adagrad_defaults()));
    NOTHING(tn_adadelta(m, tn_adadelta_defaults()));
    NOTHING(tn_adamax(m, tn_adamax_defaults()));
    NOTHING(tn_nadam(m, tn_nadam_defaults()));
    NOTHING(tn_radam(m, tn_radam_defaults()));
    NOTHING(tn_asgd(m, tn_asgd_defaults()));
    NOTHING(tn_lion(m, tn_lion_defaults()));
    NOTHING(tn_lamb(m, tn_lamb_defaults()));
    NOTHING(tn_adafactor(m, tn_adafactor_defaults()));
    NOTHING(tn_muon(m, tn_muon_defaults()));
    TAKES(tn_clip_grad_norm(m, 1.0));
    FAILS(tn_clip_grad_value(m, 1.0));
    FAILS(tn_update_bn(NULL, m));
    TAKES(tn_average_free(tn_ema(m, 0.5)));
    TAKES(tn_average_free(tn_swa(m)));
    NOTHING(tn_lr_finder_new(m, NULL, tn_lr_finder_defaults()));
    FAILS(tn_save(m, temp_path("module")));
    FAILS(tn_load(m, temp_path("module")));
    FAILS(tn_lm_save(m, temp_path("folder")));
    FAILS(tn_lm_save_with(m, temp_path("folder"), tn_lm_save_defaults()));
    FAILS(tn_lm_load_weights(m, temp_path("folder")));
    tn_checkpoint c = {.model = m, .step = 1};
    if (m) {
        FAILS(tn_checkpoint_save(&c, temp_path("checkpoint")));
        FAILS(tn_checkpoint_load(&c, temp_path("checkpoint")));
    }
    tn_module_finish(m);
    null = was;
}

static void zeroed(tn_tensor *t) {
    static const tn_gpt zero; /* the largest: zeros for every kind */
    tn_gpt m = zero;
    bad_module(NULL, t);
    bad_module(&m, t);
    tn_linear gone;
    tn_linear_init(&gone, 2, 2, tn_linear_defaults());
    tn_module_finish(&gone);
    after(__LINE__, "tn_linear_init", true, false);
    bad_module(&gone, t);
}

/* A good module and arguments that are not. */
static void module_arguments(tn_tensor *t) {
    tn_linear m = {0}, child = {0};
    tn_tensor *field = NULL, *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    TAKES(tn_linear_init(&m, 3, 2, tn_linear_defaults()));
    TAKES(tn_linear_init(&child, 3, 2, tn_linear_defaults()));
    char endless[300];
    memset(endless, 'n', sizeof endless);
    endless[sizeof endless - 1] = 0;
    const char *const names[] = {NULL, "", ".", "a.", "weight", endless};
    bool before = tn_defer_init_begin();
    TAKES(tn_defer_init_end(&before));
    TAKES(tn_defer_init_end(NULL));
    FAILS(tn_module_add(&m, "child", NULL));
    NOTHING(tn_module_own(&m, "child", NULL));
    FAILS(tn_module_append(&m, NULL));
    DOES(tn_module_free(&m)); /* lies in no tn_…_new's memory */
    for (int i = 0; i < INTS; i++) {
        NOTHING(tn_module_at(&m, ints[i]));
    }
    FAILS(tn_module_add(&m, "child", &m));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tn_linear c = {0};
        FAILS(tn_module_param(&m, names[i], &field, x));
        FAILS(tn_module_buffer(&m, names[i], &field, x));
        FAILS(tn_module_scratch(&m, names[i], &field, x));
        FAILS(tn_module_tie(&m, names[i], "nothing"));
        FAILS(tn_module_tie(&m, "weight", names[i]));
        FAILS(tn_module_set_buffer(&m, names[i], x));
        TAKES(tn_module_get(&m, names[i]));
        TAKES(tn_module_child(&m, names[i])); /* "" is m itself */
        TAKES(tn_module_init(&c, names[i], module_forward));
        if (i != 1) { /* "" is a transparent child */
            FAILS(tn_module_add(&m, names[i], &c));
        }
        tn_module_finish(&c);
        for (int j = 0; j < STRANGE; j++) {
            tn_layout layout = {strange[j], 0, 1, INT_MAX, INT_MAX, INT64_MAX, INT64_MAX};
            TAKES(tn_module_set_part(&m, names[i], t, layout, NULL));
            layout.slice = INT_MIN;
            TAKES(tn_module_set_part(&m, names[i], NULL, layout, NULL));
        }
    }
    FAILS(tn_module_param(&m, "p", NULL, x));
    FAILS(tn_module_buffer(&m, "p", NULL, x));
    FAILS(tn_module_scratch(&m, "p", NULL, x));
    if (t) {
        FAILS(tn_module_param(&m, "p", &field, t));
        FAILS(tn_module_buffer(&m, "p", &field, t));
        FAILS(tn_module_set_buffer(&m, "p", t));
    }
    TAKES(tn_call(&child, t));
    EMPTY(tn_call_values(&child, (tn_values){-1, {t}}, NULL));
    EMPTY(tn_call_values(&child, (tn_values){99, {t}}, NULL));
    EMPTY(tn_call_values(&child, (tn_values){2, {t, t}}, NULL));
    TAKES(tn_values_of(t, t));
    TAKES(tn_values_of(NULL, t));
    TAKES(tn_module_unhook(&m, -1));
    TAKES(tn_module_unhook(&m, tn_module_hook(&m, (tn_module_hooks){0})));
    TAKES(tn_module_each(&m, (tn_walk){0}, NULL, NULL));
    TAKES(tn_module_each_module(&m, NULL, NULL));
    TAKES(tn_module_print(&m, NULL));
    FAILS(tn_module_graph_dot(&m, t, NULL));
    tn_module_finish(&m);
    tn_module_finish(&child);
    tn_module_finish(NULL);
}

typedef void (*conv_init)(tn_conv *m, int64_t in, int64_t out, tn_dims kernel,
                          tn_conv_options options);
static const conv_init convs[] = {
    tn_conv1d_init,           tn_conv2d_init,           tn_conv3d_init,
    tn_conv_transpose1d_init, tn_conv_transpose2d_init, tn_conv_transpose3d_init,
};
enum { CONVS = sizeof convs / sizeof *convs };

static void layers(tn_tensor *t) {
    (void)t;
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
    DOES(tn_function_init(NULL, "f", same));
    DOES(tn_gpt_init(NULL, tn_gpt_defaults()));
    union {
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
    } u;
#define MADE(init) /* and finished: what failed must be finished too */                         \
    do {                                                                                        \
        memset(&u, 0, sizeof u);                                                                \
        init;                                                                                   \
        after(__LINE__, #init, true, true);                                                     \
        after(__LINE__, #init, tn_is_inert(tn_call(&u, tn_ones(TN_DIMS(1, 2), TN_F32))), true); \
        tn_module_finish(&u);                                                                   \
    } while (0)
    MADE(tn_module_init(&u.m, NULL, NULL));
    MADE(tn_module_init_values(&u.m, NULL, NULL));
    MADE(tn_function_init(&u.function, NULL, NULL));
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
#if !TN__ASAN /* which says so when there is no memory */
    MADE(tn_gpt_init(&u.gpt, TN_WITH(tn_gpt, .vocab = 8, .context = 8, .layers = INT32_MAX,
                                     .heads = 2, .width = 4)));
#endif
    MADE(tn_gpt_init(
        &u.gpt, TN_WITH(tn_gpt, .vocab = 8, .context = 8, .layers = -1, .heads = -1, .width = 4)));
    MADE(tn_linear_init(&u.linear, 2, 2, TN_WITH(tn_linear, .dtype = no_dtype)));
}

/* Layers of the heap: made wrongly, and freed all the same. */
static void heap_layers(tn_tensor *t) {
    (void)t;
#define NEW(make)                                                                                 \
    do {                                                                                          \
        void *new_ = (make);                                                                      \
        after(__LINE__, #make, true, true);                                                       \
        after(__LINE__, #make, tn_is_inert(tn_call(new_, tn_ones(TN_DIMS(1, 2), TN_F32))), true); \
        tn_module_free(new_);                                                                     \
    } while (0)
    NEW(tn_module_new(0, "m", module_forward));
    NEW(tn_module_new(sizeof(tn_module), "m", NULL));
    NEW(tn_module_new_values(0, NULL, module_forward_values));
    NEW(tn_module_new_values(sizeof(tn_module), NULL, NULL));
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
    NEW(tn_layer_norm_new(0));
    NEW(tn_layer_norm_new_with(0, tn_norm_defaults()));
    NEW(tn_rms_norm_new(INT64_MIN));
    NEW(tn_rms_norm_new_with(0, tn_norm_defaults()));
    NEW(tn_rnn_new(0, 2));
    NEW(tn_gru_new(2, INT64_MAX));
    NEW(tn_lstm_new(INT64_MIN, 2));
    NEW(tn_rnn_new_with(2, 2, TN_WITH(tn_rnn, .layers = -1)));
    NEW(tn_gru_new_with(2, 2, TN_WITH(tn_rnn, .layers = 1, .dropout = NAN)));
    NEW(tn_lstm_new_with(2, 2, TN_WITH(tn_rnn, .layers = 1, .dtype = (tn_dtype)-1)));
    NEW(tn_rnn_cell_new(0, 2));
    NEW(tn_gru_cell_new(2, INT64_MAX));
    NEW(tn_lstm_cell_new(INT64_MIN, 2));
    NEW(tn_dropout_new(NAN));
    NEW(tn_dropout1d_new(-1));
    NEW(tn_dropout2d_new(2));
    NEW(tn_dropout3d_new(NAN));
    NEW(tn_upsample_new(NAN));
    NEW(tn_upsample_new_with(TN_WITH(tn_interpolate, .size = TN_DIMS(-1))));
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
    NEW(tn_max_pool1d_new(0));
    NEW(tn_max_pool1d_new_with(TN_DIMS(), (tn_pool_options){0}));
    DOES(tn_max_pool1d_init(NULL, TN_DIMS(2), tn_pool_defaults()));
    NEW(tn_adaptive_max_pool1d_new(-1));
    DOES(tn_adaptive_max_pool1d_init(NULL, TN_DIMS(2)));
    NEW(tn_max_pool2d_new(0));
    NEW(tn_max_pool2d_new_with(TN_DIMS(), (tn_pool_options){0}));
    DOES(tn_max_pool2d_init(NULL, TN_DIMS(2), tn_pool_defaults()));
    NEW(tn_adaptive_max_pool2d_new(-1));
    DOES(tn_adaptive_max_pool2d_init(NULL, TN_DIMS(2)));
    NEW(tn_max_pool3d_new(0));
    NEW(tn_max_pool3d_new_with(TN_DIMS(), (tn_pool_options){0}));
    DOES(tn_max_pool3d_init(NULL, TN_DIMS(2), tn_pool_defaults()));
    NEW(tn_adaptive_max_pool3d_new(-1));
    DOES(tn_adaptive_max_pool3d_init(NULL, TN_DIMS(2)));
    NEW(tn_avg_pool1d_new(0));
    NEW(tn_avg_pool1d_new_with(TN_DIMS(), (tn_pool_options){0}));
    DOES(tn_avg_pool1d_init(NULL, TN_DIMS(2), tn_pool_defaults()));
    NEW(tn_adaptive_avg_pool1d_new(-1));
    DOES(tn_adaptive_avg_pool1d_init(NULL, TN_DIMS(2)));
    NEW(tn_avg_pool2d_new(0));
    NEW(tn_avg_pool2d_new_with(TN_DIMS(), (tn_pool_options){0}));
    DOES(tn_avg_pool2d_init(NULL, TN_DIMS(2), tn_pool_defaults()));
    NEW(tn_adaptive_avg_pool2d_new(-1));
    DOES(tn_adaptive_avg_pool2d_init(NULL, TN_DIMS(2)));
    NEW(tn_avg_pool3d_new(0));
    NEW(tn_avg_pool3d_new_with(TN_DIMS(), (tn_pool_options){0}));
    DOES(tn_avg_pool3d_init(NULL, TN_DIMS(2), tn_pool_defaults()));
    NEW(tn_adaptive_avg_pool3d_new(-1));
    DOES(tn_adaptive_avg_pool3d_init(NULL, TN_DIMS(2)));
    TAKES(tn_module_free(tn_flatten_new(INT32_MIN, INT32_MAX)));
    NEW(tn_unflatten_new(INT32_MIN, TN_DIMS()));
    DOES(tn_flatten_init(NULL, 1, -1));
    DOES(tn_unflatten_init(NULL, 1, TN_DIMS(2)));
    NEW(tn_function_new(NULL, NULL));
    NEW(tn_function_new_with(NULL, NULL, NAN));
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
    NEW(tn_sequential_of((void *[]){NULL}, 1));
    TAKES(tn_module_free(tn_sequential_of(NULL, 5)));
    TAKES(tn_module_free(tn_sequential_new()));
    TAKES(tn_module_free(tn_module_list_new()));
    TAKES(tn_module_free(NULL));
    DOES(tn_module_list_init(NULL));
}

static void initialising(tn_tensor *t) {
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

static void generating(tn_tensor *t) {
    if (pending) {
        return; /* the model could not be made */
    }
    tn_gpt m;
    tn_gpt_init(&m, TN_WITH(tn_gpt, .vocab = 8, .context = 8, .layers = 1, .heads = 2, .width = 4));
    int32_t token = 0;
    tn_generated out;
    INERT(tn_lm_loss(&m, t, t));
    INERT(tn_call(&m, t));
    tn_generate_options o = tn_generate_defaults();
    tn_prompt prompt = {&token, 1}, empty = {&token, 0};
    FAILS(tn_generate(&m, NULL, 1, o, &out));
    FAILS(tn_generate(&m, &prompt, 1, o, NULL));
    FAILS(tn_generate(&m, &prompt, -1, o, &out));
    FAILS(tn_generate(&m, &empty, 1, o, &out));
    o.temperature = NAN;
    FAILS(tn_generate(&m, &prompt, 1, o, &out));
    o = tn_generate_defaults();
    o.max_new = 2;
    o.temperature = 1e-300;
    o.top_k = INT64_MAX;
    TAKES(tn_generate(&m, &prompt, 1, o, &out));
    tn_generated_free(&out, 1);
    tn_generated_free(NULL, 1);
    tn_lm_specials specials;
    FAILS(tn_lm_specials_of(&m, NULL, NULL, &specials));
    FAILS(tn_lm_specials_of(&m, NULL, temp_path(""), NULL));
    TAKES(tn_lm_specials_of(&m, NULL, temp_path("nowhere"), &specials));
    for (int i = 0; i < LONGS; i++) {
        for (int j = 0; j < LONGS; j++) {
            TAKES(tn_cache_begin(&m, (tn_attention_cache_options){longs[i], longs[j]}));
        }
    }
    tn_module_finish(&m);
}

/* ---- optim.h --------------------------------------------------------------------------------- */

static bool match_all(const tn_entry *entry, void *user) {
    (void)user;
    return entry != NULL;
}

static bool see_state(const char *name, tn_tensor *state, void *user) {
    (void)user;
    return name && state;
}

static void optimisers(tn_tensor *t) {
    (void)t;
    QUIET(tn_optim_split(NULL, match_all, NULL), -1);
    QUIET(tn_match_vectors(NULL, NULL), false);
    TAKES(tn_optim_group(NULL, 0)->weight_decay = 1.0);
    QUIET(tn_optim_groups(NULL), 0);
    TAKES(tn_optim_set_lr(NULL, 1.0));
    TAKES(tn_optim_lr(NULL));
    TAKES(tn_optim_step(NULL));
    TAKES(tn_optim_zero_grad(NULL));
    TAKES(tn_optim_clip(NULL, 1.0));
    QUIET(tn_optim_steps(NULL), 0);
    TAKES(tn_optim_each(NULL, see_state, NULL));
    TAKES(tn_optim_set_steps(NULL, 1));
    TAKES(tn_optim_kind(NULL));
    TAKES(tn_optim_free(NULL));
    NOTHING(tn_parameters(NULL, 1));
    NOTHING(tn_parameters(&t, -1));
    TAKES(tn_parameters_free(tn_parameters(&t, 1)));
    tn_optim_call call = {0};
    IS_NAN(tn_optim_norm(&call, t));
    INERT(tn_optim_gather(&call, t));
    INERT(tn_optim_part(&call, t));
    TAKES(tn_schedule_multi_step(1.0, NULL, 99, 0.1));
    IS_NAN(tn_plateau_step(NULL, 1.0));
    tn_plateau plateau = tn_plateau_defaults(NAN);
    TAKES(tn_plateau_step(&plateau, NAN));
    FAILS(tn_average_update(NULL));
    QUIET(tn_average_updates(NULL), 0);
    NOTHING(tn_average_begin(NULL));
    TAKES(tn_average_end(NULL));
    TAKES(tn_average_free(NULL));
    TAKES(tn_run_value(NULL, "loss"));
    FAILS(tn_run_on(NULL, TN_RUN_STEPPED, NULL, NULL));
    TAKES(tn_run_stop(NULL));
    FAILS(tn_run_stop_early(NULL, "loss", tn_early_defaults()));
    FAILS(tn_run_keep_best(NULL, "loss", 1, false));
    NOTHING(tn_run_best(NULL));
    QUIET(tn_lr_finder_next(NULL), false);
    TAKES(tn_lr_finder_log(NULL, 1.0));
    TAKES(tn_lr_finder_suggest(NULL));
    TAKES(tn_lr_finder_draw(NULL, stdout));
    FAILS(tn_lr_finder_svg(NULL, temp_path("svg")));
    TAKES(tn_lr_finder_free(NULL));
    tn_optim_method empty = {.name = "empty"};
    tn_optim_rates rates = {.lr = NAN};
    TAKES(tn_optim_free(tn_optim_new(NULL, NULL, NULL, rates)));
    TAKES(tn_optim_free(tn_optim_new(NULL, &empty, NULL, rates)));
    for (int i = 0; i < LONGS; i++) {
        for (int j = 0; j < LONGS; j++) {
            tn_schedule all[] = {tn_schedule_constant(1.0, longs[i]),
                                 tn_schedule_linear(1.0, 0.0, longs[i], longs[j]),
                                 tn_schedule_cosine(1.0, NAN, longs[i], longs[j]),
                                 tn_schedule_step(1.0, longs[i], NAN),
                                 tn_schedule_exponential(1.0, INFINITY),
                                 tn_schedule_warm_restarts(1.0, 0.0, longs[i], longs[j]),
                                 tn_schedule_one_cycle(1.0, longs[i]),
                                 {.kind = TN_MULTI_STEP, .milestone_count = 99},
                                 {.kind = (tn_schedule_kind)99}};
            enum { ALL = sizeof(all) / sizeof(*all) };
            for (size_t k = 0; k < ALL * LONGS; k++) {
                TAKES(tn_schedule_at(all[k % ALL], longs[k / ALL]));
            }
        }
    }
    tn_linear m = {0};
    tn_linear_init(&m, 2, 2, tn_linear_defaults());
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    if (opt) {
        QUIET(tn_optim_split(opt, NULL, NULL), -1);
        TAKES(tn_optim_group(opt, -1)->weight_decay = 1.0);
        TAKES(tn_optim_group(opt, 1)->weight_decay = 1.0);
        TAKES(tn_optim_each(opt, NULL, NULL));
        TAKES(tn_optim_set_steps(opt, INT64_MIN));
        for (int i = 0; i < REALS; i++) {
            TAKES(tn_optim_set_lr(opt, reals[i]));
            TAKES(tn_optim_clip(opt, reals[i]));
            TAKES(tn_clip_grad_norm(&m, reals[i]));
        }
    }
    for (int i = 0; i < REALS; i++) {
        tn_sgd_options s = TN_WITH(tn_sgd, .lr = reals[i], .momentum = reals[i]);
        tn_adam_options a = TN_WITH(tn_adam, .lr = reals[i], .beta1 = reals[i], .eps = reals[i]);
        TAKES(tn_optim_free(tn_sgd(&m, s)));
        TAKES(tn_optim_free(tn_adam(&m, a)));
    }
    tn_optim_free(opt);
    tn_module_finish(&m);
}

/* ---- train.h: metrics and searches ----------------------------------------------------------- */

static void measuring(tn_tensor *t) {
    for (int i = 0; i < LONGS; i++) {
        TAKES(tn_metrics_free(tn_metrics_new(longs[i], longs[i])));
    }
    tn_metrics *m = tn_metrics_new(3, 1);
    if (m) {
        FAILS(tn_metrics_add(m, t, t, t));
        TAKES(tn_metrics_add_loss(m, NAN, 1));
        QUIET(tn_metrics_count(m, -1, 99), 0);
        TAKES(tn_metrics_precision(m, 99));
    }
    tn_metrics_free(m);
    FAILS(tn_metrics_add(NULL, t, t, t));
    FAILS(tn_metrics_add_loss(NULL, 1, 1));
    FAILS(tn_metrics_share(NULL, NULL));
    FAILS(tn_evaluate(NULL, NULL, NULL, NULL, NULL));
    TAKES(tn_metrics_reset(NULL));
    TAKES(tn_metrics_free(NULL));
    TAKES(tn_metrics_accuracy(NULL));
    TAKES(tn_metrics_top(NULL));
    TAKES(tn_metrics_precision(NULL, 0));
    TAKES(tn_metrics_recall(NULL, 0));
    TAKES(tn_metrics_f1(NULL, 0));
    QUIET(tn_metrics_count(NULL, 0, 0), 0);
    TAKES(tn_metrics_loss(NULL));
    TAKES(tn_metrics_perplexity(NULL));
    TAKES(tn_metrics_print(NULL, NULL, NULL));
}

static void searching(tn_tensor *t) {
    double real;
    int64_t whole = 1;
    const char *text = "";
    NOTHING(tn_search_new((tn_search_options){0}));
    FAILS(tn_search_real(NULL, "x", &real, 0, 1));
    FAILS(tn_search_log_real(NULL, "x", &real, 1, 2));
    FAILS(tn_search_whole(NULL, "x", &whole, 0, 1));
    FAILS(tn_search_choose(NULL, "x", &real, &real, 1));
    FAILS(tn_search_choose_whole(NULL, "x", &whole, &whole, 1));
    FAILS(tn_search_choose_text(NULL, "x", &text, &text, 1));
    NOTHING(tn_search_next(NULL));
    QUIET(tn_search_trial(NULL), -1);
    QUIET(tn_search_steps(NULL), 0);
    QUIET(tn_search_folder(NULL), NULL);
    TAKES(tn_search_report(NULL, 1));
    QUIET(tn_search_best(NULL), false);
    TAKES(tn_search_end(NULL));
    tn_search_options o = tn_search_defaults();
    for (int i = 0; i < LONGS; i++) {
        o.trials = o.steps = o.factor = longs[i];
        tn_search *s = tn_search_new(o);
        if (s) {
            TAKES(tn_search_real(s, NULL, NULL, NAN, NAN));
            TAKES(tn_search_end(s));
        }
    }
}

/* ---- data.h ---------------------------------------------------------------------------------- */

static void files_of_examples(void) {
    tn_csv_options table = tn_csv_defaults();
    tn_image_folder_options size = tn_image_folder_defaults();
    NOTHING(tn_cifar10(NULL, true));
    NOTHING(tn_cifar10("/nowhere", false));
    NOTHING(tn_cifar100(NULL, true));
    NOTHING(tn_csv_dataset(NULL, table));
    NOTHING(tn_csv_dataset("/nowhere", table));
    NOTHING(tn_csv_dataset("/nowhere", (tn_csv_options){0}));
    NOTHING(tn_libsvm_dataset(NULL, 3));
    INERT(tn_image_read(NULL, TN_F32));
    INERT(tn_image_read("/nowhere", (tn_dtype)-1));
    NOTHING(tn_image_folder(NULL, size));
    NOTHING(tn_image_folder("/nowhere", size));
    NOTHING(tn_npy_dataset(NULL, NULL));
    NOTHING(tn_npz_dataset(NULL, NULL, NULL));
    for (int i = 0; i < LONGS; i++) {
        NOTHING(tn_libsvm_dataset("/nowhere", longs[i]));
        size.height = longs[i];
        NOTHING(tn_image_folder("/nowhere", size));
    }
}

static void datasets(tn_tensor *t) {
    int32_t tokens[4] = {0};
    size_t bytes;
    TAKES(tn_dataset_free(NULL));
    NOTHING(tn_tensor_dataset(t, t));
    NOTHING(tn_tensor_dataset(tn_scalar(1.0, TN_F32), NULL));
    NOTHING(tn_token_dataset(NULL, 4, 2));
    NOTHING(tn_token_shards(NULL, 4, 2));
    NOTHING(tn_token_shards("/nowhere/*.bin", 4, 2));
    NOTHING(tn_token_shards("/nowhere/*.bin", 0, 2));
    NOTHING(tn_token_shards("/nowhere/*.bin", 4, -1));
    NOTHING(tn_token_shards_vocab(NULL));
    NOTHING(tn_token_shards_vocab("/nowhere/*.bin"));
    NOTHING(tn_sliding_shards(NULL, 4, 2, 2));
    NOTHING(tn_sliding_shards("/nowhere/*.bin", 4, 5, 2));
    NOTHING(tn_sliding_shards("/nowhere/*.bin", 4, 2, 2));
    for (int i = 0; i < LONGS; i++) {
        if (longs[i] != 3) {
            NOTHING(tn_token_dataset(tokens, 4, longs[i]));
        }
        if (longs[i] < 3) {
            NOTHING(tn_token_dataset(tokens, longs[i], 2));
        }
    }
    NOTHING(tn_mnist(NULL, true));
    NOTHING(tn_mnist("", true));
    NOTHING(tn_mnist("/nowhere", false));
    files_of_examples();
    NOTHING(tn_charset_from_text(NULL, 4));
    NOTHING(tn_charset_from_text("\xff", 1));
    TAKES(tn_charset_free(tn_charset_from_text("", 0)));
    TAKES(tn_charset_free(NULL));
    QUIET(tn_charset_size(NULL), 0);
    QUIET(tn_charset_encode(NULL, "a", 1, tokens), -1);
    TAKES(tn_charset_text(NULL, 0));
    tn_charset *c = tn_charset_from_text("ab", 2);
    QUIET(tn_charset_encode(c, NULL, 2, tokens), -1);
    QUIET(tn_charset_encode(c, "ab", 2, NULL), -1);
    QUIET(tn_charset_encode(c, "x", 1, tokens), -1);
    for (int i = 0; i < LONGS; i++) {
        TAKES(tn_charset_text(c, longs[i]));
    }
    TAKES(tn_charset_free(c));
    NOTHING(tn_text_read(NULL, &bytes));
    NOTHING(tn_text_read("", &bytes));
    NOTHING(tn_text_read("/", NULL));
    TAKES(tn_text_free(NULL));
}

static void shards_writers(void) {
    int32_t token = 0;
    tn_shards_options o = tn_shards_defaults();
    NOTHING(tn_shards_writer_new(NULL, o));
    NOTHING(tn_shards_writer_new("", o));
    for (int i = 0; i < LONGS; i++) {
        o.vocab = o.shard_tokens = longs[i];
        tn_shards_writer *w = tn_shards_writer_new("/nowhere/w", o);
        TAKES(tn_shards_writer_add(w, NULL, longs[i]));
        TAKES(tn_shards_writer_add(w, &token, 1));
        TAKES(tn_shards_writer_free(w));
        o.pairs = true;
        w = tn_shards_writer_new("/nowhere/w", o);
        TAKES(tn_shards_writer_add_pair(w, NULL, longs[i], 0));
        TAKES(tn_shards_writer_add_pair(w, &token, 1, longs[i]));
        TAKES(tn_shards_writer_finish(w));
        TAKES(tn_shards_writer_free(w));
        o.pairs = false;
    }
    FAILS(tn_shards_writer_add(NULL, &token, 1));
    FAILS(tn_shards_writer_add_pair(NULL, &token, 1, 0));
    FAILS(tn_shards_writer_finish(NULL));
    QUIET(tn_shards_writer_shards(NULL), 0);
    QUIET(tn_shards_writer_tokens(NULL), 0);
    TAKES(tn_shards_writer_free(NULL));
}

static void corpora(tn_tensor *t) {
    (void)t;
    const char *paths[] = {NULL, "/nowhere"};
    tn_document d;
    tn_corpus_options o = tn_corpus_defaults();
    NOTHING(tn_corpus_open(NULL, 1, o));
    NOTHING(tn_corpus_open(paths, 0, o));
    NOTHING(tn_corpus_open(paths, -1, o));
    NOTHING(tn_corpus_open(paths, 1, o));
    NOTHING(tn_corpus_open(paths + 1, 1, o));
    o.key = NULL;
    NOTHING(tn_corpus_open(paths + 1, 1, o));
    TAKES(tn_corpus_next(NULL, &d));
    TAKES(tn_corpus_next(NULL, NULL));
    TAKES(tn_corpus_where(NULL));
    TAKES(tn_corpus_free(NULL));
    shards_writers();
}

/* ---- tokenizer.h ----------------------------------------------------------------------------- */

static void tokens_made(void) {
    const char *paths[] = {"/nowhere", NULL};
    tn_tokens_options o = tn_tokens_defaults();
    tn_tokens_made made;
    FAILS(tn_tokens_make(NULL, paths, 1, "/nowhere/out", o, &made));
    FAILS(tn_tokens_make(NULL, NULL, 0, NULL, o, NULL));
    FAILS(tn_token_shards_check("/nowhere/*.bin", NULL));
    FAILS(tn_token_shards_check(NULL, NULL));
}

static void tokenizers(tn_tensor *t) {
    (void)t;
    char text[TN_UTF8_ROOM(1)];
    int32_t ids[] = {0};
    tn_ids out = {0};
    NOTHING(tn_tokenizer_load(NULL));
    NOTHING(tn_tokenizer_load(""));
    NOTHING(tn_tokenizer_load("/nowhere"));
    NOTHING(tn_tokenizer_load("/"));
    tn_tiktoken_options o = tn_tiktoken_defaults();
    NOTHING(tn_tokenizer_load_tiktoken(NULL, o));
    NOTHING(tn_tokenizer_load_tiktoken("/nowhere", o));
    o.special_count = 1;
    NOTHING(tn_tokenizer_load_tiktoken("/nowhere", o));
    o.special_count = -1;
    NOTHING(tn_tokenizer_load_tiktoken("/nowhere", o));
    TAKES(tn_tokenizer_free(NULL));
    QUIET(tn_tokenizer_size(NULL), 0);
    QUIET(tn_tokenizer_special(NULL, "a"), -1);
    FAILS(tn_tokenizer_encode(NULL, "a", 1, false, &out));
    NOTHING(tn_tokenizer_decode(NULL, ids, 1, NULL));
    NOTHING(tn_tokenizer_decode(NULL, NULL, 1, NULL));
    NOTHING(tn_tokenizer_decode(NULL, ids, -1, NULL));
    for (int i = 0; i < LONGS; i++) {
        NOTHING(tn_tokenizer_bytes(NULL, longs[i], NULL));
    }
    const char *texts[] = {NULL};
    size_t bytes[] = {1};
    tn_tokenizer_train_options train = tn_tokenizer_train_defaults();
    NOTHING(tn_tokenizer_train(NULL, NULL, 1, train));
    NOTHING(tn_tokenizer_train(texts, bytes, 1, train));
    NOTHING(tn_tokenizer_train(texts, bytes, -1, train));
    for (int i = 0; i < LONGS; i++) {
        train.vocab = longs[i];
        TAKES(tn_tokenizer_free(tn_tokenizer_train(texts, NULL, 1, train)));
    }
    FAILS(tn_tokenizer_save(NULL, "/nowhere"));
    tn_utf8_stream stream = {.count = 0};
    QUIET(tn_utf8_put(&stream, NULL, 0, text), 0);
    QUIET(tn_utf8_end(&stream, text), 0);
    TAKES(tn_ids_free(NULL));
    TAKES(tn_ids_free(&out));
    tokens_made();
}

/* ---- Loaders, again data.h ------------------------------------------------------------------- */

static tn_status get_nothing(tn_dataset *self, tn_example e, void *x, void *y) {
    (void)self;
    (void)e;
    (void)x;
    (void)y;
    return TN_OK;
}

static void loaders(tn_tensor *t) {
    (void)t;
    tn_batch batch = {0};
    tn_sampler s = tn_sequential_sampler();
    for (int i = 0; i < LONGS; i++) {
        for (int j = 0; j < LONGS; j++) {
            for (int k = 0; k < LONGS; k++) {
                tn_sampler odd = {.kind = (tn_sampler_kind)(i % 6),
                                  .seed = UINT64_MAX,
                                  .part = longs[j],
                                  .parts = longs[k],
                                  .rule = (tn_part_rule)(j % 4)};
                odd.draws = longs[k];
                odd.batch = odd.bucket = longs[j];
                TAKES(tn_sampler_count(&odd, longs[i]));
                TAKES(tn_sampler_is_real(&odd, longs[i], longs[k]));
                TAKES(tn_sampler_at(&odd, longs[i], longs[j], longs[k]));
                s = tn_random_sampler(1);
                TAKES(tn_sampler_at(&s, longs[i], longs[j], longs[k]));
            }
        }
    }
    TAKES(tn_sampler_count(NULL, 4));
    TAKES(tn_sampler_at(NULL, 4, 0, 0));
    NOTHING(tn_loader_new(NULL, tn_replacement_sampler(1), tn_loader_defaults()));
    TAKES(tn_loader_free(NULL));
    QUIET(tn_loader_next(NULL, &batch), false);
    TAKES(tn_loader_where(NULL));
    TAKES(tn_loader_seek(NULL, (tn_loader_place){0}));
    QUIET(tn_loader_has(NULL, (tn_loader_place){0}), false);
    QUIET(tn_loader_batches(NULL), 0);
    TAKES(tn_loader_options_of(NULL));
    TAKES(tn_loader_sampler(NULL));
    QUIET(tn_loader_dataset(NULL), NULL);
    static tn_dataset zero, no_get = {.kind = "odd", .size = 4, .y_dims = {-1, {0}}};
    static tn_dataset endless = {
        .kind = "odd", .size = INT64_MAX, .y_dims = {-1, {0}}, .get = get_nothing};
    static tn_dataset huge = {
        .kind = "odd", .size = 4, .x_dims = {2, {INT64_MAX, INT64_MAX}}, .get = get_nothing};
    static tn_dataset deep = {
        .kind = "odd", .size = 4, .x_dims = {99, {0}}, .y_dims = {99, {0}}, .get = get_nothing};
    tn_dataset *const odd[] = {&zero, &no_get, &endless, &huge, &deep};
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < LONGS; j++) {
            tn_loader_options o =
                TN_WITH(tn_loader, .batch = longs[j], .epochs = longs[j],
                        .threads = ints[j] > 9 ? 9 : ints[j], .prefetch = ints[j]);
            tn_loader *l = tn_loader_new(odd[i], s, o);
            after(__LINE__, "tn_loader_new", true, i < 2 || i == 4);
            for (int k = 0; k < LONGS; k++) {
                TAKES(tn_loader_seek(l, (tn_loader_place){longs[k], longs[LONGS - 1 - k]}));
                TAKES(tn_loader_has(l, (tn_loader_place){longs[k], longs[k]}));
            }
            TAKES(tn_loader_next(l, NULL));
            TAKES(tn_loader_free(l));
        }
    }
}

static void composed_datasets(tn_tensor *t) {
    tn_dataset *pieces[2] = {0};
    for (int i = 0; i < LONGS; i++) {
        TAKES(tn_example_generator((tn_example){longs[i], longs[i], longs[i]}, UINT64_MAX));
        FAILS(tn_dataset_get(NULL, longs[i], NULL, NULL));
        NOTHING(tn_subset(NULL, &longs[i], 1));
        NOTHING(tn_sequence_dataset(NULL, NULL, longs[i]));
        FAILS(tn_random_split(NULL, (double[]){1}, ints[i % INTS], 1, NULL));
    }
    QUIET(tn_dataset_keep(NULL), NULL);
    INERT(tn_dataset_lengths(NULL));
    NOTHING(tn_concat_dataset(NULL, 2));
    NOTHING(tn_sequence_dataset(&t, &t, 1));
    FAILS(tn_random_split(NULL, NULL, 2, 1, pieces));
}

/* ---- transforms.h ---------------------------------------------------------------------------- */

static void transforms(tn_tensor *t) {
    const tn_batch batch = {.x = t, .y = t};
    for (int i = 0; i < LONGS; i++) {
        for (int j = 0; j < REALS; j++) {
            const tn_transform odd[] = {tn_random_crop(longs[i], longs[LONGS - 1 - i], longs[i]),
                                        tn_center_crop(longs[i], longs[i]),
                                        tn_image_resize(longs[i], longs[i]),
                                        tn_random_resized_crop(longs[i], longs[i], reals[j]),
                                        tn_random_horizontal_flip(reals[j]),
                                        tn_color_jitter(reals[j], 0, reals[REALS - 1 - j]),
                                        tn_image_normalize(ints[i % INTS], NULL, &reals[j]),
                                        {0}};
            NOTHING(tn_transformed(NULL, odd, 8, 1));
            NOTHING(tn_transformed(NULL, NULL, ints[i % INTS], 1));
            INERT(tn_mixup(batch, longs[i], reals[j], 1).x);
            INERT(tn_weighted_sampler(t, longs[i], 1).table);
            INERT(tn_bucket_sampler(t, longs[i], 3, 1).table);
        }
    }
}

/* ---- io.h ------------------------------------------------------------------------------------ */

static void files(tn_tensor *t) {
    static const char *const paths[] = {NULL, "", "/", "/nowhere/file"};
    NOTHING(tn_safetensors_open(NULL));
    NOTHING(tn_safetensors_open("/"));
    NOTHING(tn_safetensors_map(NULL));
    NOTHING(tn_safetensors_map("/"));
    TAKES(tn_safetensors_close(NULL));
    QUIET(tn_safetensors_count(NULL), 0);
    QUIET(tn_safetensors_name(NULL, 0), NULL);
    QUIET(tn_safetensors_has(NULL, "a"), false);
    QUIET(tn_safetensors_metadata(NULL, "a"), NULL);
    INERT(tn_safetensors_get(NULL, "a"));
    DOES(tn_safetensors_shape(NULL, "a"));
    NOTHING(tn_safetensors_dtype(NULL, "a"));
    TAKES(tn_safetensors_writer_add(NULL, "a", t));
    TAKES(tn_safetensors_writer_add_metadata(NULL, "a", "b"));
    TAKES(tn_safetensors_writer_free(NULL));
    FAILS(tn_safetensors_writer_save(NULL, temp_path("none")));
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        tn_safetensors_writer *w = tn_safetensors_writer_new();
        FAILS(tn_safetensors_writer_add(w, NULL, t));
        FAILS(tn_safetensors_writer_add(w, "a", t));
        FAILS(tn_safetensors_writer_add_metadata(w, NULL, NULL));
        FAILS(tn_safetensors_writer_add_metadata(w, "a", NULL));
        FAILS(tn_safetensors_writer_save(w, paths[i]));
        tn_linear m = {0};
        tn_linear_init(&m, 2, 2, tn_linear_defaults());
        tn_checkpoint c = {.model = pending ? NULL : &m};
        FAILS(tn_save(&m, paths[i]));
        FAILS(tn_load(&m, paths[i]));
        FAILS(tn_checkpoint_save(&c, paths[i]));
        FAILS(tn_checkpoint_load(&c, paths[i]));
        FAILS(tn_write_file(paths[i], "x", 1));
        NOTHING(tn_history_open(paths[i], 0));
        FAILS(tn_plot_svg(&(tn_plot){0}, paths[i]));
        tn_module_finish(&m);
    }
    FAILS(tn_write_file(temp_path("file"), NULL, 1));
    FAILS(tn_save_image(t, temp_path("file"), 1));
    null = true; /* whatever t is, these are wrong */
    FAILS(tn_save_image(tn_ones(TN_DIMS(2, 3), TN_F32), temp_path("file"), 1));
    FAILS(tn_save_image(tn_ones(TN_DIMS(1, 1, 2, 3), TN_F32), NULL, 1));
    FAILS(tn_save_image(tn_ones(TN_DIMS(1, 1, 2, 3), TN_F32), temp_path("file"), -1));
    null = !t;
    tn_gpt gpt;
    FAILS(tn_gpt_load_hf(NULL, temp_path("none"), tn_lm_load_defaults()));
    FAILS(tn_gpt_load_hf(&gpt, NULL, tn_lm_load_defaults()));
    FAILS(tn_gpt_load_hf(&gpt, temp_path("none"), tn_lm_load_defaults()));
    FAILS(tn_gpt_save_hf(NULL, temp_path("none")));
    FAILS(tn_llama_load_hf(NULL, temp_path("none"), tn_lm_load_defaults()));
    FAILS(tn_llama_save_hf(NULL, temp_path("none")));
    FAILS(tn_gpt_load_llmc(NULL, temp_path("none"), tn_lm_load_defaults()));
    FAILS(tn_gpt_load_llmc(&gpt, NULL, tn_lm_load_defaults()));
    FAILS(tn_gpt_load_llmc(&gpt, temp_path("none"), tn_lm_load_defaults()));
    FAILS(tn_gpt_save_llmc(NULL, temp_path("none")));
    NOTHING(tn_lm_load(NULL, tn_lm_load_defaults()));
    NOTHING(tn_lm_load(temp_path("none"), tn_lm_load_defaults()));
    NOTHING(tn_lm_new(NULL, 0));
    NOTHING(tn_lm_new(temp_path("none"), 0));
    TAKES(tn_lm_free(NULL));
    FAILS(tn_checkpoint_save(NULL, temp_path("none")));
    FAILS(tn_checkpoint_load(NULL, temp_path("none")));
    if (!pending) { /* a good file, asked for what it does not have */
        tn_safetensors_writer *w = tn_safetensors_writer_new();
        assert_int_equal(tn_safetensors_writer_add(w, "a", tn_scalar(1.0, TN_F32)), TN_OK);
        assert_int_equal(tn_safetensors_writer_save(w, temp_path("a")), TN_OK);
        tn_safetensors *f = tn_safetensors_open(temp_path("a"));
        for (int i = 0; i < INTS; i++) {
            TAKES(tn_safetensors_name(f, ints[i]));
        }
        QUIET(tn_safetensors_has(f, NULL), false);
        QUIET(tn_safetensors_metadata(f, NULL), NULL);
        INERT(tn_safetensors_get(f, NULL));
        DOES(tn_safetensors_shape(f, NULL));
        NOTHING(tn_safetensors_dtype(f, NULL));
        INERT(tn_safetensors_get(f, ""));
        tn_safetensors_close(f);
    }
}

/* ---- train.h --------------------------------------------------------------------------------- */

static void training(tn_tensor *t) {
    (void)t;
    FILE *nowhere = fopen("/dev/null", "w");
    TAKES(tn_progress_step(NULL, 0, 1.0, 1));
    TAKES(tn_progress_median_ms(NULL));
    TAKES(tn_progress_utilisation(NULL, 1, 1));
    TAKES(tn_progress_resume(NULL));
    TAKES(tn_progress_note(NULL, "a"));
    TAKES(tn_progress_clear(NULL));
    TAKES(tn_progress_free(NULL));
    TAKES(tn_progress_free(tn_progress_new(NULL, 0, 3, "tok")));
    for (int i = 0; i < LONGS; i++) {
        tn_progress *p = tn_progress_new(nowhere, longs[i], longs[LONGS - 1 - i], NULL);
        for (int j = 0; j < LONGS; j++) {
            TAKES(tn_progress_step(p, longs[j], NAN, longs[j]));
        }
        TAKES(tn_progress_note(p, NULL));
        TAKES(tn_progress_clear(p));
        TAKES(tn_progress_free(p));
    }
    static const double xs[2] = {NAN, INFINITY};
    static const tn_curve odd[] = {
        {0}, {.count = 5}, {.count = INT64_MIN}, {"a", xs, xs, 2, true}, {"a", NULL, xs, 2, false}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        tn_plot plot = {.curves = &odd[i], .count = 1};
        for (int j = 0; j < INTS; j++) {
            TAKES(tn_plot_text(&plot, nowhere, ints[j], ints[INTS - 1 - j]));
        }
        tn_status status = tn_plot_svg(&plot, temp_path("plot.svg"));
        after(__LINE__, "tn_plot_svg", (int)status >= 0, false);
    }
    TAKES(tn_plot_text(NULL, nowhere, 40, 10));
    TAKES(tn_plot_text(&(tn_plot){.count = 3}, nowhere, 40, 10));
    TAKES(tn_plot_text(&(tn_plot){.count = -3}, NULL, 40, 10));
    FAILS(tn_plot_svg(NULL, temp_path("plot.svg")));
    NOTHING(tn_history_open(temp_path("no_rows.csv"), INT64_MAX));
    NOTHING(tn_history_open(temp_path("no_rows.csv"), -1));
    FAILS(tn_history_add(NULL, 1.0));
    FAILS(tn_history_sync(NULL));
    FAILS(tn_history_put(NULL, "loss", 1.0));
    FAILS(tn_history_step(NULL));
    TAKES(tn_history_column(NULL, NULL, NULL));
    TAKES(tn_history_free(NULL));
    TAKES(tn_history_curve(NULL, NULL));
    TAKES(tn_history_smooth(NULL, NULL, 0));
    tn_history *h = tn_history_open(temp_path("history.csv"), 0);
    if (h) {
        TAKES(tn_history_add(h, NAN));
        for (int i = 0; i < LONGS; i++) {
            TAKES(tn_history_smooth(h, NULL, longs[i]));
        }
        TAKES(tn_history_curve(h, NULL));
        TAKES(tn_history_column(h, NULL, NULL));
        TAKES(tn_history_column(h, "none", NULL));
        DOES(tn_history_put(h, NULL, 1.0));
        DOES(tn_history_put(h, "a,b", 1.0));
        DOES(tn_history_step(h));
    }
    TAKES(tn_history_free(h));
    fclose(nowhere);
}

/* ---- evaluate.h ------------------------------------------------------------------------------ */

static void evaluating(tn_tensor *t) {
    (void)t;
    bool was = null;
    null = true; /* always errors */
    static const int64_t tokens[1][2] = {{0}};
    tn_tensor *rows = TN_FROM(tokens, TN_DIMS(1, 2), TN_I64);
    tn_dataset *windows = tn_tensor_dataset(rows, rows);
    tn_evaluate_options o = tn_evaluate_defaults();
    tn_linear m = {0};
    tn_perplexity p;
    tn_choice_scores c;
    FAILS(tn_evaluate_perplexity(NULL, windows, NULL, o, &p));
    FAILS(tn_evaluate_perplexity(&m, windows, NULL, o, &p));
    FAILS(tn_evaluate_perplexity(&m, NULL, NULL, o, &p));
    FAILS(tn_evaluate_perplexity(&m, windows, NULL, o, NULL));
    FAILS(tn_evaluate_perplexity(&m, &(tn_dataset){.size = 3}, NULL, o, &p));
    FAILS(tn_evaluate_choices(NULL, NULL, NULL, 4, o, &c));
    FAILS(tn_evaluate_choices(&m, "/nowhere", NULL, 4, o, NULL));
    for (int i = 0; i < LONGS; i++) {
        o.batch = longs[i];
        FAILS(tn_evaluate_perplexity(&m, windows, NULL, o, &p));
        FAILS(tn_evaluate_choices(&m, "/nowhere", NULL, longs[i], o, &c));
    }
    tn_dataset_free(windows);
    null = was;
}

static void runs(tn_tensor *t) {
    (void)t;
    TAKES(tn_setup_defaults());
    TAKES(tn_run_defaults());
    tn_setup setup = {0};
    tn_linear layer;
    memset(&layer, 0, sizeof layer);
    char name[] = "program", *words[] = {name, NULL};
    FAILS(tn_options_parse(1, words, NULL, NULL));
    FAILS(tn_options_parse(0, NULL, NULL, &(tn_option){0}));
    NOTHING(tn_setup_world(NULL));
    NOTHING(tn_setup_world(&setup));
    FAILS(tn_setup_model(NULL, NULL, &layer));
    FAILS(tn_setup_model(&setup, NULL, NULL));
    FAILS(tn_setup_model(&setup, NULL, &layer));
    TAKES(tn_setup_finish(NULL));
    TAKES(tn_setup_finish(&setup));
    TAKES(tn_scaler_free(tn_setup_scaler(NULL)));
    QUIET(tn_setup_flops(NULL, NULL), 0);
    GIVES(tn_lm_flops(NULL), 0);
    GIVES(tn_lm_flops(&layer), 0);
    for (int i = 0; i < LONGS; i++) {
        for (int j = 0; j < LONGS; j++) {
            int64_t n = tn_micro_batches(NULL, longs[i], longs[j]);
            after(__LINE__, "tn_micro_batches", n >= 0, false);
        }
    }
    tn_run_options o = tn_run_defaults();
    tn_checkpoint parts = {0};
    NOTHING(tn_run_new(NULL, (tn_run_options){0}, parts));
    o.out = "/dev/null/run";
    NOTHING(tn_run_new(NULL, o, parts));
    QUIET(tn_run_next(NULL), false);
    QUIET(tn_run_step(NULL), 0);
    QUIET(tn_run_done(NULL), false);
    QUIET(tn_run_validates(NULL), false);
    FAILS(tn_run_export(NULL, NULL));
    QUIET(tn_run_end(NULL), 1);
    TAKES(tn_run_log(NULL, NULL, 0));
    TAKES(tn_run_count(NULL, 1));
    TAKES(tn_run_utilisation(NULL, 1, 1));
    TAKES(tn_run_draw(NULL, NULL));
}

/* ---- The parts ------------------------------------------------------------------------------- */

PART(zeroed)
PART(module_arguments)
PART(layers)
PART(heap_layers)
PART(initialising)
PART(generating)
PART(optimisers)
PART(measuring)
PART(searching)
PART(datasets)
PART(corpora)
PART(loaders)
PART(composed_datasets)
PART(transforms)
PART(tokenizers)
PART(files)
PART(training)
PART(evaluating)
PART(runs)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zeroed),
        cmocka_unit_test(test_module_arguments),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_heap_layers),
        cmocka_unit_test(test_initialising),
        cmocka_unit_test(test_generating),
        cmocka_unit_test(test_optimisers),
        cmocka_unit_test(test_measuring),
        cmocka_unit_test(test_searching),
        cmocka_unit_test(test_datasets),
        cmocka_unit_test(test_corpora),
        cmocka_unit_test(test_loaders),
        cmocka_unit_test(test_composed_datasets),
        cmocka_unit_test(test_transforms),
        cmocka_unit_test(test_tokenizers),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_evaluating),
        cmocka_unit_test(test_runs),
    };
    return RUN_PARTS("inert models", tests, argc, argv);
}
