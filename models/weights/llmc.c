/* llm.c's GPT-2 checkpoints (github.com/karpathy/llm.c): version 3 in f32, version 5 in bf16.
 *
 *     256 i32     magic, version, context, vocab, layers, heads, width, padded vocab; zeros
 *     wte         (padded vocab, width): rows beyond the vocabulary are zeros
 *     wpe         (context, width)
 *     then each block parameter, for all layers in order; ln_f
 *
 * Matrices are (out, in), as in Tern. There are no options: activation and epsilon are
 * GPT-2's, and everything has a bias.
 */
#include "core/error.h"
#include "core/file.h"
#include "core/reader.h"
#include "data/corpus/kind.h"
#include "io/state.h"
#include "models/language.h"
#include "tern/sys/device.h"
#include "tern/sys/tensor.h"
#include "text/text.h"

#include <stdio.h>
#include <string.h>

enum {
    HEADER = 256,
    MAGIC = 20240326,
    VERSION_F32 = 3,
    VERSION_BF16 = 5,
    PADDED_TO = 128, /* llm.c pads vocabularies to a multiple of this */
};

typedef struct llmc_shape {
    int64_t context, vocab, layers, heads, width, padded;
} llmc_shape;

/* The parameters in their order, rows and columns in multiples of the width; columns 0: a
 * vector. wte and wpe come before them. */
static const struct {
    const char *name; /* of a layer, or of the model */
    int rows, columns;
    bool of_model;
} order[] = {
    {"ln_1.weight", 1, 0, false},        {"ln_1.bias", 1, 0, false},
    {"attn.c_attn.weight", 3, 1, false}, {"attn.c_attn.bias", 3, 0, false},
    {"attn.c_proj.weight", 1, 1, false}, {"attn.c_proj.bias", 1, 0, false},
    {"ln_2.weight", 1, 0, false},        {"ln_2.bias", 1, 0, false},
    {"mlp.c_fc.weight", 4, 1, false},    {"mlp.c_fc.bias", 4, 0, false},
    {"mlp.c_proj.weight", 1, 4, false},  {"mlp.c_proj.bias", 1, 0, false},
    {"ln_f.weight", 1, 0, true},         {"ln_f.bias", 1, 0, true},
};
enum { KINDS = sizeof(order) / sizeof(order[0]) };

/* Calls f with the path and the number of elements of each parameter in the file's order, until it
 * returns false. */
typedef bool llmc_visitor(const char *path, int64_t count, void *user);

static bool each_parameter(const llmc_shape *s, llmc_visitor *f, void *user) {
    bool more =
        f("wte.weight", s->vocab * s->width, user) && f("wpe.weight", s->context * s->width, user);
    for (int k = 0; more && k < KINDS; k++) {
        int64_t rows = order[k].rows * s->width;
        int64_t count = order[k].columns ? rows * order[k].columns * s->width : rows;
        for (int64_t layer = 0; more && layer < (order[k].of_model ? 1 : s->layers); layer++) {
            char path[64];
            if (order[k].of_model) {
                snprintf(path, sizeof(path), "%s", order[k].name);
            } else {
                snprintf(path, sizeof(path), "h.%lld.%s", (long long)layer, order[k].name);
            }
            more = f(path, count, user);
        }
    }
    return more;
}

/* ---- Loading --------------------------------------------------------------------------------- */

typedef struct llmc_load {
    tn__reader file;
    tn_dtype dtype; /* of the file */
    llmc_shape shape;
    tn_gpt *model;
    size_t at; /* in the file */
} llmc_load;

static bool header_bad(const llmc_load *l, int at, int32_t is, const char *wanted) {
    return tn__fail(TN_EFORMAT, l->file.operation, "%s: header field %d is %d but must be %s",
                    l->file.path, at, is, wanted);
}

/* Whether the file has as many bytes as its header says. */
static bool check_size(const llmc_load *l) {
    const llmc_shape *s = &l->shape;
    __extension__ typedef unsigned __int128 wide;
    wide C = (wide)s->width;
    wide count =
        ((wide)s->padded + (wide)s->context) * C + (wide)s->layers * (12 * C + 13) * C + 2 * C;
    wide bytes = count * tn_dtype_size(l->dtype) + HEADER * sizeof(int32_t);
    if (bytes != l->file.bytes) {
        return tn__fail(TN_EFORMAT, l->file.operation,
                        "%s has %zu bytes: not the size of a gpt with vocab %lld (padded to %lld), "
                        "context %lld, layers %lld, width %lld in %s",
                        l->file.path, l->file.bytes, (long long)s->vocab, (long long)s->padded,
                        (long long)s->context, (long long)s->layers, (long long)s->width,
                        tn_dtype_name(l->dtype));
    }
    return true;
}

static bool read_header(llmc_load *l) {
    int32_t h[HEADER] = {0};
    size_t bytes = l->file.bytes < sizeof(h) ? l->file.bytes : sizeof(h);
    if (!tn__reader_get(&l->file, 0, h, bytes)) { return false; }
    tn__kind kind = tn__kind_of(h, bytes, l->file.bytes);
    if (h[0] != MAGIC && bytes >= sizeof(h[0]) && kind.form != TN__FORM_BINARY) {
        return tn__fail(TN_EFORMAT, l->file.operation, "%s is not an llm.c checkpoint; it is %s",
                        l->file.path, kind.is);
    }
    if (bytes < sizeof(h)) {
        return tn__fail(TN_EFORMAT, l->file.operation, "%s has %zu bytes, but its header has %zu",
                        l->file.path, bytes, sizeof(h));
    }
    if (h[0] != MAGIC) { return header_bad(l, 0, h[0], "20240326: it is not an llm.c checkpoint"); }
    if (h[1] != VERSION_F32 && h[1] != VERSION_BF16) {
        return header_bad(l, 1, h[1], "the version, 3 (f32) or 5 (bf16)");
    }
    for (int i = 2; i < 8; i++) {
        if (h[i] < 1) { return header_bad(l, i, h[i], "at least 1"); }
    }
    if (h[7] < h[3]) { return header_bad(l, 7, h[7], "at least field 3, the vocabulary"); }
    if (h[6] % h[5] != 0) { return header_bad(l, 6, h[6], "a multiple of field 5, the heads"); }
    l->dtype = h[1] == VERSION_BF16 ? TN_BF16 : TN_F32;
    l->shape = (llmc_shape){h[2], h[3], h[4], h[5], h[6], h[7]};
    l->at = sizeof(h);
    return check_size(l);
}

/* Loads the file's next parameter. */
static bool load_parameter(const char *path, int64_t count, void *user) {
    TN_SCOPE;
    TN_NO_GRAD;
    llmc_load *l = user;
    size_t bytes = (size_t)count * tn_dtype_size(l->dtype);
    tn_tensor *t = tn_module_get(l->model, path);
    if (tn_storage_refill(t) != TN_OK) { return false; }
    bool direct = tn_dtype_of(t) == l->dtype && tn__same_device(tn_device_of(t), tn_cpu());
    tn_tensor *stage = direct ? t : tn_empty_on(tn_cpu(), tn_shape(t), l->dtype);
    if (tn_is_inert(stage) || !tn__reader_get(&l->file, l->at, tn__address(stage), bytes)) {
        return false;
    }
    tn__touch(stage);
    if (!direct) {
        tn_tensor *cast =
            tn__state_cast(stage, tn_dtype_of(t), l->file.path, path, "gpt_load_llmc");
        tn_copy_(tn_detach(t), tn_to(cast, tn_device_of(t)));
    }
    l->at += bytes;
    if (strcmp(path, "wte.weight") == 0) {
        l->at +=
            (size_t)((l->shape.padded - l->shape.vocab) * l->shape.width) * tn_dtype_size(l->dtype);
    }
    return !tn__pending();
}

static void build_deferred(llmc_load *l, tn_lm_load_options options) {
    TN_DEFER_INIT;
    tn_gpt_options o = tn_gpt_defaults();
    o.vocab = l->shape.vocab;
    o.context = l->shape.context;
    o.layers = (int)l->shape.layers;
    o.heads = (int)l->shape.heads;
    o.width = l->shape.width;
    o.dtype = options.as_stored ? l->dtype : options.dtype;
    tn_gpt_init(l->model, o);
}

tn_status tn_gpt_load_llmc(tn_gpt *m, const char *path, tn_lm_load_options options) {
    llmc_load l = {.model = m};
    if (!m) { return tn__raise(TN_EVALUE, "gpt_load_llmc", "the model is NULL"); }
    memset(m, 0, sizeof(*m));
    if (tn__pending() || !tn__options_made(options.from_defaults, "gpt_load_llmc", "tn_lm_load") ||
        !tn__reader_open(&l.file, path, "gpt_load_llmc")) {
        return tn_error();
    }
    if (read_header(&l)) {
        build_deferred(&l, options);
        if (tn__pending() || !each_parameter(&l.shape, load_parameter, &l)) { tn_module_finish(m); }
    }
    tn__reader_close(&l.file);
    return tn_error();
}

/* ---- Saving ---------------------------------------------------------------------------------- */

typedef struct llmc_save {
    tn__file file;
    tn_dtype dtype;
    llmc_shape shape;
    tn_gpt *model;
} llmc_save;

static void put_zeros(llmc_save *s, size_t bytes) {
    static const char zeros[4096];
    for (size_t n; bytes > 0; bytes -= n) {
        n = bytes < sizeof(zeros) ? bytes : sizeof(zeros);
        tn__file_put(&s->file, zeros, n);
    }
}

static bool save_parameter(const char *path, int64_t count, void *user) {
    TN_SCOPE;
    TN_NO_GRAD;
    llmc_save *s = user;
    size_t size = tn_dtype_size(s->dtype);
    if (!s->model->options.bias && tn__ends_with(path, ".bias")) {
        put_zeros(s, (size_t)count * size);
        return true;
    }
    tn_tensor *t = tn_to(tn_contiguous(tn_module_get(s->model, path)), tn_cpu());
    if (tn_is_inert(t)) { return false; }
    tn__file_put(&s->file, tn_data(t), (size_t)count * size);
    if (strcmp(path, "wte.weight") == 0) {
        put_zeros(s, (size_t)((s->shape.padded - s->shape.vocab) * s->shape.width) * size);
    }
    return !tn__pending();
}

static bool entry_fits(const tn_entry *entry, void *user) {
    const llmc_save *s = user;
    const char *operation = "gpt_save_llmc";
    tn_dtype dtype = tn_dtype_of(entry->stored);
    if (entry->absent || entry->parts ||
        !tn_dims_equal(tn_shape(entry->stored), entry->layout.whole)) {
        tn__raise(TN_EUNSUPPORTED, operation, "\"%s\" is sharded", entry->path);
    } else if ((dtype != TN_F32 && dtype != TN_BF16) || dtype != s->dtype) {
        tn__raise(TN_EUNSUPPORTED, operation,
                  "\"%s\" is %s, but llm.c stores a whole model in f32 or in bf16", entry->path,
                  tn_dtype_name(dtype));
    }
    return !tn__pending();
}

static bool eps_fits(tn_module *m, const char *path, void *user) {
    if (strcmp(m->kind, "layer_norm") == 0 && ((tn_layer_norm *)m)->eps != 1e-5) {
        tn__raise(TN_EUNSUPPORTED, "gpt_save_llmc", "%s has eps %g, but llm.c only has 1e-5", path,
                  ((tn_layer_norm *)m)->eps);
    }
    return !tn__pending();
}

/* Whether llm.c can store the model. */
static bool model_fits(llmc_save *s) {
    tn_gpt *m = s->model;
    const tn__lm_family *family = tn__lm_family_of(m, "gpt_save_llmc");
    if (!family) { return false; }
    if (family != &tn__gpt_family) {
        tn__raise(TN_EVALUE, "gpt_save_llmc", "the module is a %s but must be a gpt", family->kind);
    } else if (m->options.activation != TN_ACT_GELU_TANH) {
        tn__raise(TN_EUNSUPPORTED, "gpt_save_llmc",
                  "the activation is not gelu_tanh, the only one that llm.c supports");
    } else {
        s->dtype = tn_dtype_of(tn_module_get(m, "wte.weight"));
        tn_module_each_module(m, eps_fits, NULL);
        tn_module_each(m, (tn_walk){.buffers = true, .absent = true}, entry_fits, s);
    }
    return !tn__pending();
}

static void put_header(llmc_save *s) {
    const tn_gpt_options *o = &s->model->options;
    int64_t padded = (o->vocab + PADDED_TO - 1) / PADDED_TO * PADDED_TO;
    s->shape = (llmc_shape){o->context, o->vocab, o->layers, o->heads, o->width, padded};
    int32_t h[HEADER] = {MAGIC,
                         s->dtype == TN_BF16 ? VERSION_BF16 : VERSION_F32,
                         (int32_t)o->context,
                         (int32_t)o->vocab,
                         o->layers,
                         o->heads,
                         (int32_t)o->width,
                         (int32_t)padded};
    tn__file_put(&s->file, h, sizeof(h));
}

tn_status tn_gpt_save_llmc(tn_gpt *m, const char *path) {
    llmc_save s = {.model = m};
    if (!model_fits(&s) || !tn__file_begin(&s.file, path, "gpt_save_llmc")) { return tn_error(); }
    put_header(&s);
    tn__quiet(1); /* an error handler may exit: not before the temporary file is gone */
    bool done = each_parameter(&s.shape, save_parameter, &s);
    tn__quiet(-1);
    if (done) { return tn__file_commit(&s.file); }
    tn__file_abandon(&s.file);
    tn_error_record why;
    tn_error_take(&why);
    tn_error_give(&why);
    return tn_error();
}
