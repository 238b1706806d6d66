/* Whole weights in one file (tn_dist_export), or in a folder. All ranks learn what each has. Then
 * rank 0 writes parameter after parameter: it asks for each when its turn in the file comes, and
 * the ranks that have pieces send them. At the end, even after a failure, it asks for nothing. */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/agree.h"
#include "distributed/group/values.h"
#include "distributed/parallel/save/manifest.h"
#include "io/module.h"
#include "models/weights/hf.h"
#include "nn/layout.h"
#include "tensor/tensor.h"
#include "tern/parallel.h"
#include "tern/sys/tensor.h"

#include <string.h>

typedef struct exporter {
    tn_group *world;
    const char *operation;
    const tn_lm_save_options *folder; /* for a folder; NULL: a file */
    int rank;
    tn__state state;
    tn__manifest manifest; /* what every rank has; the same on every rank */
} exporter;

/* ---- Who has what ---------------------------------------------------------------------------- */

/* After tn__agree_begin. Returns when all ranks know what each has, and none refuses. */
static tn_status prepare_export(exporter *e, void *module) {
    tn__buffer list = {.operation = e->operation};
    e->state = (tn__state){.operation = e->operation, .parts = true};
    e->manifest = (tn__manifest){.operation = e->operation, .ranks = tn_group_size(e->world)};
    if (tn__state_add_module(&e->state, module, "")) { tn__manifest_put(&list, &e->state, false); }
    tn_status status = tn__agree(e->world, NULL, e->operation);
    if (status == TN_OK) {
        tn__agree_begin(e->world, e->operation);
        tn__manifest_gather(&e->manifest, e->world, &list);
        status = tn__agree(e->world, NULL, e->operation);
    }
    tn__buffer_free(&list);
    return status;
}

/* ---- One parameter --------------------------------------------------------------------------- */

/* t's bytes; t itself stays. */
static tn_tensor *bytes_of(const tn_tensor *t) {
    int64_t bytes = tn_count(t) * (int64_t)tn_dtype_size(tn_dtype_of(t));
    return tn_from_memory(tn__address(t), TN_DIMS(bytes), TN_U8, NULL, NULL);
}

static void place_piece(const tn__manifest_entry *h, const tn_tensor *piece, tn_tensor *whole) {
    tn_layout all = tn__layout_whole(h->layout.whole);
    size_t size = tn_dtype_size(h->dtype);
    const char *from = tn_data(piece);
    char *to = tn_data_mut(whole);
    for (tn__common c = {0}; tn__layouts_next(&h->layout, &all, &c);) {
        memcpy(to + (size_t)c.b * size, from + (size_t)c.a * size, (size_t)c.length * size);
    }
}

/* Every rank: the pieces of one tensor are sent to rank 0, into `whole`, which the others lack.
 * False after raising. */
static bool move_pieces(const exporter *e, int first, tn_tensor *whole) {
    int n = tn__manifest_named(&e->manifest, first);
    for (int i = first; i < first + n && !tn__pending(); i++) {
        const tn__manifest_entry *h = e->manifest.sorted[i];
        bool mine = h->rank == e->rank;
        if (!h->writes || !(mine || e->rank == 0)) { continue; }
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *piece = mine ? tn_to(tn_contiguous(e->state.items[h->item].tensor), tn_cpu())
                                : tn_empty_on(tn_cpu(), TN_DIMS(h->layout.length), h->dtype);
        if (h->rank != 0 && !tn_is_inert(piece)) {
            tn_work_wait(mine ? tn_send(e->world, bytes_of(piece), 0)
                              : tn_recv(e->world, bytes_of(piece), h->rank),
                         0);
        }
        if (e->rank == 0 && !tn__pending()) { place_piece(h, piece, whole); }
    }
    return !tn__pending();
}

/* ---- Rank 0 asks, the others answer ---------------------------------------------------------- */

enum { NOTHING_MORE = -1 };

/* The index in manifest->sorted that rank 0 asks for; NOTHING_MORE also after raising. */
static int64_t ask_for(const exporter *e, int64_t first) {
    bool asked = tn__broadcast_values(e->world, &first, 1, TN_I64, 0) == TN_OK;
    return asked ? first : NOTHING_MORE;
}

/* Rank 0: the whole of a parameter, when its turn in the file comes. */
static tn_tensor *make_whole(const char *name, void *user) {
    const exporter *e = user;
    int first = tn__manifest_find(&e->manifest, name);
    const tn__manifest_entry *h = e->manifest.sorted[first];
    tn_tensor *whole = tn_empty_on(tn_cpu(), h->layout.whole, h->dtype);
    if (tn_is_inert(whole) || ask_for(e, first) == NOTHING_MORE) { return tn_inert(); }
    if (!move_pieces(e, first, whole)) {
        tn_group_abort(e->world, tn_error_message()); /* other ranks wait to send */
        return tn_inert();
    }
    return whole;
}

static void write_file(exporter *e, void *module, const char *path) {
    const tn__manifest *m = &e->manifest;
    tn_safetensors_writer *w = tn__module_writer(module, e->operation);
    for (int i = 0; w && i < m->count; i += tn__manifest_named(m, i)) {
        const tn__manifest_entry *h = m->sorted[i];
        tn__safetensors_writer_add_late(w, h->name, h->layout.whole, h->dtype, make_whole, e);
    }
    tn__safetensors_write(w, path, false, e->operation);
}

static void write_folder(exporter *e, void *module, const char *path) {
    const tn__lm_family *family = tn__lm_family_of(module, e->operation);
    if (family) { tn__hf_save(family, module, path, *e->folder, make_whole, e, e->operation); }
}

/* folder: how to write a folder; NULL: write a file. */
static tn_status export_model(tn_group *world, void *m, const char *path,
                              const tn_lm_save_options *folder, const char *operation) {
    if (!tn__agree_begin(world, operation)) { return tn_error(); }
    exporter e = {
        .world = world, .rank = tn_group_rank(world), .folder = folder, .operation = operation};
    tn_status status = prepare_export(&e, m);
    if (status == TN_OK) {
        tn__agree_begin(world, operation);
        if (e.rank == 0) {
            tn_error_record why = {.status = TN_OK};
            (folder ? write_folder : write_file)(&e, m, path);
            tn_error_take(&why);
            ask_for(&e, NOTHING_MORE);
            if (why.status != TN_OK) {
                tn_error_clear();
                tn_error_give(&why);
            }
        } else {
            for (int64_t first; (first = ask_for(&e, NOTHING_MORE)) != NOTHING_MORE;) {
                move_pieces(&e, (int)first, NULL);
            }
        }
        status = tn__agree(world, NULL, operation);
    }
    tn__manifest_free(&e.manifest);
    tn__state_free(&e.state);
    return status;
}

tn_status tn_dist_export(tn_group *world, void *m, const char *path) {
    return export_model(world, m, path, NULL, "dist_export");
}

tn_status tn_dist_save_lm(tn_group *world, void *m, const char *folder,
                          tn_lm_save_options options) {
    if (!tn__options_made(options.from_defaults, "dist_save_lm", "tn_lm_save")) {
        return tn_error();
    }
    return export_model(world, m, folder, &options, "dist_save_lm");
}

/* ---- Back ------------------------------------------------------------------------------------ */

tn_status tn_dist_load_lm(tn_group *world, void *m, const char *folder) {
    static const char operation[] = "dist_load_lm";
    if (!tn__agree_begin(world, operation)) { return tn_error(); }
    tn__hf_loading *l = tn__hf_loading_new(m, folder, operation);
    tn_status status = tn__agree(world, NULL, operation);
    if (status == TN_OK) { tn__hf_loading_apply(l); }
    tn__hf_loading_free(l);
    return status;
}
