/* Writes what modules compute, for test_torch.py to compare with PyTorch: dump_nn FILE
 *
 * CASE/in.0, CASE/in.1 …    inputs           CASE/p.NAME  parameters
 * CASE/gin.0 …              their gradients  CASE/g.NAME  their gradients
 * CASE/y                    the result       CASE/b.NAME  buffers after the call
 * CASE/gy                   its gradient     CASE/eval    the result in eval mode, after the call
 * init/NAME                 initial weights
 */
#include "tests/support/dump.h"

static bool add_buffer(const tn_entry *entry, void *user) {
    if (entry->buffer) { add_tensor(user, "b.", entry->path, *entry->field); }
    return true;
}

/* Calls m, differentiates, and writes all of it. An input that is the same as the one before is
 * written once. */
static void dump_calls(const char *name, void *m, tn_values in) {
    stir_module(m);
    for (int i = 0; i < in.n; i++) {
        if (in.v[i] && tn_dtype_is_float(tn_dtype_of(in.v[i]))) {
            tn_zero_grad(tn_set_requires_grad(in.v[i], true));
        }
    }
    tn_tensor *y = tn_call_list(m, in), *gy = tn_randn(tn_shape(y), TN_F64);
    tn_backward_from(&y, &gy, 1, false);
    for (int i = 0; i < in.n; i++) {
        char index[2] = {(char)('0' + i), 0};
        if (in.v[i] && (i == 0 || in.v[i] != in.v[i - 1])) {
            add_tensor(name, "in.", index, in.v[i]);
            if (tn_grad_of(in.v[i])) { add_tensor(name, "gin.", index, tn_grad_of(in.v[i])); }
        }
    }
    add_tensor(name, "y", "", y);
    add_tensor(name, "gy", "", gy);
    add_module(name, m);
    tn_module_each(m, (tn_walk){.buffers = true}, add_buffer, (void *)name);
    tn_module_train(m, false);
    add_tensor(name, "eval", "", tn_call_list(m, in));
}

static void dump_module(const char *name, void *m, tn_values in) {
    dump_calls(name, m, in);
    tn_module_free(m);
}

/* The same for one input that is drawn. */
static void dump_layer(const char *name, void *m, tn_dims dims) {
    dump_module(name, m, TN_VALUES(tn_randn(dims, TN_F64)));
}

static tn_tensor *draw_normal(tn_dims dims) {
    return tn_randn(dims, TN_F64);
}

static void dump_layers(void) {
    tn_linear_options line = TN_WITH(tn_linear, .dtype = TN_F64);
    dump_layer("linear", tn_linear_new_with(7, 5, line), TN_DIMS(3, 4, 7));
    line.bias = false;
    dump_layer("linear_without_bias", tn_linear_new_with(7, 5, line), TN_DIMS(6, 7));
    dump_module("embedding", tn_embedding_new_with(11, 6, TN_WITH(tn_embedding, .dtype = TN_F64)),
                TN_VALUES(tn_randint(0, 11, TN_DIMS(4, 9), TN_I64)));
    tn_embedding_options padding = TN_WITH(tn_embedding, .padding_idx = 3, .dtype = TN_F64);
    dump_module("embedding_padding", tn_embedding_new_with(5, 6, padding),
                TN_VALUES(tn_randint(0, 5, TN_DIMS(4, 9), TN_I32)));
}

static void dump_norms(void) {
    tn_norm_options norm = TN_WITH(tn_norm, .dtype = TN_F64);
    dump_layer("layer_norm", tn_layer_norm_new_with(10, norm), TN_DIMS(2, 3, 10));
    dump_layer("rms_norm", tn_rms_norm_new_with(10, norm), TN_DIMS(2, 3, 10));
    dump_layer("group_norm", tn_group_norm_new_with(3, 6, norm), TN_DIMS(2, 6, 4, 3));
    dump_layer("instance_norm1d", tn_instance_norm1d_new_with(3, norm), TN_DIMS(2, 3, 5));
    dump_layer("instance_norm2d", tn_instance_norm2d_new_with(3, norm), TN_DIMS(3, 4, 3));
    dump_layer("instance_norm3d", tn_instance_norm3d_new(2), TN_DIMS(2, 2, 3, 2, 2));
    tn_batch_norm_options batch = TN_WITH(tn_batch_norm, .dtype = TN_F64);
    dump_layer("batch_norm1d", tn_batch_norm1d_new_with(5, batch), TN_DIMS(6, 5));
    dump_layer("batch_norm1d_places", tn_batch_norm1d_new_with(3, batch), TN_DIMS(4, 3, 7));
    dump_layer("batch_norm2d", tn_batch_norm2d_new_with(4, batch), TN_DIMS(3, 4, 5, 2));
    batch.cumulative = true;
    dump_layer("batch_norm3d", tn_batch_norm3d_new_with(2, batch), TN_DIMS(2, 2, 3, 2, 2));
}

/* Each layer with windows or that resizes, to check that it calls its own function. */
static void dump_pools(void) {
    tn_pool_options pool = TN_WITH(tn_pool, .stride = TN_DIMS(2), .padding = TN_DIMS(1));
    tn_dims three = TN_DIMS(2, 3, 9), four = TN_DIMS(2, 3, 9, 8), five = TN_DIMS(2, 3, 5, 6, 4);
    dump_layer("max_pool1d", tn_max_pool1d_new_with(TN_DIMS(3), pool), three);
    dump_layer("max_pool2d", tn_max_pool2d_new_with(TN_DIMS(3, 2), pool), four);
    dump_layer("max_pool3d", tn_max_pool3d_new_with(TN_DIMS(3), pool), five);
    dump_layer("avg_pool1d", tn_avg_pool1d_new_with(TN_DIMS(3), pool), three);
    dump_layer("avg_pool2d", tn_avg_pool2d_new(2), four);
    dump_layer("avg_pool3d", tn_avg_pool3d_new(2), five);
    dump_layer("adaptive_max_pool1d", tn_adaptive_max_pool1d_new(TN_DIMS(4)), three);
    dump_layer("adaptive_max_pool2d", tn_adaptive_max_pool2d_new(TN_DIMS(3)), four);
    dump_layer("adaptive_max_pool3d", tn_adaptive_max_pool3d_new(TN_DIMS(2)), five);
    dump_layer("adaptive_avg_pool1d", tn_adaptive_avg_pool1d_new(TN_DIMS(4)), TN_DIMS(3, 9));
    dump_layer("adaptive_avg_pool2d", tn_adaptive_avg_pool2d_new(TN_DIMS(3, 2)), four);
    dump_layer("adaptive_avg_pool3d", tn_adaptive_avg_pool3d_new(TN_DIMS(2)), five);
    dump_layer("upsample", tn_upsample_new(2.5), three);
    tn_interpolate_options size = TN_WITH(tn_interpolate, .size = TN_DIMS(7, 5),
                                          .mode = TN_INTERPOLATE_LINEAR, .align_corners = true);
    dump_layer("upsample_bilinear", tn_upsample_new_with(size), four);
    dump_layer("flatten", tn_flatten_new(1, -1), four);
    dump_layer("unflatten", tn_unflatten_new(-2, TN_DIMS(3, 3)), four);
}

static void dump_convolutions(void) {
    tn_conv_options plain = tn_conv_strided(1, 0), moved = tn_conv_strided(2, 1);
    plain.dtype = moved.dtype = TN_F64;
    dump_layer("conv1d", tn_conv1d_new_with(3, 4, TN_DIMS(3), plain), TN_DIMS(2, 3, 8));
    dump_layer("conv3d", tn_conv3d_new_with(2, 3, TN_DIMS(2), moved), TN_DIMS(2, 2, 3, 4, 5));
    dump_layer("conv_transpose1d", tn_conv_transpose1d_new_with(3, 2, TN_DIMS(3), moved),
               TN_DIMS(2, 3, 5));
    dump_layer("conv_transpose3d", tn_conv_transpose3d_new_with(3, 2, TN_DIMS(2), plain),
               TN_DIMS(3, 2, 3, 2)); /* no batch */
    moved.groups = 2;
    moved.dilation = TN_DIMS(1, 2);
    moved.bias = false;
    dump_layer("conv2d", tn_conv2d_new_with(4, 6, TN_DIMS(3, 2), moved), TN_DIMS(2, 4, 7, 8));
    moved.output_padding = TN_DIMS(1, 0);
    dump_layer("conv_transpose2d", tn_conv_transpose2d_new_with(4, 6, TN_DIMS(3, 2), moved),
               TN_DIMS(2, 4, 4, 3));
    plain.same = true;
    plain.dilation = TN_DIMS(3, 1);
    dump_layer("conv2d_same", tn_conv2d_new_with(2, 3, TN_DIMS(2, 4), plain), TN_DIMS(2, 5, 6));
}

/* One of the modules that are made in the caller's memory. */
#define DUMP_PART(name, kind, in, first, ...)               \
    do {                                                    \
        kind m;                                             \
        kind##_init(&m, first, TN_WITH(kind, __VA_ARGS__)); \
        dump_calls(name, &m, in);                           \
        tn_module_finish(&m);                               \
    } while (0)

static tn_tensor *draw_seen(int64_t heads) {
    return tn_ge(tn_rand(TN_DIMS(2, heads, 5, 5), TN_F64), tn_scalar(0.3, TN_F64));
}

static void dump_transformers(void) {
    tn_dims x = TN_DIMS(2, 5, 12);
    DUMP_PART("masked_attention", tn_self_attention, TN_VALUES(draw_normal(x), draw_seen(3)), 12,
              .heads = 3, .causal = false, .dtype = TN_F64);
    static const char *const names[] = {"mlp_gelu", "mlp_gelu_tanh", "mlp_relu", "mlp_silu"};
    for (int i = 0; i < 4; i++) {
        DUMP_PART(names[i], tn_mlp, TN_VALUES(draw_normal(TN_DIMS(2, 3, 6))), 6,
                  .activation = (tn_activation)i, .dtype = TN_F64);
    }
    tn_rotary_options turn = tn_grouped_attention_defaults().rotary;
    turn.theta = 100.0;
    DUMP_PART("grouped_attention", tn_grouped_attention, TN_VALUES(draw_normal(x), draw_seen(4)),
              12, .heads = 4, .kv_heads = 2, .head_width = 6, .causal = false, .bias = true,
              .rotary = turn, .dtype = TN_F64);
    tn_gated_mlp gated;
    tn_gated_mlp_init(&gated, 6, 10, TN_WITH(tn_gated_mlp, .bias = true, .dtype = TN_F64));
    dump_calls("gated_mlp", &gated, TN_VALUES(draw_normal(TN_DIMS(2, 3, 6))));
    tn_module_finish(&gated);
    DUMP_PART("block", tn_block, TN_VALUES(draw_normal(TN_DIMS(2, 7, 16))), 16, .heads = 4,
              .dtype = TN_F64);
    DUMP_PART("block_without_bias", tn_block, TN_VALUES(draw_normal(TN_DIMS(2, 7, 16))), 16,
              .heads = 4, .dtype = TN_F64, .bias = false, .hidden = 24);
}

/* true with probability p, but never for the first key */
static tn_tensor *draw_mask(tn_dims dims, double p) {
    tn_tensor *mask = tn_lt(tn_rand(dims, TN_F64), tn_scalar(p, TN_F64));
    tn_fill_(tn_narrow(mask, -1, 0, 1), 0);
    return mask;
}

static void dump_cross_attention(void) {
    enum { B = 3, T = 4, S = 6, C = 12 };
    tn_multi_head_attention_options o = TN_WITH(tn_multi_head_attention, .dtype = TN_F64);
    tn_tensor *x = draw_normal(TN_DIMS(B, T, C)), *memory = draw_normal(TN_DIMS(B, S, C));
    dump_module("mha_self", tn_multi_head_attention_new_with(C, 3, o), TN_VALUES(x));
    dump_module("mha_self_masked", tn_multi_head_attention_new_with(C, 3, o),
                TN_VALUES(x, x, x, draw_mask(TN_DIMS(B, T), 0.3), tn_causal_mask(T)));
    dump_module("mha_memory", tn_multi_head_attention_new_with(C, 3, o),
                TN_VALUES(x, memory, memory, draw_mask(TN_DIMS(B, S), 0.4)));
    dump_module("mha_apart", tn_multi_head_attention_new_with(C, 3, o),
                TN_VALUES(x, memory, draw_normal(TN_DIMS(B, S, C)), NULL,
                          draw_mask(TN_DIMS(B * 3, T, S), 0.4)));
    o.bias = false;
    o.kdim = 5;
    o.vdim = 7;
    dump_module("mha_dims", tn_multi_head_attention_new_with(C, 3, o),
                TN_VALUES(x, draw_normal(TN_DIMS(B, S, 5)), draw_normal(TN_DIMS(B, S, 7))));
    tn_transformer_options plain =
        TN_WITH(tn_transformer, .hidden = 20, .dropout = 0, .dtype = TN_F64);
    tn_transformer_options t = plain;
    dump_module("encoder", tn_transformer_encoder_new_with(C, 3, 2, t),
                TN_VALUES(x, draw_mask(TN_DIMS(T, T), 0.3), draw_mask(TN_DIMS(B, T), 0.3)));
    t.norm_first = t.final_norm = true;
    t.activation = TN_ACT_GELU;
    t.eps = 1e-3;
    dump_module("encoder_norm_first", tn_transformer_encoder_new_with(C, 3, 1, t),
                TN_VALUES(memory));
    dump_module("decoder_norm_first", tn_transformer_decoder_new_with(C, 3, 1, t),
                TN_VALUES(x, memory, tn_causal_mask(T), draw_mask(TN_DIMS(T, S), 0.3),
                          draw_mask(TN_DIMS(B, T), 0.3), draw_mask(TN_DIMS(B, S), 0.3)));
    t = plain;
    tn_tensor *padding = draw_mask(TN_DIMS(B, S), 0.3);
    dump_module("transformer", tn_transformer_new_with(C, 3, 2, 2, t),
                TN_VALUES(memory, x, NULL, tn_causal_mask(T), NULL, padding, NULL, padding));
    t.causal = true; /* the same, without a mask */
    dump_module("transformer_causal", tn_transformer_new_with(C, 3, 1, 1, t), TN_VALUES(memory, x));
}

/* f32 parameters, computed in bf16. */
static void dump_mixed(void) {
    const char *name = "mixed";
    tn_mlp mlp;
    tn_mlp_init(&mlp, 24, tn_mlp_defaults());
    tn_module_set_precision(&mlp, tn_precision_defaults());
    tn_tensor *x = tn_set_requires_grad(tn_randn(TN_DIMS(32, 24), TN_F32), true);
    tn_tensor *y = tn_cast(tn_call(&mlp, x), TN_F32), *gy = tn_randn(TN_DIMS(32, 24), TN_F32);
    tn_backward_from(&y, &gy, 1, false);
    add_tensor(name, "in.0", "", x);
    add_tensor(name, "y", "", y);
    add_tensor(name, "gy", "", gy);
    add_tensor(name, "gin.0", "", tn_grad_of(x));
    add_module(name, &mlp);
    tn_module_finish(&mlp);
}

/* A module's initial weights, as init/KIND.NAME. */
static bool add_initial(const tn_entry *entry, void *user) {
    char text[64];
    snprintf(text, sizeof(text), "%s.%s", (const char *)user, entry->path);
    add_tensor("init", text, "", *entry->field);
    return true;
}

static void dump_initial(const char *name, void *m) {
    tn_module_each(m, (tn_walk){0}, add_initial, (void *)name);
    tn_module_free(m);
}

/* What a function of initialisation makes of t. */
#define DUMP_INIT(name, function, ...)      \
    do {                                    \
        tn_init_##function(t, __VA_ARGS__); \
        add_tensor("init", name, "", t);    \
    } while (0)

static void dump_inits(void) {
    dump_initial("linear", tn_linear_new(150, 200));
    dump_initial("conv2d", tn_conv2d_new(40, 300, 3));
    dump_initial("conv_transpose1d", tn_conv_transpose1d_new(300, 40, 5));
    dump_initial("embedding", tn_embedding_new(200, 150));
    tn_tensor *t = tn_empty(TN_DIMS(40, 30, 5, 5), TN_F32);
    tn_kaiming_options out = TN_WITH(tn_kaiming, .mode = TN_FAN_OUT, .nonlinearity = TN_GAIN_RELU);
    DUMP_INIT("xavier_uniform", xavier_uniform, 1.5);
    DUMP_INIT("xavier_normal", xavier_normal, 1.5);
    DUMP_INIT("kaiming_uniform", kaiming_uniform, 1.5);
    DUMP_INIT("kaiming_normal", kaiming_normal, 1.5);
    DUMP_INIT("kaiming_uniform_out", kaiming_uniform_with, out);
    out.nonlinearity = TN_GAIN_TANH;
    DUMP_INIT("kaiming_normal_out", kaiming_normal_with, out);
    t = tn_empty(TN_DIMS(300, 100), TN_F32);
    DUMP_INIT("uniform", uniform, -2.0, 3.0);
    DUMP_INIT("normal", normal, 1.0, 0.5);
    DUMP_INIT("constant", constant, 0.25);
    DUMP_INIT("trunc_normal", trunc_normal, 1.0, 2.0, -1.0, 6.0);
    tn_init_eye(t);
    add_tensor("init", "eye", "", t);
    t = tn_empty(TN_DIMS(6, 2, 3, 4), TN_F32);
    DUMP_INIT("orthogonal_wide", orthogonal, 3.0); /* 6 rows of 24 */
    t = tn_empty(TN_DIMS(150, 90), TN_F32);
    DUMP_INIT("orthogonal_tall", orthogonal, 1.0);
    double gains[6];
    for (int i = 0; i < 6; i++) {
        gains[i] = tn_calculate_gain((tn_nonlinearity)i, 0.3);
    }
    add_tensor("init", "gains", "", TN_FROM(gains, TN_DIMS(6), TN_F64));
}

int main(int argc, char **argv) {
    if (!dump_begin(argc, argv)) { return 1; }
    dump_layers();
    dump_norms();
    dump_pools();
    dump_convolutions();
    dump_transformers();
    dump_cross_attention();
    dump_mixed();
    dump_inits();
    return tn_safetensors_writer_save(writer, argv[1]) == TN_OK ? 0 : 1;
}
