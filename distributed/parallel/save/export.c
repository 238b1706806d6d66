/* Whole weights in one file (tn_dist_export). Every rank tells what it has. Then rank 0 writes one
 * parameter after the other: it asks for each when its place in the file has come, and those who
 * have pieces of it send them. What it asks for at the end is nothing, whether the file is whole or
 * has failed. */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/save/agree.h"
#include "distributed/parallel/save/holdings.h"
#include "nn/layout.h"
#include "io/module.h"
#include "models/weights/hf.h"
#include "tensor/tensor.h"
#include "tern/sys/tensor.h"

#include <stdio.h>
#include <string.h>

typedef struct exporter {
    tn_group *world;
    const char *operation;
    const tn_lm_save_options *folder; /* how one is written; NULL: a file is */
    int rank, ranks;
    tn__state state;
    tn__holdings *holdings; /* of every rank, the same on every rank */
} exporter;

/* ---- Who has what ---------------------------------------------------------------------------- */

static bool read_list(exporter *e, int rank, const char *text, size_t bytes) {
    tn__json_file json;
    if (!tn__json_read(&json, text, bytes)) {
        tn__raise(json.wrong ? TN_EFORMAT : TN_ENOMEM, e->operation, "what rank %d has: %s", rank,
                  json.wrong ? json.wrong : "no memory");
        return false;
    }
    return tn__holdings_set(e->holdings, rank, &json, json.values, e->operation);
}

/* What this rank has, to *list. */
static void tell_list(exporter *e, void *module, tn__json_text *list) {
    e->state = (tn__state){.operation = e->operation, .parts = true};
    e->holdings = tn__holdings_new(e->ranks, e->operation);
    if (e->holdings && tn__state_add_module(&e->state, module, "")) {
        tn__holdings_put(list, &e->state, false);
    }
    if (list->failed) {
        tn__raise(TN_ENOMEM, e->operation, "no memory for the names of %d tensors", e->state.count);
    }
}

static tn_status hear_lists(exporter *e, const tn__json_text *list) {
    void **all = tn__calloc((size_t)e->ranks, sizeof(*all));
    size_t *bytes = tn__calloc((size_t)e->ranks, sizeof(*bytes));
    if (!all || !bytes) {
        tn__raise(TN_ENOMEM, e->operation, "no memory for %d lists", e->ranks);
    } else if (tn_all_gather_bytes(e->world, list->at, list->bytes, all, bytes) == TN_OK) {
        bool read = true;
        for (int r = 0; r < e->ranks; r++) {
            read = read && read_list(e, r, all[r], bytes[r]);
            tn_bytes_free(all[r]);
        }
        if (read) {
            tn__holdings_deal(e->holdings, e->operation);
        }
    }
    free(all);
    free(bytes);
    return tn_error();
}

/* Until all ranks know what all have, and none refuses. */
static tn_status prepare_export(exporter *e, void *module) {
    tn__json_text list = {0};
    tn__account_begin();
    tell_list(e, module, &list);
    tn__account mine = tn__account_end();
    tn_status status = tn__accounts_agree(e->world, &mine, e->operation);
    if (status == TN_OK) {
        status = hear_lists(e, &list);
    }
    free(list.at);
    return status;
}

/* ---- One parameter --------------------------------------------------------------------------- */

/* Bytes as they lie in t, which stays. */
static tn_tensor *bytes_of(const tn_tensor *t) {
    int64_t bytes = tn_count(t) * (int64_t)tn_dtype_size(tn_dtype_of(t));
    return tn_from_memory(tn__address(t), TN_DIMS(bytes), TN_U8, NULL, NULL);
}

/* What this rank has of a piece, on the CPU. */
static tn_tensor *own_piece(const exporter *e, const tn__holding *h) {
    int item = (int)(h - e->holdings->lists[h->rank].at);
    return tn_to(tn_contiguous(e->state.items[item].tensor), tn_cpu());
}

static void send_pieces(const exporter *e, int first) {
    int n = tn__holdings_named(e->holdings, first);
    for (int i = first; i < first + n; i++) {
        const tn__holding *h = e->holdings->sorted[i];
        if (h->writes && h->rank == e->rank) {
            TN_SCOPE;
            TN_NO_GRAD;
            tn_tensor *piece = own_piece(e, h);
            tn_work_wait(tn_send(e->world, bytes_of(piece), 0), 0);
        }
    }
}

/* Rank 0: a piece from whoever has it; inert after raising. */
static tn_tensor *get_piece(const exporter *e, const tn__holding *h) {
    if (h->rank == 0) {
        return own_piece(e, h);
    }
    tn_tensor *piece = tn_empty_on(tn_cpu(), TN_DIMS(h->layout.length), h->dtype);
    if (tn_is_inert(piece) ||
        tn_work_wait(tn_recv(e->world, bytes_of(piece), h->rank), 0) != TN_OK) {
        return tn_inert();
    }
    return piece;
}

static void place_piece(const tn__holding *h, const tn_tensor *piece, tn_tensor *whole) {
    tn_layout all = tn__layout_whole(h->layout.whole);
    size_t size = tn_dtype_size(h->dtype);
    const char *from = tn_data(piece);
    char *to = tn_data_mut(whole);
    for (tn__common c = {0}; tn__layouts_next(&h->layout, &all, &c);) {
        memcpy(to + (size_t)c.b * size, from + (size_t)c.a * size, (size_t)c.length * size);
    }
}

/* ---- Rank 0 asks, the others answer ---------------------------------------------------------- */

enum { NOTHING_MORE = -1 };

/* The number in holdings->sorted that rank 0 says; NOTHING_MORE too after raising. */
static int64_t ask_for(const exporter *e, int64_t first) {
    TN_SCOPE;
    TN__ON_CPU;
    tn_tensor *number = tn_from_data(&first, TN_DIMS(1), TN_I64);
    if (tn_work_wait(tn_broadcast(e->world, number, 0), 0) != TN_OK) {
        return NOTHING_MORE;
    }
    return *(const int64_t *)tn_data(number);
}

static void answer_all(const exporter *e) {
    for (int64_t first; (first = ask_for(e, NOTHING_MORE)) != NOTHING_MORE;) {
        send_pieces(e, (int)first);
    }
}

/* One name of the file. */
typedef struct wanted {
    const exporter *exporter;
    int first; /* in holdings->sorted */
} wanted;

/* Called when its place in the file has come. */
static tn_tensor *make_whole(const char *name, void *user) {
    const wanted *w = user;
    const exporter *e = w->exporter;
    tn__holding *const *at = e->holdings->sorted + w->first;
    tn_tensor *whole = tn_empty_on(tn_cpu(), at[0]->layout.whole, at[0]->dtype);
    if (tn_is_inert(whole) || ask_for(e, w->first) == NOTHING_MORE) {
        return tn_inert();
    }
    int n = tn__holdings_named(e->holdings, w->first);
    for (int i = 0; i < n; i++) {
        if (at[i]->writes) {
            TN_SCOPE;
            tn_tensor *piece = get_piece(e, at[i]);
            if (tn_is_inert(piece)) {
                tn_group_abort(e->world, tn_error_message()); /* others wait to be heard */
                return tn_inert();
            }
            place_piece(at[i], piece, whole);
        }
    }
    return whole;
}

/* The file without its bytes; list[names] is what make_whole gets. */
static tn_safetensors_writer *plan_file(const exporter *e, void *module, wanted *list) {
    tn_safetensors_writer *w = tn__module_writer(module, e->operation);
    bool added = w != NULL;
    for (int i = 0, name = 0; added && i < e->holdings->count;
         i += tn__holdings_named(e->holdings, i), name++) {
        const tn__holding *h = e->holdings->sorted[i];
        list[name] = (wanted){e, i};
        added = tn__safetensors_writer_add_late(w, h->name, h->layout.whole, h->dtype, make_whole,
                                                &list[name]) == TN_OK;
    }
    if (w && !added) {
        tn_safetensors_writer_free(w);
        return NULL;
    }
    return w;
}

static void write_file(const exporter *e, void *module, const char *path) {
    wanted *list = tn__calloc((size_t)e->holdings->count, sizeof(*list));
    if (!list) {
        tn__raise(TN_ENOMEM, e->operation, "no memory for %d names", e->holdings->count);
    }
    tn_safetensors_writer *w = list ? plan_file(e, module, list) : NULL;
    if (w) {
        tn_status status = tn__safetensors_write(w, path, e->operation);
        (void)status; /* pending */
    }
    free(list);
}

/* ---- As a folder of Hugging Face ------------------------------------------------------------- */

/* The whole of a parameter that rank 0 has a part of. */
static tn_tensor *whole_of(const char *path, void *user) {
    const exporter *e = user;
    int i = 0;
    while (i < e->holdings->count && strcmp(e->holdings->sorted[i]->name, path) != 0) {
        i += tn__holdings_named(e->holdings, i);
    }
    return make_whole(path, &(wanted){e, i});
}

static void write_folder(const exporter *e, void *module, const char *path) {
    const tn__lm_family *family = tn__lm_family_of(module, e->operation);
    if (family) {
        tn_status status = tn__hf_save(family, module, path, *e->folder, whole_of,
                                       (void *)(uintptr_t)e, e->operation);
        (void)status; /* pending */
    }
}

/* ---- Either ---------------------------------------------------------------------------------- */

/* Rank 0, until nobody waits for a question any more. */
static void write_all(const exporter *e, void *module, const char *path) {
    tn_error_record why;
    if (e->folder) {
        write_folder(e, module, path);
    } else {
        write_file(e, module, path);
    }
    bool failed = tn_error_take(&why);
    ask_for(e, NOTHING_MORE);
    if (failed) {
        tn_error_clear();
        tn_error_give(&why);
    }
}

/* folder: how a folder is written; NULL: a file is. */
static tn_status export_model(tn_group *world, void *m, const char *path,
                              const tn_lm_save_options *folder, const char *operation) {
    if (!tn__account_may_begin(world, operation)) {
        return tn_error();
    }
    exporter e = {.world = world,
                  .rank = tn_group_rank(world),
                  .ranks = tn_group_size(world),
                  .folder = folder,
                  .operation = operation};
    tn_status status = prepare_export(&e, m);
    if (status == TN_OK) {
        tn__account_begin();
        if (e.rank == 0) {
            write_all(&e, m, path);
        } else {
            answer_all(&e);
        }
        tn__account mine = tn__account_end();
        status = tn__accounts_agree(world, &mine, operation);
    }
    tn__holdings_free(e.holdings);
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
    if (!tn__account_may_begin(world, operation)) {
        return tn_error();
    }
    tn__account_begin();
    tn__hf_loading *l = tn__hf_loading_new(m, folder, operation);
    tn__account mine = tn__account_end();
    tn_status status = tn__accounts_agree(world, &mine, operation);
    if (status == TN_OK) {
        tn__hf_loading_apply(l);
    }
    tn__hf_loading_free(l);
    return status;
}
