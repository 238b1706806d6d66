/* Llama in Hugging Face's folders: model_type "llama".
 *
 * Rotary options are in one object with transformers 5 (rope_parameters), and in two keys before
 * (rope_theta, rope_scaling). Both are read, as in transformers if both are present, and both are
 * written.
 */
#include "models/weights/hf.h"

#include "core/error.h"
#include "nn/module.h"

#include <inttypes.h>
#include <string.h>

static const char rope_new[] = "rope_parameters", rope_old[] = "rope_scaling";

static bool llama_ignored(const char *name) {
    return strstr(name, ".rotary_emb.inv_freq") != NULL;
}

/* ---- Positions ------------------------------------------------------------------------------- */

/* A required number above 0. */
static bool read_factor(const tn__hf_config *c, const char *key, double *number) {
    return tn__hf_config_real(c, key, 0.0, number) &&
           (*number > 0.0 || tn__hf_config_bad(c, key, "a number above 0"));
}

/* Whether `rope` has no key that changes results and is not supported here. */
static bool read_scaling(const tn__hf_config *rope, tn_rotary_options *o) {
    const char *type;
    bool newer = tn__hf_config_has(rope, "rope_type");
    const char *key = newer ? "rope_type" : "type";
    double part;
    if (!tn__hf_config_text(rope, key, "default", &type) ||
        !tn__hf_config_real(rope, "partial_rotary_factor", 1.0, &part)) {
        return false;
    }
    if (part != 1.0) {
        return tn__hf_config_bad(rope, "partial_rotary_factor", "1: all of a row is rotated here");
    }
    if (strcmp(type, "default") == 0) { return true; }
    return (strcmp(type, "llama3") == 0 || tn__hf_config_bad(rope, key, "default or llama3")) &&
           read_factor(rope, "factor", &o->factor) &&
           read_factor(rope, "low_freq_factor", &o->low_freq_factor) &&
           read_factor(rope, "high_freq_factor", &o->high_freq_factor) &&
           (tn__hf_config_has(rope, "original_max_position_embeddings") ||
            tn__hf_config_bad(rope, "original_max_position_embeddings", "a whole number")) &&
           tn__hf_config_whole(rope, "original_max_position_embeddings", 1, INT64_MAX,
                               &o->original_context);
}

/* The older object, unless it is missing or empty: then the newer one. */
static bool open_rope(const tn__hf_config *c, tn__hf_config *rope) {
    return tn__hf_config_within(c, rope_old, rope) &&
           ((rope->object && rope->object->count > 0) || tn__hf_config_within(c, rope_new, rope));
}

/* Some versions of transformers take this one from outside the object, some from within. */
static bool check_origin(const tn__hf_config *c, const tn__hf_config *rope) {
    static const char key[] = "original_max_position_embeddings";
    int64_t outside, within;
    return !tn__hf_config_has(c, key) || !tn__hf_config_has(rope, key) ||
           (tn__hf_config_whole(c, key, 1, INT64_MAX, &outside) &&
            tn__hf_config_whole(rope, key, 1, INT64_MAX, &within) &&
            (outside == within || tn__hf_config_bad(c, key, "the same in both places")));
}

static bool read_rotary(const tn__hf_config *c, tn_rotary_options *o) {
    tn__hf_config rope;
    double theta;
    *o = tn_rotary_defaults();
    return open_rope(c, &rope) && check_origin(c, &rope) &&
           tn__hf_config_real(c, "rope_theta", 10000.0, &theta) &&
           tn__hf_config_real(&rope, "rope_theta", theta, &o->theta) &&
           (o->theta > 0.0 || tn__hf_config_bad(&rope, "rope_theta", "a number above 0")) &&
           read_scaling(&rope, o);
}

/* ---- config.json ----------------------------------------------------------------------------- */

static bool check_rest(const tn__hf_config *c) {
    tn_activation activation;
    return tn__hf_config_must(c, "attention_bias", false) &&
           tn__hf_config_must(c, "mlp_bias", false) &&
           tn__hf_config_activation(c, "hidden_act", "silu", &activation) &&
           (activation == TN_ACT_SILU ||
            tn__hf_config_bad(c, "hidden_act", "silu: Tern's model has no other"));
}

static bool read_options(const tn__hf_config *c, int tensors, tn_llama_options *o) {
    int64_t layers, heads, kv_heads;
    if (!tn__hf_config_whole(c, "vocab_size", 32000, INT32_MAX, &o->vocab) ||
        !tn__hf_config_whole(c, "max_position_embeddings", 2048, INT32_MAX, &o->context) ||
        !tn__hf_config_whole(c, "hidden_size", 4096, INT32_MAX, &o->width) ||
        !tn__hf_config_whole(c, "intermediate_size", 11008, INT32_MAX, &o->hidden) ||
        !tn__hf_config_layers(c, "num_hidden_layers", 32, tensors, &layers) ||
        !tn__hf_config_whole(c, "num_attention_heads", 32, INT32_MAX, &heads) ||
        !tn__hf_config_whole(c, "num_key_value_heads", heads, heads, &kv_heads) ||
        !tn__hf_config_whole(c, "head_dim", (o->width + heads - 1) / heads, INT32_MAX,
                             &o->head_width) ||
        !tn__hf_config_real(c, "rms_norm_eps", 1e-6, &o->eps) ||
        !tn__hf_config_flag(c, "tie_word_embeddings", false, &o->tied) ||
        !read_rotary(c, &o->rotary) || !check_rest(c)) {
        return false;
    }
    o->layers = (int)layers;
    o->heads = (int)heads;
    o->kv_heads = (int)kv_heads;
    if (heads % kv_heads != 0) {
        return tn__hf_config_bad(c, "num_attention_heads", "a multiple of num_key_value_heads");
    }
    return tn__hf_config_has(c, "head_dim") || o->width % heads == 0 ||
           tn__hf_config_bad(c, "hidden_size", "a multiple of num_attention_heads");
}

static bool llama_init(void *m, const tn__hf_config *c, tn_dtype dtype, int tensors) {
    tn_llama_options options = tn_llama_defaults();
    options.dtype = dtype;
    if (!read_options(c, tensors, &options)) { return false; }
    tn_llama_init(m, options);
    if (tn__pending()) { tn_module_finish(m); }
    return !tn__pending();
}

/* Writes the members of an object of rotary options. */
static void put_scaling(tn__buffer *j, const tn_rotary_options *r) {
    tn__buffer_format(j,
                      "    \"factor\": %.17g,\n    \"high_freq_factor\": %.17g,\n"
                      "    \"low_freq_factor\": %.17g,\n",
                      r->factor, r->high_freq_factor, r->low_freq_factor);
    tn__buffer_format(j,
                      "    \"original_max_position_embeddings\": %" PRId64 ",\n"
                      "    \"rope_type\": \"llama3\"\n  },\n",
                      r->original_context);
}

static void put_rotary(tn__buffer *j, const tn_rotary_options *r) {
    tn__buffer_format(j, "  \"rope_theta\": %.17g,\n  \"%s\": {\n    \"rope_theta\": %.17g,\n",
                      r->theta, rope_new, r->theta);
    if (r->factor == 1.0) {
        tn__buffer_format(j, "    \"rope_type\": \"default\"\n  },\n  \"%s\": null,\n", rope_old);
    } else {
        put_scaling(j, r);
        tn__buffer_format(j, "  \"%s\": {\n", rope_old);
        put_scaling(j, r);
    }
}

/* Whether a module computes as the model's options say. */
static bool same_options(const tn_module *m, const tn_llama_options *o) {
    if (strcmp(m->kind, "rms_norm") == 0) { return ((const tn_rms_norm *)m)->eps == o->eps; }
    if (strcmp(m->kind, "grouped_attention") != 0) { return true; }
    const tn_rotary_options *a = &((const tn_grouped_attention *)m)->rotary, *b = &o->rotary;
    return a->theta == b->theta && a->factor == b->factor &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->original_context == b->original_context;
}

typedef struct check {
    const tn_llama_options *options;
    const char *operation;
} check;

static bool check_options(tn_module *m, const char *path, void *user) {
    const check *c = user;
    bool same = same_options(m, c->options);
    if (!same) {
        tn__raise(TN_EUNSUPPORTED, c->operation,
                  "\"%s\" differs from the model's options, but a config has one set for all",
                  path);
    }
    return same;
}

static bool llama_put_config(tn__buffer *j, void *m, bool plain, const char *operation) {
    const tn_llama_options *o = &((const tn_llama *)m)->options;
    tn_module_each_module(m, check_options, &(check){o, operation});
    if (tn__pending()) { return false; }
    int64_t head_width = o->head_width ? o->head_width : o->width / o->heads;
    tn__buffer_format(j, "  \"architectures\": [\n    \"LlamaForCausalLM\"\n  ],\n");
    tn__buffer_format(j, "  \"attention_bias\": false,\n  \"mlp_bias\": false,\n");
    tn__buffer_format(j, "  \"head_dim\": %" PRId64 ",\n  \"hidden_act\": \"silu\",\n", head_width);
    tn__buffer_format(j, "  \"hidden_size\": %" PRId64 ",\n  \"intermediate_size\": %" PRId64 ",\n",
                      o->width, o->hidden);
    tn__buffer_format(j, "  \"max_position_embeddings\": %" PRId64 ",\n", o->context);
    tn__buffer_format(j, "  \"num_attention_heads\": %d,\n  \"num_hidden_layers\": %d,\n", o->heads,
                      o->layers);
    tn__buffer_format(j, "  \"num_key_value_heads\": %d,\n  \"rms_norm_eps\": %.17g,\n",
                      o->kv_heads, o->eps);
    tn__buffer_format(j, "  \"tie_word_embeddings\": %s,\n  \"vocab_size\": %" PRId64 ",\n",
                      o->tied ? "true" : "false", o->vocab);
    put_rotary(j, &o->rotary);
    return true;
}

const tn__hf_form tn__llama_hf = {
    .prefix = "model.",
    .tokens = "embed_tokens.weight",
    .norm = "norm.weight",
    .init = llama_init,
    .ignored = llama_ignored,
    .put_config = llama_put_config,
};
