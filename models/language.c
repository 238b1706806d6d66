/* language: what holds for every family of language models.
 *
 * Read next: models/gpt.c, the first of them.
 */
#include "models/language.h"

#include "ops/op.h"

#include <string.h>

static const tn__lm_family *const families[] = {&tn__gpt_family, &tn__llama_family};

enum { FAMILIES = sizeof(families) / sizeof(families[0]) };

const tn__lm_family *tn__lm_family_named(const char *model_type) {
    for (int i = 0; i < FAMILIES; i++) {
        if (strcmp(families[i]->model_type, model_type) == 0) {
            return families[i];
        }
    }
    return NULL;
}

const tn__lm_family *tn__lm_family_of(void *module, const char *operation) {
    const tn_module *m = tn__module_of(module, operation);
    if (!m) {
        return NULL;
    }
    for (int i = 0; m->state == TN__MODULE_ALIVE && i < FAMILIES; i++) {
        if (strcmp(families[i]->kind, m->kind) == 0) {
            return families[i];
        }
    }
    tn__raise(TN_EVALUE, operation, "the module (%s) is not a complete language model", m->kind);
    return NULL;
}

tn_status tn_lm_shape_of(void *m, tn_lm_shape *shape) {
    if (!shape) {
        return tn__raise(TN_EVALUE, "lm_shape_of", "the shape is NULL");
    }
    const tn__lm_family *family = tn__lm_family_of(m, "lm_shape_of");
    *shape = family ? family->shape(m) : (tn_lm_shape){0};
    if (family) {
        shape->parameters = tn_module_count(m);
    }
    return tn_error();
}

tn_tensor *tn_lm_loss(void *m, tn_tensor *tokens, tn_tensor *targets) {
    TN_SCOPE; /* the logits, which are large, live no longer than their gradient */
    tn_cross_entropy_options options = tn_cross_entropy_defaults();
    options.consume_logits = true;
    return tn_return(tn_cross_entropy_with(tn_call(m, tokens), targets, options));
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

/* One position a token, or one a column. */
static bool positions_fit(const tn_tensor *positions, tn_dims tokens) {
    tn_dims d = tn_shape(positions);
    int64_t T = tokens.size[1];
    return (d.ndim == 1 && d.size[0] == T) ||
           (d.ndim == 2 && d.size[1] == T && (d.size[0] == 1 || d.size[0] == tokens.size[0]));
}

/* start, start + 1, … for the columns; NULL after raising that the context ends before. */
static tn_tensor *next_positions(const tn_module *m, tn_tensor *tokens, int64_t start,
                                 int64_t context) {
    int64_t T = tn_size(tokens, 1);
    if (T < 1) {
        tn__raise(TN_EVALUE, m->kind, "tokens are %s: there is no position", tn_shape_text(tokens));
        return NULL;
    }
    if (T > context - start) {
        tn__raise(TN_EVALUE, m->kind, "tokens are %s at position %lld but the context is %lld",
                  tn_shape_text(tokens), (long long)start, (long long)context);
        return NULL;
    }
    return tn__arange(tn_device_of(tokens), (double)start, (double)(start + T), 1.0, TN_I64);
}

bool tn__lm_inputs_of(const tn_module *m, tn_values in, int64_t start, int64_t context,
                      tn__lm_inputs *inputs) {
    if (in.n < 1 || in.n > 3 || !in.v[0] || tn_ndim(in.v[0]) != 2) {
        tn__raise(TN_ESHAPE, m->kind,
                  "the input is %s but must be one tensor of tokens (batch, positions), and may be "
                  "followed by positions and a mask",
                  in.n > 0 && in.v[0] ? tn_shape_text(in.v[0]) : "missing");
        return false;
    }
    *inputs = (tn__lm_inputs){.tokens = in.v[0],
                              .positions = in.n > 1 ? in.v[1] : NULL,
                              .mask = in.n > 2 ? in.v[2] : NULL,
                              .length = tn_size(in.v[0], 1)};
    if (!inputs->positions) {
        inputs->positions = next_positions(m, inputs->tokens, start, context);
        return inputs->positions && !tn_is_inert(inputs->positions);
    }
    if (!positions_fit(inputs->positions, tn_shape(inputs->tokens))) {
        tn__raise(TN_ESHAPE, m->kind,
                  "positions are %s but tokens %s (one for each token, or one for each column)",
                  tn_shape_text(inputs->positions), tn_shape_text(inputs->tokens));
        return false;
    }
    return true;
}
