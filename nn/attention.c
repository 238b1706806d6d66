/* What modules with attention have in common (attention.h). */
#include "nn/attention.h"

#include "nn/module.h"

#include <string.h>

bool tn__sequences_of(const tn_module *m, tn_values in, tn__sequences *s) {
    if (in.n < 1 || in.n > 3 || !in.v[0]) {
        return tn__fail(TN_EVALUE, m->kind,
                        "the inputs are x and optionally a mask and positions (%d given)", in.n);
    }
    *s = (tn__sequences){in.v[0], in.n > 1 ? in.v[1] : NULL, in.n > 2 ? in.v[2] : NULL};
    if (tn_ndim(s->x) != 3) {
        return tn__fail(TN_ESHAPE, m->kind, "x is %s but must be (batch, positions, width)",
                        tn_shape_text(s->x));
    }
    return true;
}

tn_tensor *tn__attend(const tn_module *m, tn_tensor *q, tn_tensor *k, tn_tensor *v, tn_tensor *mask,
                      tn_attention_options options) {
    const tn__attend_rule *rule = m->lists ? &m->lists->attend : NULL;
    return rule && rule->f ? rule->f(rule->state, q, k, v, mask, options)
                           : tn_attention(q, k, v, mask, options);
}

int64_t tn__head_width(const tn_module *m) {
    const tn_self_attention *own = (const tn_self_attention *)m;
    const tn_grouped_attention *grouped = (const tn_grouped_attention *)m;
    return strcmp(m->kind, "self_attention") == 0      ? tn_size(own->c_attn.weight, 1) / own->heads
           : strcmp(m->kind, "grouped_attention") == 0 ? grouped->head_width
                                                       : 0;
}

int64_t tn__kv_heads(const tn_module *m) {
    if (strcmp(m->kind, "self_attention") == 0) {
        const tn_self_attention *own = (const tn_self_attention *)m;
        tn_dims d = tn_shape(own->c_attn.weight); /* rows of q, k and v: those of whole heads */
        return own->heads * d.size[0] / d.size[1] / 3;
    }
    const tn_grouped_attention *grouped = (const tn_grouped_attention *)m;
    return tn_size(grouped->k_proj.weight, 0) / grouped->head_width;
}

tn_tensor *tn__add_branch(tn_tensor *x, tn_tensor *branch) {
    tn_tensor *y = tn_add(x, branch);
    tn_drop(branch);
    return y;
}
