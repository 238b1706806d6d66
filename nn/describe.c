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
 *
 * Older files have prose, a line for each module, and so do other lists of options:
 *
 *     h.0.attn: self_attention, heads 4, causal 1
 *     h.0.attn.drop: dropout; p 0
 *     beta1 0.9, beta2 0.999, eps 1e-08
 *
 * It is read into the same objects. What is after ';' was for training only. Floating-point numbers
 * were %a or shortest, sizes and bools numbers.
 */
#include "nn/describe.h"

#include "core/error.h"
#include "nn/module.h"
#include "tensor/fields.h"
#include "text/number.h"

#include <string.h>

/* ---- Writing --------------------------------------------------------------------------------- */

static void put_text(tn__members *m, const char *name, const char *value) {
    tn__member_put(m, name, value, true);
}

static void put_precision(tn__members *m, const tn_precision *p) {
    put_text(m, "param", tn_dtype_name(p->param));
    put_text(m, "compute", tn_dtype_name(p->compute));
    put_text(m, "reduce", tn_dtype_name(p->reduce));
    if (p->cast_output) {
        put_text(m, "output", tn_dtype_name(p->output));
    }
}

/* "options":{…}, or "training":{…}, unless empty. */
static void put_options(tn__buffer *j, const tn_module *m, bool training) {
    const tn_precision *precision = training && m->lists ? m->lists->precision : NULL;
    size_t before = j->bytes;
    tn__buffer_text(j, training ? ",\"training\":" : ",\"options\":");
    tn__members members = tn__members_begin(j, false);
    size_t empty = j->bytes;
    tn__fields_put(&members, m->fields, m, training);
    if (precision) {
        put_precision(&members, precision);
    }
    tn__members_end(&members);
    j->bytes = j->bytes == empty + 1 ? before : j->bytes;
}

const tn_field tn__no_fields[] = {{0}};

static bool put_module(tn_module *m, const char *path, void *user) {
    tn__members *all = user;
    const tn_precision *own = m->lists ? m->lists->precision : NULL;
    if ((m->parent && !m->name[0]) || (m->fields == tn__no_fields && !own)) {
        return true; /* transparent, or silent: the module around it describes it */
    }
    tn__member_name(all, *path ? path : ".");
    tn__members members = tn__members_begin(all->to, false);
    put_text(&members, "kind", m->kind);
    put_options(all->to, m, false);
    put_options(all->to, m, true);
    tn__members_end(&members);
    return !all->to->failed;
}

char *tn__module_describe(void *m, const char *operation) {
    tn__buffer j = {.operation = operation};
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    tn__members all = tn__members_begin(&j, false);
    tn_module_each_module(m, put_module, &all);
    tn__members_end(&all);
    tn__plain_numbers_end(numbers);
    if (tn__pending()) {
        tn__buffer_free(&j);
    }
    return j.at;
}

/* ---- Reading prose --------------------------------------------------------------------------- */

enum { LIST_MOST = 4096 }; /* bytes of a list that are read; no list was longer than 3072 */

typedef struct span {
    const char *at;
    size_t length;
} span;

/* Cuts the front of *rest up to and including the first `mark`; trims spaces. */
static span take_until(span *rest, char mark) {
    const char *end = rest->length ? memchr(rest->at, mark, rest->length) : NULL;
    size_t length = end ? (size_t)(end - rest->at) : rest->length;
    span taken = {rest->at, length};
    rest->at += length + (end != NULL);
    rest->length -= length + (end != NULL);
    for (; taken.length && *taken.at == ' '; taken.at++, taken.length--) {
    }
    for (; taken.length && taken.at[taken.length - 1] == ' '; taken.length--) {
    }
    return taken;
}

/* Copies to at[size]; numbers written as %a become decimal. */
static void copy_value(span from, char *at, size_t size) {
    size_t used = 0;
    while (from.length && used + sizeof(tn__number) < size) {
        char *end = (char *)from.at + 1;
        double number = strncmp(from.at, "0x", 2) == 0 ? strtod(from.at, &end) : 0;
        size_t step = (size_t)(end - from.at);
        if (step > 1 && step <= from.length && memchr(from.at, 'p', step)) { /* but not "10x4" */
            used += (size_t)snprintf(at + used, size - used, "%s", tn__number_of(number).text);
        } else {
            step = 1;
            at[used++] = *from.at;
        }
        from.at += step;
        from.length -= step;
    }
    at[used] = 0;
}

/* Puts the items of "NAME VALUE, …". The value is what follows the last space. */
static void put_items(tn__members *m, span list) {
    list.length = list.length < LIST_MOST ? list.length : LIST_MOST;
    while (list.length) {
        char name[256], value[256];
        span whole = take_until(&list, ',');
        size_t length = whole.length;
        while (length && whole.at[length - 1] != ' ') {
            length--;
        }
        span before = {whole.at, length ? length : whole.length};
        before = take_until(&before, 0);
        snprintf(name, sizeof(name), "%.*s", (int)(before.length < 255 ? before.length : 255),
                 before.at);
        copy_value((span){whole.at + length, length ? whole.length - length : 0}, value,
                   sizeof(value));
        if (whole.length) {
            put_text(m, name, value);
        }
    }
}

/* "PATH: KIND, OPTIONS; TRAINING" */
static void put_line(tn__members *all, span line) {
    char text[256];
    span path = take_until(&line, ':'), options = take_until(&line, ';');
    span kind = take_until(&options, ',');
    snprintf(text, sizeof(text), "%.*s", (int)(path.length < 255 ? path.length : 255), path.at);
    tn__member_name(all, text);
    tn__members module = tn__members_begin(all->to, false);
    snprintf(text, sizeof(text), "%.*s", (int)(kind.length < 255 ? kind.length : 255), kind.at);
    put_text(&module, "kind", text);
    for (int training = 0; training < 2; training++) {
        tn__member_name(&module, training ? "training" : "options");
        tn__members items = tn__members_begin(all->to, false);
        put_items(&items, training ? line : options);
        tn__members_end(&items);
    }
    tn__members_end(&module);
}

static void put_prose(tn__buffer *j, span text, bool model) {
    tn__members all = tn__members_begin(j, false);
    if (!model) {
        put_items(&all, text);
    }
    while (model && text.length) {
        span line = take_until(&text, '\n');
        if (line.length) {
            put_line(&all, line);
        }
    }
    tn__members_end(&all);
}

bool tn__description_read(tn__json_file *f, const char *text, bool model, const char *path,
                          const char *operation) {
    tn__buffer j = {.operation = operation};
    *f = (tn__json_file){0};
    if (*text != '{') {
        tn__plain_numbers numbers = tn__plain_numbers_begin();
        put_prose(&j, (span){text, strlen(text)}, model);
        tn__plain_numbers_end(numbers);
        text = j.at;
    }
    if (!j.failed && !tn__json_read_any(f, text, strlen(text))) {
        tn__raise(f->wrong ? TN_EFORMAT : TN_ENOMEM, operation,
                  "%s: byte %zu of its description: %s", path, f->at,
                  f->wrong ? f->wrong : "no memory");
    }
    tn__buffer_free(&j);
    return f->values != NULL;
}
