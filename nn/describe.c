/* What a model is made of, as text: saved with its weights, and compared when they are loaded. A
 * JSON object with a member for each module, in the order of a walk:
 *
 *     {".":{"kind":"gpt","options":{"vocab":65,"heads":4},"training":{"dropout":0}},
 *     "wte":{"kind":"embedding"},
 *     "h.0.attn":{"kind":"self_attention","options":{"heads":4,"causal":true}}, …}
 *
 * The key is its path ("." is the model itself), then come its kind and its options
 * (tn_module.fields). Those in "training" do not change what trained weights compute; they include
 * the mixed-precision policy set on the module: "param", "compute", "reduce". Files keep this text:
 * it may get more modules and options, but names never change.
 */
#include "nn/describe.h"

#include "core/error.h"
#include "nn/module.h"
#include "tensor/fields.h"
#include "text/plain_numbers.h"

#include <string.h>

/* ---- Writing --------------------------------------------------------------------------------- */

static void put_text(tn__members *m, const char *name, const char *value) {
    tn__member_put(m, name, value, true);
}

static void put_precision(tn__members *m, const tn_precision *p) {
    put_text(m, "param", tn_dtype_name(p->param));
    put_text(m, "compute", tn_dtype_name(p->compute));
    put_text(m, "reduce", tn_dtype_name(p->reduce));
    if (p->cast_output) { put_text(m, "output", tn_dtype_name(p->output)); }
}

/* "options":{…}, or "training":{…}, unless empty. */
static void put_options(tn__buffer *j, const tn_module *m, bool training) {
    const tn_precision *precision = training && m->lists ? m->lists->precision : NULL;
    size_t before = j->bytes;
    tn__buffer_text(j, training ? ",\"training\":" : ",\"options\":");
    tn__members members = tn__members_begin(j);
    size_t empty = j->bytes;
    tn__fields_put(&members, m->fields, m, training);
    if (precision) { put_precision(&members, precision); }
    tn__members_end(&members);
    j->bytes = j->bytes == empty + 1 ? before : j->bytes;
}

static bool put_module(tn_module *m, const char *path, void *user) {
    tn__members *all = user;
    if (m->parent && !m->name[0]) { return true; /* transparent */ }
    tn__member_name(all, *path ? path : ".");
    tn__members members = tn__members_begin(all->to);
    put_text(&members, "kind", m->kind);
    put_options(all->to, m, false);
    put_options(all->to, m, true);
    tn__members_end(&members);
    return !all->to->failed;
}

char *tn__module_describe(void *m, const char *operation) {
    tn__buffer j = {.operation = operation};
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    tn__members all = tn__members_begin(&j);
    tn_module_each_module(m, put_module, &all);
    tn__members_end(&all);
    tn__plain_numbers_end(numbers);
    if (tn__pending()) { tn__buffer_free(&j); }
    return j.at;
}

/* ---- Reading --------------------------------------------------------------------------------- */

bool tn__description_read(tn__json_file *f, const char *text, const char *path,
                          const char *operation) {
    if (!tn__json_read_any(f, text, strlen(text))) {
        tn__raise(f->wrong ? TN_EFORMAT : TN_ENOMEM, operation,
                  "%s: byte %zu of its description: %s", path, f->at,
                  f->wrong ? f->wrong : "no memory");
    }
    return f->values != NULL;
}
