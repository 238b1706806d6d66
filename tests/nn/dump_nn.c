/* Writes what modules compute, for test_torch.py to compare with PyTorch: dump_nn FILE
 *
 * CASE/x, CASE/mask   inputs              CASE/p.NAME  parameters
 * CASE/y              the result          CASE/g.NAME  their gradients, CASE/gx that of x,
 * CASE/gy             its gradient        of the sum of y gy
 * init/NAME           initial weights
 */
#include "tests/support/dump.h"

/* Calls m on x (and a mask), differentiates, writes all of it, and finishes m. */
static void dump_module(const char *name, void *m, tn_tensor *x, tn_tensor *mask) {
    stir_module(m);
    if (tn_dtype_is_float(tn_dtype_of(x))) {
        tn_set_requires_grad(x, true);
    }
    tn_tensor *y = tn_call_values(m, tn_values_of(x, mask), NULL).v[0];
    tn_tensor *gy = tn_randn(tn_shape(y), TN_F64);
    tn_backward_from(&y, &gy, 1, false);
    add_tensor(name, "x", "", x);
    add_tensor(name, "y", "", y);
    add_tensor(name, "gy", "", gy);
    if (mask) {
        add_tensor(name, "mask", "", mask);
    }
    if (tn_grad_of(x)) {
        add_tensor(name, "gx", "", tn_grad_of(x));
    }
    add_module(name, m);
    tn_module_finish(m);
}

static tn_tensor *draw_normal(tn_dims dims) {
    return tn_randn(dims, TN_F64);
}

static void dump_layers(void) {
    tn_linear linear;
    tn_linear_init(&linear, 7, 5, TN_WITH(tn_linear, .bias = true, .dtype = TN_F64));
    dump_module("linear", &linear, draw_normal(TN_DIMS(3, 4, 7)), NULL);
    tn_linear_init(&linear, 7, 5, TN_WITH(tn_linear, .bias = false, .dtype = TN_F64));
    dump_module("linear_without_bias", &linear, draw_normal(TN_DIMS(6, 7)), NULL);
    tn_embedding embedding;
    tn_embedding_init(&embedding, 11, 6, TN_WITH(tn_embedding, .dtype = TN_F64));
    dump_module("embedding", &embedding, tn_randint(0, 11, TN_DIMS(4, 9), TN_I64), NULL);
    tn_embedding_init(&embedding, 5, 6, TN_WITH(tn_embedding, .padding_idx = 3, .dtype = TN_F64));
    dump_module("embedding_padding", &embedding, tn_randint(0, 5, TN_DIMS(4, 9), TN_I32), NULL);
    tn_norm_options norm = tn_norm_defaults();
    norm.dtype = TN_F64;
    tn_layer_norm layer_norm;
    tn_layer_norm_init(&layer_norm, 10, norm);
    dump_module("layer_norm", &layer_norm, draw_normal(TN_DIMS(2, 3, 10)), NULL);
    tn_rms_norm rms_norm;
    tn_rms_norm_init(&rms_norm, 10, norm);
    dump_module("rms_norm", &rms_norm, draw_normal(TN_DIMS(2, 3, 10)), NULL);
}

static bool add_buffer(const tn_entry *entry, void *user) {
    if (entry->buffer) {
        add_tensor(user, "b.", entry->path, *entry->field);
    }
    return true;
}

/* As dump_module, and also CASE/b.NAME, the buffers, and CASE/eval, the result in eval mode. */
static void dump_norm(const char *name, void *m, tn_tensor *x) {
    stir_module(m);
    tn_set_requires_grad(x, true);
    tn_tensor *y = tn_call(m, x), *gy = tn_randn(tn_shape(y), TN_F64);
    tn_backward_from(&y, &gy, 1, false);
    add_tensor(name, "x", "", x);
    add_tensor(name, "y", "", y);
    add_tensor(name, "gy", "", gy);
    add_tensor(name, "gx", "", tn_grad_of(x));
    add_module(name, m);
    tn_module_each(m, (tn_walk){.buffers = true}, add_buffer, (void *)name);
    tn_module_train(m, false);
    add_tensor(name, "eval", "", tn_call(m, x));
    tn_module_free(m);
}

static void dump_norms(void) {
    tn_batch_norm_options batch = tn_batch_norm_defaults();
    batch.dtype = TN_F64;
    dump_norm("batch_norm1d", tn_batch_norm1d_new_with(5, batch), draw_normal(TN_DIMS(6, 5)));
    dump_norm("batch_norm1d_places", tn_batch_norm1d_new_with(3, batch),
              draw_normal(TN_DIMS(4, 3, 7)));
    dump_norm("batch_norm2d", tn_batch_norm2d_new_with(4, batch), draw_normal(TN_DIMS(3, 4, 5, 2)));
    batch.cumulative = true;
    dump_norm("batch_norm3d", tn_batch_norm3d_new_with(2, batch),
              draw_normal(TN_DIMS(2, 2, 3, 2, 2)));
    tn_norm_options norm = tn_norm_defaults();
    norm.dtype = TN_F64;
    dump_norm("group_norm", tn_group_norm_new_with(3, 6, norm), draw_normal(TN_DIMS(2, 6, 4, 3)));
    dump_norm("instance_norm1d", tn_instance_norm1d_new_with(3, norm),
              draw_normal(TN_DIMS(2, 3, 5)));
    dump_norm("instance_norm2d", tn_instance_norm2d_new_with(3, norm),
              draw_normal(TN_DIMS(3, 4, 3)));
    dump_norm("instance_norm3d", tn_instance_norm3d_new(2), draw_normal(TN_DIMS(2, 2, 3, 2, 2)));
}

/* Each layer with windows or that resizes, to check that it calls its own function. */
static void dump_pools(void) {
    tn_pool_options pool = tn_pool_defaults();
    pool.stride = TN_DIMS(2);
    pool.padding = TN_DIMS(1);
    tn_dims three = TN_DIMS(2, 3, 9), four = TN_DIMS(2, 3, 9, 8), five = TN_DIMS(2, 3, 5, 6, 4);
    dump_norm("max_pool1d", tn_max_pool1d_new_with(TN_DIMS(3), pool), draw_normal(three));
    dump_norm("max_pool2d", tn_max_pool2d_new_with(TN_DIMS(3, 2), pool), draw_normal(four));
    dump_norm("max_pool3d", tn_max_pool3d_new_with(TN_DIMS(3), pool), draw_normal(five));
    dump_norm("avg_pool1d", tn_avg_pool1d_new_with(TN_DIMS(3), pool), draw_normal(three));
    dump_norm("avg_pool2d", tn_avg_pool2d_new(2), draw_normal(four));
    dump_norm("avg_pool3d", tn_avg_pool3d_new(2), draw_normal(five));
    dump_norm("adaptive_max_pool1d", tn_adaptive_max_pool1d_new(TN_DIMS(4)), draw_normal(three));
    dump_norm("adaptive_max_pool2d", tn_adaptive_max_pool2d_new(TN_DIMS(3)), draw_normal(four));
    dump_norm("adaptive_max_pool3d", tn_adaptive_max_pool3d_new(TN_DIMS(2)), draw_normal(five));
    dump_norm("adaptive_avg_pool1d", tn_adaptive_avg_pool1d_new(TN_DIMS(4)),
              draw_normal(TN_DIMS(3, 9)));
    dump_norm("adaptive_avg_pool2d", tn_adaptive_avg_pool2d_new(TN_DIMS(3, 2)), draw_normal(four));
    dump_norm("adaptive_avg_pool3d", tn_adaptive_avg_pool3d_new(TN_DIMS(2)), draw_normal(five));
    dump_norm("upsample", tn_upsample_new(2.5), draw_normal(three));
    tn_interpolate_options size = tn_interpolate_defaults();
    size.size = TN_DIMS(7, 5);
    size.mode = TN_INTERPOLATE_LINEAR;
    size.align_corners = true;
    dump_norm("upsample_bilinear", tn_upsample_new_with(size), draw_normal(four));
    dump_norm("flatten", tn_flatten_new(1, -1), draw_normal(four));
    dump_norm("unflatten", tn_unflatten_new(-2, TN_DIMS(3, 3)), draw_normal(four));
}

static void dump_convolutions(void) {
    tn_conv_options plain = tn_conv_strided(1, 0), moved = tn_conv_strided(2, 1);
    plain.dtype = moved.dtype = TN_F64;
    tn_conv conv;
    tn_conv1d_init(&conv, 3, 4, TN_DIMS(3), plain);
    dump_module("conv1d", &conv, draw_normal(TN_DIMS(2, 3, 8)), NULL);
    tn_conv3d_init(&conv, 2, 3, TN_DIMS(2), moved);
    dump_module("conv3d", &conv, draw_normal(TN_DIMS(2, 2, 3, 4, 5)), NULL);
    tn_conv_transpose1d_init(&conv, 3, 2, TN_DIMS(3), moved);
    dump_module("conv_transpose1d", &conv, draw_normal(TN_DIMS(2, 3, 5)), NULL);
    tn_conv_transpose3d_init(&conv, 3, 2, TN_DIMS(2), plain);
    dump_module("conv_transpose3d", &conv, draw_normal(TN_DIMS(3, 2, 3, 2)), NULL); /* no batch */
    moved.groups = 2;
    moved.dilation = TN_DIMS(1, 2);
    moved.bias = false;
    tn_conv2d_init(&conv, 4, 6, TN_DIMS(3, 2), moved);
    dump_module("conv2d", &conv, draw_normal(TN_DIMS(2, 4, 7, 8)), NULL);
    moved.output_padding = TN_DIMS(1, 0);
    tn_conv_transpose2d_init(&conv, 4, 6, TN_DIMS(3, 2), moved);
    dump_module("conv_transpose2d", &conv, draw_normal(TN_DIMS(2, 4, 4, 3)), NULL);
    plain.same = true;
    plain.dilation = TN_DIMS(3, 1);
    tn_conv2d_init(&conv, 2, 3, TN_DIMS(2, 4), plain);
    dump_module("conv2d_same", &conv, draw_normal(TN_DIMS(2, 5, 6)), NULL);
}

static void dump_transformers(void) {
    tn_self_attention attention;
    tn_self_attention_options plain = tn_self_attention_defaults();
    plain.heads = 3;
    plain.causal = false;
    plain.dtype = TN_F64;
    tn_self_attention_init(&attention, 12, plain);
    tn_tensor *seen = tn_ge(tn_rand(TN_DIMS(2, 3, 5, 5), TN_F64), tn_scalar(0.3, TN_F64));
    dump_module("masked_attention", &attention, draw_normal(TN_DIMS(2, 5, 12)), seen);
    const char *names[] = {"mlp_gelu", "mlp_gelu_tanh", "mlp_relu", "mlp_silu"};
    for (int i = 0; i < 4; i++) {
        tn_mlp mlp;
        tn_mlp_options options = tn_mlp_defaults();
        options.activation = (tn_activation)i;
        options.dtype = TN_F64;
        tn_mlp_init(&mlp, 6, options);
        dump_module(names[i], &mlp, draw_normal(TN_DIMS(2, 3, 6)), NULL);
    }
    tn_grouped_attention grouped;
    tn_grouped_attention_options groups = tn_grouped_attention_defaults();
    groups.heads = 4;
    groups.kv_heads = 2;
    groups.head_width = 6;
    groups.causal = false;
    groups.bias = true;
    groups.rotary.theta = 100.0;
    groups.dtype = TN_F64;
    tn_grouped_attention_init(&grouped, 12, groups);
    seen = tn_ge(tn_rand(TN_DIMS(2, 4, 5, 5), TN_F64), tn_scalar(0.3, TN_F64));
    dump_module("grouped_attention", &grouped, draw_normal(TN_DIMS(2, 5, 12)), seen);
    tn_gated_mlp gated;
    tn_gated_mlp_init(&gated, 6, 10, TN_WITH(tn_gated_mlp, .bias = true, .dtype = TN_F64));
    dump_module("gated_mlp", &gated, draw_normal(TN_DIMS(2, 3, 6)), NULL);
    tn_block block;
    tn_block_options options = tn_block_defaults();
    options.heads = 4;
    options.dtype = TN_F64;
    tn_block_init(&block, 16, options);
    dump_module("block", &block, draw_normal(TN_DIMS(2, 7, 16)), NULL);
    options.bias = false;
    options.hidden = 24;
    tn_block_init(&block, 16, options);
    dump_module("block_without_bias", &block, draw_normal(TN_DIMS(2, 7, 16)), NULL);
}

/* As dump_module, for a module with several inputs: CASE/in.0, CASE/in.1, …, and CASE/gin.0, …. An
 * input that is the same as the one before is written once. */
static void dump_many(const char *name, void *m, tn_values in) {
    stir_module(m);
    tn_module_train(m, false); /* no dropout */
    for (int i = 0; i < in.n; i++) {
        if (in.v[i] && tn_dtype_is_float(tn_dtype_of(in.v[i]))) {
            tn_zero_grad(tn_set_requires_grad(in.v[i], true));
        }
    }
    tn_tensor *y = tn_call_list(m, in), *gy = tn_randn(tn_shape(y), TN_F64);
    tn_backward_from(&y, &gy, 1, false);
    for (int i = 0; i < in.n; i++) {
        char index[2] = {(char)('0' + i), 0};
        bool again = i > 0 && in.v[i] == in.v[i - 1];
        if (in.v[i] && !again) {
            add_tensor(name, "in.", index, in.v[i]);
        }
        if (in.v[i] && !again && tn_grad_of(in.v[i])) {
            add_tensor(name, "gin.", index, tn_grad_of(in.v[i]));
        }
    }
    add_tensor(name, "y", "", y);
    add_tensor(name, "gy", "", gy);
    add_module(name, m);
    tn_module_free(m);
}

/* true with probability p, but never for the first key */
static tn_tensor *draw_mask(tn_dims dims, double p) {
    tn_tensor *mask = tn_lt(tn_rand(dims, TN_F64), tn_scalar(p, TN_F64));
    tn_fill_(tn_narrow(mask, -1, 0, 1), 0);
    return mask;
}

static void dump_cross_attention(void) {
    enum { B = 3, T = 4, S = 6, C = 12 };
    tn_multi_head_attention_options o = tn_multi_head_attention_defaults();
    o.dtype = TN_F64;
    tn_tensor *x = draw_normal(TN_DIMS(B, T, C)), *memory = draw_normal(TN_DIMS(B, S, C));
    dump_many("mha_self", tn_multi_head_attention_new_with(C, 3, o), TN_VALUES(x));
    dump_many("mha_self_masked", tn_multi_head_attention_new_with(C, 3, o),
              TN_VALUES(x, x, x, draw_mask(TN_DIMS(B, T), 0.3), tn_causal_mask(T)));
    dump_many("mha_memory", tn_multi_head_attention_new_with(C, 3, o),
              TN_VALUES(x, memory, memory, draw_mask(TN_DIMS(B, S), 0.4)));
    dump_many("mha_apart", tn_multi_head_attention_new_with(C, 3, o),
              TN_VALUES(x, memory, draw_normal(TN_DIMS(B, S, C)), NULL,
                        draw_mask(TN_DIMS(B * 3, T, S), 0.4)));
    o.bias = false;
    o.kdim = 5;
    o.vdim = 7;
    dump_many("mha_dims", tn_multi_head_attention_new_with(C, 3, o),
              TN_VALUES(x, draw_normal(TN_DIMS(B, S, 5)), draw_normal(TN_DIMS(B, S, 7))));
    tn_transformer_options t = tn_transformer_defaults();
    t.hidden = 20;
    t.dtype = TN_F64;
    dump_many("encoder", tn_transformer_encoder_new_with(C, 3, 2, t),
              TN_VALUES(x, draw_mask(TN_DIMS(T, T), 0.3), draw_mask(TN_DIMS(B, T), 0.3)));
    t.norm_first = t.final_norm = true;
    t.activation = TN_ACT_GELU;
    t.eps = 1e-3;
    dump_many("encoder_norm_first", tn_transformer_encoder_new_with(C, 3, 1, t), TN_VALUES(memory));
    dump_many("decoder_norm_first", tn_transformer_decoder_new_with(C, 3, 1, t),
              TN_VALUES(x, memory, tn_causal_mask(T), draw_mask(TN_DIMS(T, S), 0.3),
                        draw_mask(TN_DIMS(B, T), 0.3), draw_mask(TN_DIMS(B, S), 0.3)));
    t = tn_transformer_defaults();
    t.hidden = 20;
    t.dtype = TN_F64;
    tn_tensor *padding = draw_mask(TN_DIMS(B, S), 0.3);
    dump_many("transformer", tn_transformer_new_with(C, 3, 2, 2, t),
              TN_VALUES(memory, x, NULL, tn_causal_mask(T), NULL, padding, NULL, padding));
    t.causal = true; /* the same, without a mask */
    dump_many("transformer_causal", tn_transformer_new_with(C, 3, 1, 1, t), TN_VALUES(memory, x));
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
    add_tensor(name, "x", "", x);
    add_tensor(name, "y", "", y);
    add_tensor(name, "gy", "", gy);
    add_tensor(name, "gx", "", tn_grad_of(x));
    add_module(name, &mlp);
    tn_module_finish(&mlp);
}

static void dump_inits(void) {
    tn_linear linear;
    tn_linear_init(&linear, 150, 200, tn_linear_defaults());
    add_tensor("init", "linear.weight", "", linear.weight);
    add_tensor("init", "linear.bias", "", linear.bias);
    tn_module_finish(&linear);
    tn_conv conv;
    tn_conv2d_init(&conv, 40, 300, TN_DIMS(3), tn_conv_defaults());
    add_tensor("init", "conv2d.weight", "", conv.weight);
    add_tensor("init", "conv2d.bias", "", conv.bias);
    tn_module_finish(&conv);
    tn_conv_transpose1d_init(&conv, 300, 40, TN_DIMS(5), tn_conv_defaults());
    add_tensor("init", "conv_transpose1d.weight", "", conv.weight);
    add_tensor("init", "conv_transpose1d.bias", "", conv.bias);
    tn_module_finish(&conv);
    tn_embedding embedding;
    tn_embedding_init(&embedding, 200, 150, tn_embedding_defaults());
    add_tensor("init", "embedding.weight", "", embedding.weight);
    tn_module_finish(&embedding);
    void (*draw[])(tn_tensor * t, double x) = {tn_init_xavier_uniform, tn_init_xavier_normal,
                                               tn_init_kaiming_uniform, tn_init_kaiming_normal};
    const char *names[] = {"xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"};
    for (int i = 0; i < 4; i++) {
        tn_tensor *t = tn_empty(TN_DIMS(40, 30, 5, 5), TN_F32);
        draw[i](t, 1.5);
        add_tensor("init", names[i], "", t);
    }
    tn_tensor *t = tn_empty(TN_DIMS(300, 100), TN_F32);
    tn_init_uniform(t, -2.0, 3.0);
    add_tensor("init", "uniform", "", t);
    tn_init_normal(t, 1.0, 0.5);
    add_tensor("init", "normal", "", t);
    tn_init_constant(t, 0.25);
    add_tensor("init", "constant", "", t);
    tn_init_trunc_normal(t, 1.0, 2.0, -1.0, 6.0);
    add_tensor("init", "trunc_normal", "", t);
    tn_init_sparse(t, 0.1, 0.5);
    add_tensor("init", "sparse", "", t);
    tn_init_eye(t);
    add_tensor("init", "eye", "", t);
    t = tn_empty(TN_DIMS(40, 30, 5, 5), TN_F32);
    tn_kaiming_options options =
        TN_WITH(tn_kaiming, .mode = TN_FAN_OUT, .nonlinearity = TN_GAIN_RELU);
    tn_init_kaiming_uniform_with(t, options);
    add_tensor("init", "kaiming_uniform_out", "", t);
    options.nonlinearity = TN_GAIN_TANH;
    tn_init_kaiming_normal_with(t, options);
    add_tensor("init", "kaiming_normal_out", "", t);
    t = tn_empty(TN_DIMS(6, 2, 3, 4), TN_F32);
    tn_init_dirac(t, 2);
    add_tensor("init", "dirac", "", t);
    tn_init_orthogonal(t, 3.0); /* wide: 6 rows of 24 */
    add_tensor("init", "orthogonal_wide", "", t);
    t = tn_empty(TN_DIMS(150, 90), TN_F32);
    tn_init_orthogonal(t, 1.0);
    add_tensor("init", "orthogonal_tall", "", t);
    double gains[6];
    for (int i = 0; i < 6; i++) {
        gains[i] = tn_calculate_gain((tn_nonlinearity)i, 0.3);
    }
    add_tensor("init", "gains", "", TN_FROM(gains, TN_DIMS(6), TN_F64));
}

int main(int argc, char **argv) {
    if (!dump_begin(argc, argv)) {
        return 1;
    }
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
