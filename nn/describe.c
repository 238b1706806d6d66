/* What a model is made of, as text: saved with its weights, and compared when they are loaded.
 *
 *     .: gpt, vocab 65, context 64, layers 4, heads 4, width 128, bias 0; dropout 0
 *     wte: embedding
 *     h.0: block
 *     h.0.ln_1: layer_norm, eps 1e-05
 *     h.0.attn: self_attention, heads 4, causal 1
 *     h.0.attn.drop: dropout; p 0
 *
 * A line a module, in the order of a walk: its path ("." is the model itself), its kind, what it
 * says of its options (tn_module.describe), and at the end of these the policy of mixed precision
 * that was set on it: "param f32, compute bf16, reduce f32". What stands behind ';' does not change
 * what trained weights compute. Files keep this text: it may get more lines and more options, but
 * what has a name keeps it.
 */
#include "nn/describe.h"

#include "core/memory.h"
#include "nn/module.h"

#include <stdio.h>
#include <string.h>

typedef struct description {
    const char *operation;
    char *text;
    size_t length, room;
    bool failed;
} description;

static void add_text(description *d, const char *more) {
    size_t bytes = strlen(more);
    if (!d->failed && d->length + bytes >= d->room) {
        size_t room = 2 * (d->length + bytes) + 256;
        char *larger = tn__realloc(d->text, room);
        d->failed = !larger;
        d->text = larger ? larger : d->text;
        d->room = larger ? room : d->room;
    }
    if (!d->failed) {
        memcpy(d->text + d->length, more, bytes + 1);
        d->length += bytes;
    }
}

/* Text of the program's, which may not end a line. The rest of the file is UTF-8 as well, so what
 * is not ASCII becomes '?'. */
static void add_words(description *d, const char *more) {
    size_t from = d->length;
    add_text(d, more);
    for (size_t i = from; i < d->length; i++) {
        d->text[i] = (char)(d->text[i] >= ' ' && d->text[i] <= '~' ? d->text[i] : '?');
    }
}

/* Writes the module's own words to text[TN_DESCRIBE_ROOM]. False after raising. */
static bool ask_module(const tn_module *m, const char *path, const char *operation, char *text) {
    int bytes = m->describe ? m->describe(m, text, TN_DESCRIBE_ROOM) : 0;
    if (bytes < 0 || bytes >= TN_DESCRIBE_ROOM) {
        tn__raise(TN_EVALUE, operation, "%s (%s) describes itself in %d bytes (0 to %d)", path,
                  m->kind, bytes, TN_DESCRIBE_ROOM - 1);
    }
    return !tn__pending();
}

static void add_precision(description *d, const tn_precision *p, const char *before) {
    char text[128];
    snprintf(text, sizeof(text), "%sparam %s, compute %s, reduce %s%s%s", before,
             tn_dtype_name(p->param), tn_dtype_name(p->compute), tn_dtype_name(p->reduce),
             p->cast_output ? ", output " : "", p->cast_output ? tn_dtype_name(p->output) : "");
    add_text(d, text);
}

static bool describe_module(tn_module *m, const char *path, void *user) {
    description *d = user;
    const tn_precision *own = m->lists ? m->lists->precision : NULL;
    char text[TN_DESCRIBE_ROOM] = "";
    if (m->parent && !m->name[0]) {
        return true; /* transparent: the module around it says all of it */
    }
    if (!ask_module(m, *path ? path : ".", d->operation, text)) {
        return false;
    }
    add_words(d, *path ? path : ".");
    add_text(d, ": ");
    add_words(d, m->kind);
    add_text(d, *text && *text != ';' ? ", " : "");
    add_words(d, text);
    if (own) {
        add_precision(d, own, strchr(text, ';') ? ", " : "; ");
    }
    add_text(d, "\n");
    return !d->failed;
}

int tn__describe_dims(char *text, size_t room, int length, const char *name, tn_dims dims) {
    for (int i = 0; i < dims.ndim; i++) {
        size_t used = (size_t)length < room ? (size_t)length : room;
        length += i ? snprintf(text + used, room - used, "x%lld", (long long)dims.size[i])
                    : snprintf(text + used, room - used, "%s%s %lld", length ? ", " : "", name,
                               (long long)dims.size[i]);
    }
    return length;
}

char *tn__module_describe(void *m, const char *operation) {
    description d = {.operation = operation};
    tn_module_each_module(m, describe_module, &d);
    if (d.failed) {
        tn__raise(TN_ENOMEM, operation, "no memory to describe the model");
    }
    if (tn__pending()) {
        free(d.text);
        return NULL;
    }
    return d.text;
}
