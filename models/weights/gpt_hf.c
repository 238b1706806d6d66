/* GPT-2 in Hugging Face's folders: model_type "gpt2".
 *
 * Its linears are "Conv1D" there, whose weights are (in, out). Older files have the causal mask of
 * every layer as attn.bias and attn.masked_bias. All its linears and norms have biases: those that
 * a gpt lacks are written as zeros, which computes the same. With plain weights, which transformers
 * does not read, the config says "bias": false instead.
 */
#include "models/weights/hf.h"

#include "core/error.h"
#include "nn/module.h"
#include "text/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool gpt_transposed(const char *path) {
    return tn__ends_with(path, ".c_attn.weight") || tn__ends_with(path, ".c_proj.weight") ||
           tn__ends_with(path, ".c_fc.weight");
}

static bool gpt_biased(const char *path) {
    return tn__ends_with(path, ".weight") && strncmp(path, "wte.", 4) != 0 &&
           strncmp(path, "wpe.", 4) != 0;
}

static bool gpt_ignored(const char *name) {
    return tn__ends_with(name, ".attn.bias") || tn__ends_with(name, ".attn.masked_bias");
}

/* ---- config.json ----------------------------------------------------------------------------- */

/* Checks options that a gpt supports only one value of. */
static bool check_rest(const tn__hf_config *c, int64_t width) {
    int64_t inner;
    return tn__hf_config_must(c, "scale_attn_weights", true) &&
           tn__hf_config_must(c, "scale_attn_by_inverse_layer_idx", false) &&
           tn__hf_config_must(c, "reorder_and_upcast_attn", false) &&
           tn__hf_config_must(c, "add_cross_attention", false) &&
           tn__hf_config_must(c, "tie_word_embeddings", true) &&
           tn__hf_config_whole(c, "n_inner", 4 * width, INT64_MAX, &inner) &&
           (inner == 4 * width || tn__hf_config_bad(c, "n_inner", "null or 4 n_embd"));
}

/* A number under GPT-2's own key or that of other models, which transformers also accepts. */
static bool read_either(const tn__hf_config *c, const char *key, const char *other, int64_t absent,
                        int64_t *number) {
    int64_t own;
    char wanted[64];
    snprintf(wanted, sizeof(wanted), "what \"%s\" is", key);
    return tn__hf_config_whole(c, key, absent, INT32_MAX, &own) &&
           tn__hf_config_whole(c, other, own, INT32_MAX, number) &&
           (*number == own || !tn__hf_config_has(c, key) || tn__hf_config_bad(c, other, wanted));
}

static bool read_options(const tn__hf_config *c, int tensors, tn_gpt_options *o, double *eps) {
    int64_t layers, heads;
    if (!tn__hf_config_whole(c, "vocab_size", 50257, INT32_MAX, &o->vocab) ||
        !read_either(c, "n_positions", "max_position_embeddings", 1024, &o->context) ||
        !read_either(c, "n_embd", "hidden_size", 768, &o->width) ||
        !read_either(c, "n_layer", "num_hidden_layers", 12, &layers) ||
        !tn__hf_config_layers(c, "n_layer", layers, tensors, &layers) ||
        !read_either(c, "n_head", "num_attention_heads", 12, &heads) ||
        !tn__hf_config_activation(c, "activation_function", "gelu_new", &o->activation) ||
        !tn__hf_config_flag(c, "bias", true, &o->bias) ||
        !tn__hf_config_real(c, "layer_norm_epsilon", 1e-5, eps) || !check_rest(c, o->width)) {
        return false;
    }
    o->layers = (int)layers;
    o->heads = (int)heads;
    return o->width % o->heads == 0 || tn__hf_config_bad(c, "n_embd", "a multiple of n_head");
}

static bool gpt_init(void *m, const tn__hf_config *c, tn_dtype dtype, int tensors) {
    tn_gpt_options options = tn_gpt_defaults();
    double eps;
    options.dtype = dtype;
    options.dropout = c->dropout;
    if (!read_options(c, tensors, &options, &eps)) { return false; }
    tn_gpt_init(m, options);
    if (tn__pending()) {
        tn_module_finish(m);
        return false;
    }
    tn__norms_set_eps(m, eps);
    return true;
}

/* The epsilon of all norms. */
typedef struct norm_eps {
    double value;
    bool found, differ;
} norm_eps;

static bool look_at_eps(tn_module *m, const char *path, void *user) {
    norm_eps *e = user;
    if (strcmp(m->kind, "layer_norm") == 0) {
        double eps = ((tn_layer_norm *)m)->eps;
        e->differ = e->differ || (e->found && eps != e->value);
        e->value = eps;
        e->found = true;
    }
    return true;
}

static bool gpt_put_config(tn__buffer *j, void *m, bool plain, const char *operation) {
    const tn_gpt_options *o = &((const tn_gpt *)m)->options;
    norm_eps eps = {.found = false};
    tn_module_each_module(m, look_at_eps, &eps);
    if (eps.differ) {
        return tn__fail(
            TN_EUNSUPPORTED, operation,
            "the norms have different epsilons, and \"layer_norm_epsilon\" is one number");
    }
    tn__buffer_format(j, "  \"architectures\": [\n    \"GPT2LMHeadModel\"\n  ],\n");
    tn__buffer_format(j, "  \"activation_function\": \"%s\",\n",
                      tn__hf_activation_name(o->activation));
    tn__buffer_format(
        j, "  \"attn_pdrop\": %.17g,\n  \"embd_pdrop\": %.17g,\n  \"resid_pdrop\": %.17g,\n",
        o->dropout, o->dropout, o->dropout);
    tn__buffer_format(j, "  \"layer_norm_epsilon\": %.17g,\n", eps.value);
    tn__buffer_format(j,
                      "  \"n_ctx\": %" PRId64 ",\n  \"n_embd\": %" PRId64 ",\n  \"n_head\": %d,\n"
                      "  \"n_inner\": null,\n  \"n_layer\": %d,\n",
                      o->context, o->width, o->heads, o->layers);
    tn__buffer_format(j, "  \"n_positions\": %" PRId64 ",\n  \"vocab_size\": %" PRId64 ",\n",
                      o->context, o->vocab);
    tn__buffer_format(j, "  \"tie_word_embeddings\": true,\n");
    if (plain && !o->bias) { tn__buffer_format(j, "  \"bias\": false,\n"); }
    return true;
}

const tn__hf_form tn__gpt_hf = {
    .prefix = "transformer.",
    .tokens = "wte.weight",
    .norm = "ln_f.weight",
    .init = gpt_init,
    .dropout = true,
    .transposed = gpt_transposed,
    .biased = gpt_biased,
    .ignored = gpt_ignored,
    .put_config = gpt_put_config,
};
