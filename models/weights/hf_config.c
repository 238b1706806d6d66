/* config.json of a Hugging Face folder (hf_config.h). */
#include "models/weights/hf_config.h"

#include "core/error.h"
#include "core/folder.h"
#include "core/plain_text.h"
#include "text/plain_numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MOST = 1 << 20 }; /* bytes; usually some hundreds */

/* ---- The file -------------------------------------------------------------------------------- */

bool tn__hf_config_open(tn__hf_config *c, const char *folder, const char *file,
                        const char *operation) {
    *c = (tn__hf_config){.operation = operation};
    c->path = tn__pending() ? NULL : tn__folder_path(folder, file, operation);
    if (!c->path || !tn__json_open(&c->json, c->path, CONFIG_MOST, operation)) {
        free(c->path);
        return false;
    }
    c->object = c->json.values;
    return true;
}

void tn__hf_config_free(tn__hf_config *c) {
    tn__json_free(&c->json);
    free(c->path);
}

/* ---- One value ------------------------------------------------------------------------------- */

static tn__quoted show_value(const tn__json *value) {
    tn__quoted s;
    if (value->kind == TN__JSON_LIST || value->kind == TN__JSON_OBJECT) {
        snprintf(s.text, sizeof(s.text), "%s of %u",
                 value->kind == TN__JSON_LIST ? "a list" : "an object", value->count);
    } else if (value->kind == TN__JSON_WHOLE) {
        snprintf(s.text, sizeof(s.text), "%lld", (long long)value->whole);
    } else {
        const char *quote = value->kind == TN__JSON_TEXT ? "\"" : "";
        snprintf(s.text, sizeof(s.text), "%s%.50s%s", quote, tn__show(value->text).text, quote);
    }
    return s;
}

static bool is_word(const tn__json *value, const char *word) {
    return value->kind == TN__JSON_WORD && strcmp(value->text, word) == 0;
}

/* The only value of the key, or NULL if it is missing or null. *sound is false after raising. */
static const tn__json *find_value(const tn__hf_config *c, const char *key, bool *sound) {
    const tn__json *found = NULL, *value = c->object ? tn__json_first(c->object) : NULL;
    *sound = true;
    for (uint32_t i = 0; value && i < c->object->count; i++, value = tn__json_next(value)) {
        if (strcmp(value->key, key) != 0) { continue; }
        if (found) {
            tn__raise(TN_EFORMAT, c->operation, "%s: \"%s\" occurs twice", c->path, key);
            *sound = false;
            return NULL;
        }
        found = value;
    }
    return found && is_word(found, "null") ? NULL : found;
}

bool tn__hf_config_bad(const tn__hf_config *c, const char *key, const char *wanted) {
    const tn__json *value = c->object ? tn__json_get(c->object, key) : NULL;
    return tn__fail(TN_EFORMAT, c->operation, "%s: \"%s\" is %s but must be %s", c->path, key,
                    value ? show_value(value).text : "missing", wanted);
}

bool tn__hf_config_has(const tn__hf_config *c, const char *key) {
    const tn__json *value = c->object ? tn__json_get(c->object, key) : NULL;
    return value && !is_word(value, "null");
}

bool tn__hf_config_whole(const tn__hf_config *c, const char *key, int64_t absent, int64_t most,
                         int64_t *number) {
    bool sound;
    const tn__json *value = find_value(c, key, &sound);
    *number = value ? value->whole : absent;
    if (value && (value->kind != TN__JSON_WHOLE || value->whole < 1 || value->whole > most)) {
        char wanted[64];
        snprintf(wanted, sizeof(wanted), "a whole number from 1 to %lld", (long long)most);
        return tn__hf_config_bad(c, key, wanted);
    }
    return sound;
}

bool tn__hf_config_layers(const tn__hf_config *c, const char *key, int64_t absent, int tensors,
                          int64_t *layers) {
    char wanted[64];
    snprintf(wanted, sizeof(wanted), "fewer: the weights have %d tensors", tensors);
    return tn__hf_config_whole(c, key, absent, INT32_MAX, layers) &&
           (*layers <= tensors || tn__hf_config_bad(c, key, wanted));
}

bool tn__hf_config_real(const tn__hf_config *c, const char *key, double absent, double *number) {
    bool sound;
    const tn__json *value = find_value(c, key, &sound);
    *number = absent;
    if (value && value->kind == TN__JSON_WHOLE) {
        *number = (double)value->whole;
    } else if (value && value->kind == TN__JSON_REAL) {
        tn__plain_numbers numbers = tn__plain_numbers_begin();
        *number = strtod(value->text, NULL);
        tn__plain_numbers_end(numbers);
    } else if (value) {
        return tn__hf_config_bad(c, key, "a number");
    }
    return sound && (isfinite(*number) || tn__hf_config_bad(c, key, "a finite number"));
}

bool tn__hf_config_flag(const tn__hf_config *c, const char *key, bool absent, bool *flag) {
    bool sound;
    const tn__json *value = find_value(c, key, &sound);
    *flag = value ? is_word(value, "true") : absent;
    if (value && !*flag && !is_word(value, "false")) {
        return tn__hf_config_bad(c, key, "true or false");
    }
    return sound;
}

bool tn__hf_config_text(const tn__hf_config *c, const char *key, const char *absent,
                        const char **text) {
    bool sound;
    const tn__json *value = find_value(c, key, &sound);
    *text = value && value->kind == TN__JSON_TEXT ? value->text : absent;
    if (value && value->kind != TN__JSON_TEXT) { return tn__hf_config_bad(c, key, "a string"); }
    return sound;
}

bool tn__hf_config_must(const tn__hf_config *c, const char *key, bool flag) {
    bool is;
    return tn__hf_config_flag(c, key, flag, &is) &&
           (is == flag || tn__hf_config_bad(c, key,
                                            flag ? "true: Tern's model has no other way"
                                                 : "false: Tern's model has no other way"));
}

/* ---- What several families have -------------------------------------------------------------- */

static const struct {
    const char *name;
    tn_activation activation;
} activation_names[] = {
    {"gelu_new", TN_ACT_GELU_TANH}, {"gelu_pytorch_tanh", TN_ACT_GELU_TANH},
    {"gelu", TN_ACT_GELU},          {"relu", TN_ACT_RELU},
    {"silu", TN_ACT_SILU},          {"swish", TN_ACT_SILU},
};
enum { ACTIVATIONS = sizeof(activation_names) / sizeof(activation_names[0]) };

bool tn__hf_config_activation(const tn__hf_config *c, const char *key, const char *absent,
                              tn_activation *activation) {
    const char *name;
    if (!tn__hf_config_text(c, key, absent, &name)) { return false; }
    for (int i = 0; i < ACTIVATIONS; i++) {
        if (strcmp(name, activation_names[i].name) == 0) {
            *activation = activation_names[i].activation;
            return true;
        }
    }
    return tn__hf_config_bad(c, key, "gelu_new, gelu_pytorch_tanh, gelu, relu, silu or swish");
}

const char *tn__hf_activation_name(tn_activation activation) {
    int i = 0;
    while (activation_names[i].activation != activation) {
        i++;
    }
    return activation_names[i].name;
}

bool tn__hf_config_within(const tn__hf_config *c, const char *key, tn__hf_config *within) {
    bool sound;
    const tn__json *value = find_value(c, key, &sound);
    *within = *c;
    within->object = value;
    if (value && value->kind != TN__JSON_OBJECT) { return tn__hf_config_bad(c, key, "an object"); }
    return sound;
}
