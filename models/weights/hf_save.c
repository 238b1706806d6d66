/* A model as a Hugging Face folder (hf.h).
 *
 *     config.json.tmp     begun first: only its holder saves here
 *     weights.tmp/        all of the new model and its tokenizer, while they are written
 *
 * A failure until all is there leaves the folder as it was; hf_place.c then renames the files.
 * Other files of the folder are not touched.
 */
#include "core/buffer.h"
#include "models/weights/hf.h"

#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/memory.h"
#include "io/module.h"
#include "nn/module.h"
#include "text/plain_numbers.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_SIZE = 512, FILE_NAME_SIZE = 64, PARTS_MOST = 99999 };

/* One tensor of the files. */
typedef struct kept_tensor {
    char *name, *path; /* in the files, and of the parameter; NULL: zeros */
    tn_dims dims;      /* in the files */
    tn_dtype dtype;
    bool transposed, buffer;
    int part;
    const struct saver *saver;
} kept_tensor;

typedef struct saver {
    const tn__lm_family *family;
    void *model;
    const char *folder, *operation;
    tn_lm_save_options options;
    tn__hf_source *source; /* NULL: all is here */
    void *user;
    char *staging;     /* where weights are written */
    kept_tensor *list; /* [count] */
    int count, parts;
    int64_t capacity;
    int64_t bytes; /* of all */
} saver;

/* ---- What there is to write ------------------------------------------------------------------ */

static size_t bytes_of(const kept_tensor *t) {
    return (size_t)tn_dims_count(t->dims) * tn_dtype_size(t->dtype);
}

/* Adds *t under the name that `path` has in the files; with_path: it is a parameter. */
static bool add_saved(saver *s, const char *path, bool with_path, const kept_tensor *t) {
    bool bare = s->options.plain || strncmp(path, "lm_head.", 8) == 0;
    if (!tn__grow(&s->list, s->count + 1, &s->capacity, sizeof(*s->list), s->operation)) {
        return false;
    }
    char *name = tn__asprintf(s->operation, "%s%s", bare ? "" : s->family->hf->prefix, path);
    char *copy = name && with_path ? tn__strdup_for(path, s->operation) : NULL;
    if (tn__pending()) {
        free(name);
        free(copy);
        return false;
    }
    s->list[s->count] = *t;
    s->list[s->count].name = name;
    s->list[s->count].path = copy;
    s->list[s->count++].saver = s;
    s->bytes += (int64_t)bytes_of(t);
    return true;
}

/* Zeros, for a weight whose bias m lacks but files have. */
static bool add_bias(saver *s, const tn_entry *weight) {
    char path[NAME_SIZE];
    int stem = (int)(strlen(weight->path) - strlen("weight"));
    snprintf(path, sizeof(path), "%.*sbias", stem, weight->path);
    kept_tensor t = {.dims = TN_DIMS(weight->layout.whole.size[0]),
                     .dtype = tn_dtype_of(weight->stored)};
    return tn__module_find(s->model, path) || add_saved(s, path, false, &t);
}

static bool add_entry(const tn_entry *entry, void *user) {
    saver *s = user;
    const tn__hf_form *form = s->family->hf;
    bool whole = !entry->absent && !entry->parts &&
                 tn_dims_equal(tn_shape(entry->stored), entry->layout.whole);
    kept_tensor t = {
        .dims = entry->layout.whole, .dtype = tn_dtype_of(entry->stored), .buffer = entry->buffer};
    if (!s->source && !whole) {
        return tn__fail(
            TN_EUNSUPPORTED, s->operation,
            "\"%s\" is sharded: this rank has %lld of its elements (tn_dist_save_lm writes "
            "what all ranks have)",
            entry->path, (long long)(entry->absent ? 0 : entry->layout.length));
    }
    if (!s->options.plain && !tn_dtype_is_float(t.dtype)) {
        return tn__fail(
            TN_EUNSUPPORTED, s->operation,
            "\"%s\" is %s, which Hugging Face's files of such a model do not have (options.plain "
            "writes it)",
            entry->path, tn_dtype_name(t.dtype));
    }
    t.transposed = !s->options.plain && form->transposed && form->transposed(entry->path);
    if (t.transposed) { t.dims = TN_DIMS(t.dims.size[1], t.dims.size[0]); }
    bool biased = !s->options.plain && form->biased && form->biased(entry->path);
    return add_saved(s, entry->path, true, &t) && (!biased || add_bias(s, entry));
}

/* Assigns parts, numbered from 0, none larger than asked for unless it is a single tensor. */
static bool deal_parts(saver *s) {
    size_t in_part = 0, most = (size_t)s->options.max_part_bytes;
    if (s->options.max_part_bytes < 1) {
        return tn__fail(TN_EVALUE, s->operation, "max_part_bytes is %lld (at least 1)",
                        (long long)s->options.max_part_bytes);
    }
    s->parts = 1;
    for (int i = 0; i < s->count; i++) {
        size_t bytes = bytes_of(&s->list[i]);
        if (!s->options.plain && in_part && bytes > most - (in_part < most ? in_part : most)) {
            s->parts++;
            in_part = 0;
        }
        in_part += bytes;
        s->list[i].part = s->parts - 1;
    }
    if (s->parts > PARTS_MOST) {
        return tn__fail(TN_EVALUE, s->operation,
                        "max_part_bytes of %lld makes %d parts (at most %d)",
                        (long long)s->options.max_part_bytes, s->parts, PARTS_MOST);
    }
    return true;
}

static bool list_all(saver *s) {
    tn_module_each(s->model, (tn_walk){.buffers = true, .absent = true}, add_entry, s);
    return !tn__pending() && deal_parts(s);
}

/* ---- Weights --------------------------------------------------------------------------------- */

static void file_name(const saver *s, int part, char *name) {
    if (s->options.plain) {
        snprintf(name, FILE_NAME_SIZE, "%s", TN__HF_PLAIN);
    } else if (s->parts == 1) {
        snprintf(name, FILE_NAME_SIZE, "%s", TN__HF_FILE);
    } else {
        snprintf(name, FILE_NAME_SIZE, "model-%05d-of-%05d.safetensors", part + 1, s->parts);
    }
}

/* Called when its turn in the file comes. */
static tn_tensor *make_saved(const char *name, void *user) {
    const kept_tensor *t = user;
    const saver *s = t->saver;
    if (!t->path) { return tn_zeros(t->dims, t->dtype); }
    tn_tensor *whole = s->source ? s->source(t->path, s->user) : tn_module_get(s->model, t->path);
    return t->transposed ? tn_transpose(whole, 0, 1) : whole;
}

static bool write_part(saver *s, int part) {
    char name[FILE_NAME_SIZE];
    file_name(s, part, name);
    char *path = tn__folder_path(s->staging, name, s->operation);
    tn_safetensors_writer *w = !path              ? NULL
                               : s->options.plain ? tn__module_writer(s->model, s->operation)
                                                  : tn_safetensors_writer_new();
    if (w && !s->options.plain) { tn_safetensors_writer_add_metadata(w, "format", "pt"); }
    for (int i = 0; w && i < s->count; i++) {
        kept_tensor *t = &s->list[i];
        if (t->part == part) {
            tn__safetensors_writer_add_late(w, t->name, t->dims, t->dtype, make_saved, t);
        }
    }
    tn_status status = tn__safetensors_write(w, path, false, s->operation);
    free(path);
    return status == TN_OK;
}

static bool write_index(const saver *s) {
    tn__buffer j = {.operation = s->operation};
    char name[FILE_NAME_SIZE];
    tn__buffer_format(&j, "{\n  \"metadata\": {\n    \"total_size\": %" PRId64 "\n  },\n",
                      s->bytes);
    tn__buffer_text(&j, "  \"weight_map\": {\n");
    for (int i = 0; i < s->count; i++) {
        file_name(s, s->list[i].part, name);
        tn__buffer_text(&j, "    ");
        tn__json_put_string(&j, s->list[i].name);
        tn__buffer_format(&j, ": \"%s\"%s\n", name, i + 1 < s->count ? "," : "");
    }
    tn__buffer_text(&j, "  }\n}\n");
    bool written = tn__file_write(&j, s->staging, TN__HF_INDEX, s->operation);
    tn__buffer_free(&j);
    return written;
}

static bool write_weights(saver *s) {
    bool written = true;
    for (int part = 0; written && part < s->parts; part++) {
        written = write_part(s, part);
    }
    return written && (s->parts == 1 || write_index(s));
}

/* ---- config.json ----------------------------------------------------------------------------- */

/* PyTorch's name for the dtype of the first parameter that is not quantised: what the model
 * computes in. */
static const char *dtype_name(const saver *s) {
    int i = 0;
    while (i < s->count && (s->list[i].buffer || !tn_dtype_is_float(s->list[i].dtype))) {
        i++;
    }
    tn_dtype dtype = i < s->count ? s->list[i].dtype : TN_F32;
    return dtype == TN_BF16  ? "bfloat16"
           : dtype == TN_F16 ? "float16"
           : dtype == TN_F64 ? "float64"
                             : "float32";
}

/* null, a token, or a list of them. */
static void put_tokens(tn__buffer *j, const char *key, const int32_t *tokens, int count) {
    tn__buffer_format(j, "  \"%s\": %s", key, count == 0 ? "null" : count > 1 ? "[" : "");
    for (int i = 0; i < count; i++) {
        tn__buffer_format(j, "%s%d", i ? ", " : "", (int)tokens[i]);
    }
    tn__buffer_format(j, "%s,\n", count > 1 ? "]" : "");
}

static bool make_config(const saver *s, tn__buffer *j) {
    tn_lm_specials tokens;
    const char *told = s->options.tokenizer ? s->options.tokenizer : s->folder;
    if (!tn__lm_specials_to_save(s->model, told, &tokens)) { return false; }
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    tn__buffer_text(j, "{\n");
    bool made = s->family->hf->put_config(j, s->model, s->options.plain, s->operation);
    put_tokens(j, "bos_token_id", &tokens.begin, tokens.begin >= 0);
    put_tokens(j, "eos_token_id", tokens.ends, tokens.end_count);
    tn__buffer_format(j, "  \"dtype\": \"%s\",\n  \"torch_dtype\": \"%s\",\n", dtype_name(s),
                      dtype_name(s));
    tn__buffer_format(j, "  \"model_type\": \"%s\"\n}\n", s->family->model_type);
    tn__plain_numbers_end(numbers);
    return made && !j->failed;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static bool check_words(const saver *s) {
    const char *folder = s->options.tokenizer;
    return !folder || tn__folder_has(folder, ".") ||
           tn__fail(TN_EIO, s->operation, "%s: %s (options.tokenizer is a folder)", folder,
                    strerror(errno));
}

static bool copy_words(const saver *s) {
    const char *from = s->options.tokenizer;
    return !from || strcmp(from, s->folder) == 0 ||
           tn__hf_copy_words(from, s->staging, s->operation);
}

/* With config.json.tmp held. */
static void save_rest(saver *s) {
    tn__buffer j = {.operation = s->operation};
    if (tn__hf_finish(s->folder, s->operation) && make_config(s, &j) &&
        tn__folder_remove(s->staging, s->operation) && tn__folder_make(s->staging, s->operation) &&
        copy_words(s) && write_weights(s) &&
        tn__file_write(&j, s->staging, "config.json", s->operation)) {
        tn__hf_place(s->folder, s->operation);
    }
    tn__buffer_free(&j);
}

static void saver_free(saver *s) {
    for (int i = 0; i < s->count; i++) {
        free(s->list[i].name);
        free(s->list[i].path);
    }
    free(s->list);
    free(s->staging);
}

/* Errors reach a handler only when no temporary file is left, nor an empty folder that was not
 * there before. */
static void end_save(const saver *s, tn__file *held, bool made) {
    tn_error_record why = {.status = TN_OK};
    if (tn_error_take(&why) && held && !tn__hf_is_staged(s->folder)) {
        tn__folder_remove(s->staging, s->operation);
        tn_error_clear();
    }
    tn__quiet(-1);
    if (held) { tn__file_abandon(held); }
    if (made && why.status != TN_OK) { rmdir(s->folder); /* it stays if there is anything in it */ }
    tn_error_give(&why);
}

static void save_all(saver *s) {
    tn__file held;
    char *path = tn__folder_path(s->folder, "config.json", s->operation);
    s->staging = path ? tn__folder_path(s->folder, TN__HF_STAGING, s->operation) : NULL;
    bool made = path && !tn__folder_has(s->folder, ".");
    if (s->staging && list_all(s) && check_words(s) && tn__folder_make(s->folder, s->operation)) {
        tn__quiet(1);
        bool begun = tn__file_begin(&held, path, s->operation);
        if (begun) { save_rest(s); }
        end_save(s, begun ? &held : NULL, made);
    }
    free(path);
}

tn_status tn__hf_save(const tn__lm_family *family, void *m, const char *folder,
                      tn_lm_save_options options, tn__hf_source *source, void *user,
                      const char *operation) {
    TN_NO_GRAD;
    saver s = {.family = family,
               .model = m,
               .folder = folder,
               .operation = operation,
               .options = options,
               .source = source,
               .user = user};
    save_all(&s);
    saver_free(&s);
    return tn_error();
}
