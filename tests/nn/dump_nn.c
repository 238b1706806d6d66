/* Writes what modules compute, so that test_torch.py can compare it with PyTorch:  dump_nn FILE
 *
 * CASE/x, CASE/mask   inputs              CASE/p.NAME  parameters
 * CASE/y              the result          CASE/g.NAME  their gradients, CASE/gx that of x,
 * CASE/gy             its gradient        of the sum of y gy
 * init/NAME           initial weights     gpt/tokens, targets, logits, loss
 */
#include <stdio.h>
#include <stdlib.h>

#include <tern/tern.h>

static tn_safetensors_writer *writer;

static void add(const char *name, const char *what, const char *path, tn_tensor *t) {
    char text[256];
    snprintf(text, sizeof(text), "%s/%s%s", name, what, path);
    tn_safetensors_writer_add(writer, text, tn_copy(tn_detach(t)));
}

static bool add_parameter(const tn_entry *entry, void *user) {
    add(user, "p.", entry->path, *entry->field);
    return true;
}

static bool add_gradient(const tn_entry *entry, void *user) {
    add(user, "g.", entry->path, tn_grad_of(*entry->field));
    return true;
}

/* Parameters away from their initial ones and zeros, so that every term counts. */
static bool stir(const tn_entry *entry, void *user) {
    (void)user;
    TN_NO_GRAD;
    tn_add_(*entry->field, tn_mul_scalar(tn_randn(tn_shape(*entry->field), TN_F64), 0.3));
    return true;
}

/* Calls m on x (and a mask), differentiates, writes all of it; and ends the module. */
static void dump(const char *name, void *m, tn_tensor *x, tn_tensor *mask) {
    tn_module_each(m, (tn_walk){0}, stir, NULL);
    if (tn_dtype_is_float(tn_dtype_of(x))) {
        tn_set_requires_grad(x, true);
    }
    tn_tensor *y = tn_call_values(m, tn_values_of(x, mask), NULL).v[0];
    tn_tensor *gy = tn_randn(tn_shape(y), TN_F64);
    tn_backward_from(&y, &gy, 1, false);
    add(name, "x", "", x);
    add(name, "y", "", y);
    add(name, "gy", "", gy);
    if (mask) {
        add(name, "mask", "", mask);
    }
    if (tn_grad_of(x)) {
        add(name, "gx", "", tn_grad_of(x));
    }
    tn_module_each(m, (tn_walk){0}, add_parameter, (void *)name);
    tn_module_each(m, (tn_walk){0}, add_gradient, (void *)name);
    tn_module_finish(m);
}

static tn_tensor *normal(tn_dims dims) {
    return tn_randn(dims, TN_F64);
}

static void dump_layers(void) {
    tn_linear linear;
    tn_linear_init(&linear, 7, 5, (tn_linear_options){.bias = true, .dtype = TN_F64});
    dump("linear", &linear, normal(TN_DIMS(3, 4, 7)), NULL);
    tn_linear_init(&linear, 7, 5, (tn_linear_options){.bias = false, .dtype = TN_F64});
    dump("linear_without_bias", &linear, normal(TN_DIMS(6, 7)), NULL);
    tn_embedding embedding;
    tn_embedding_init(&embedding, 11, 6, TN_F64);
    dump("embedding", &embedding, tn_randint(0, 11, TN_DIMS(4, 9), TN_I64), NULL);
    tn_norm_options norm = tn_norm_defaults();
    norm.dtype = TN_F64;
    tn_layer_norm layer_norm;
    tn_layer_norm_init(&layer_norm, 10, norm);
    dump("layer_norm", &layer_norm, normal(TN_DIMS(2, 3, 10)), NULL);
    tn_rms_norm rms_norm;
    tn_rms_norm_init(&rms_norm, 10, norm);
    dump("rms_norm", &rms_norm, normal(TN_DIMS(2, 3, 10)), NULL);
}

static void dump_transformers(void) {
    tn_self_attention attention;
    tn_self_attention_options plain = tn_self_attention_defaults();
    plain.heads = 3;
    plain.causal = false;
    plain.dtype = TN_F64;
    tn_self_attention_init(&attention, 12, plain);
    tn_tensor *seen = tn_ge(tn_rand(TN_DIMS(2, 3, 5, 5), TN_F64), tn_scalar(0.3, TN_F64));
    dump("masked_attention", &attention, normal(TN_DIMS(2, 5, 12)), seen);
    const char *names[] = {"mlp_gelu", "mlp_gelu_tanh", "mlp_relu", "mlp_silu"};
    for (int i = 0; i < 4; i++) {
        tn_mlp mlp;
        tn_mlp_options options = tn_mlp_defaults();
        options.activation = (tn_activation)i;
        options.dtype = TN_F64;
        tn_mlp_init(&mlp, 6, options);
        dump(names[i], &mlp, normal(TN_DIMS(2, 3, 6)), NULL);
    }
    tn_block block;
    tn_block_options options = tn_block_defaults();
    options.heads = 4;
    options.dtype = TN_F64;
    tn_block_init(&block, 16, options);
    dump("block", &block, normal(TN_DIMS(2, 7, 16)), NULL);
    options.bias = false;
    options.hidden = 24;
    tn_block_init(&block, 16, options);
    dump("block_without_bias", &block, normal(TN_DIMS(2, 7, 16)), NULL);
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
    add(name, "x", "", x);
    add(name, "y", "", y);
    add(name, "gy", "", gy);
    add(name, "gx", "", tn_grad_of(x));
    tn_module_each(&mlp, (tn_walk){0}, add_parameter, (void *)name);
    tn_module_each(&mlp, (tn_walk){0}, add_gradient, (void *)name);
    tn_module_finish(&mlp);
}

static void dump_gpt(const char *name, tn_dtype dtype) {
    tn_gpt gpt;
    tn_gpt_options options = {
        .vocab = 37, .context = 12, .layers = 3, .heads = 2, .width = 16, .bias = true};
    options.activation = TN_ACT_GELU_TANH;
    options.dtype = dtype;
    tn_gpt_init(&gpt, options);
    if (dtype == TN_F64) {
        tn_module_each(&gpt, (tn_walk){0}, stir, NULL);
    }
    tn_tensor *tokens = tn_randint(0, 37, TN_DIMS(4, 10), TN_I64);
    tn_tensor *targets = tn_randint(0, 37, TN_DIMS(4, 10), TN_I64);
    ((int64_t *)tn_data_mut(targets))[3] = -100;
    tn_tensor *loss = tn_lm_loss(&gpt, tokens, targets);
    tn_backward(loss);
    add(name, "tokens", "", tokens);
    add(name, "targets", "", targets);
    add(name, "logits", "", tn_call(&gpt, tokens));
    add(name, "loss", "", loss);
    tn_module_each(&gpt, (tn_walk){0}, add_parameter, (void *)name);
    tn_module_each(&gpt, (tn_walk){0}, add_gradient, (void *)name);
    tn_module_finish(&gpt);
}

static void dump_inits(void) {
    tn_linear linear;
    tn_linear_init(&linear, 150, 200, tn_linear_defaults());
    add("init", "linear.weight", "", linear.weight);
    add("init", "linear.bias", "", linear.bias);
    tn_module_finish(&linear);
    tn_embedding embedding;
    tn_embedding_init(&embedding, 200, 150, TN_F32);
    add("init", "embedding.weight", "", embedding.weight);
    tn_module_finish(&embedding);
    void (*draw[])(tn_tensor * t, double x) = {tn_init_xavier_uniform, tn_init_xavier_normal,
                                               tn_init_kaiming_uniform, tn_init_kaiming_normal};
    const char *names[] = {"xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"};
    for (int i = 0; i < 4; i++) {
        tn_tensor *t = tn_empty(TN_DIMS(40, 30, 5, 5), TN_F32);
        draw[i](t, 1.5);
        add("init", names[i], "", t);
    }
    tn_tensor *t = tn_empty(TN_DIMS(300, 100), TN_F32);
    tn_init_uniform(t, -2.0, 3.0);
    add("init", "uniform", "", t);
    tn_init_normal(t, 1.0, 0.5);
    add("init", "normal", "", t);
    tn_init_constant(t, 0.25);
    add("init", "constant", "", t);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    if (argc != 2) {
        fprintf(stderr, "dump_nn FILE\n");
        return 1;
    }
    tn_seed(3);
    writer = tn_safetensors_writer_new();
    dump_layers();
    dump_transformers();
    dump_mixed();
    dump_gpt("gpt", TN_F64);
    dump_gpt("gpt_f32", TN_F32);
    dump_inits();
    return tn_safetensors_writer_save(writer, argv[1]) == TN_OK ? 0 : 1;
}
