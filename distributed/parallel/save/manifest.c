/* Who has what, and who writes it (manifest.h). */
#include "distributed/parallel/save/manifest.h"

#include "core/error.h"
#include "core/memory.h"
#include "nn/layout.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <string.h>

static void list_clear(tn__manifest_list *l) {
    free(l->text);
    free(l->at);
    *l = (tn__manifest_list){0};
}

void tn__manifest_free(tn__manifest *m) {
    for (int r = 0; m->lists && r < m->ranks; r++) {
        list_clear(&m->lists[r]);
    }
    free(m->lists);
    free(m->sorted);
}

/* ---- What ranks send ------------------------------------------------------------------------- */

/* Each item is one of these, then its name and a 0. */
typedef struct record {
    tn_layout layout;
    int64_t dtype, dealt;
} record;

void tn__manifest_put(tn__buffer *list, const tn__state *s, bool deal) {
    for (int i = 0; i < s->count; i++) {
        const tn__state_item *item = &s->items[i];
        const record r = {.layout = tn__layout_plain(&item->layout),
                          .dtype = tn_dtype_of(item->tensor),
                          .dealt = deal && !item->buffer};
        tn__buffer_add(list, &r, sizeof(r));
        tn__buffer_add(list, item->name, strlen(item->name) + 1);
    }
}

/* Reads the first record and name of `bytes`. Returns their size; 0: malformed. */
static size_t read_entry(const char *at, size_t bytes, tn__manifest_entry *e) {
    record r;
    size_t length = bytes > sizeof(r) ? strnlen(at + sizeof(r), bytes - sizeof(r)) : 0;
    if (bytes <= sizeof(r) + length) { return 0; }
    memcpy(&r, at, sizeof(r));
    e->name = at + sizeof(r);
    e->dtype = (tn_dtype)r.dtype;
    e->dealt = r.dealt != 0;
    e->layout = r.layout;
    bool sound = r.dtype >= 0 && r.dtype < TN_DTYPES && tn__layout_sound(&r.layout);
    return sound ? sizeof(r) + length + 1 : 0;
}

bool tn__manifest_set(tn__manifest *m, int rank, const void *list, size_t bytes) {
    if (!m->lists) { m->lists = tn__calloc_for((size_t)m->ranks, sizeof(*m->lists), m->operation); }
    if (!m->lists) { return false; }
    tn__manifest_list *l = &m->lists[rank];
    list_clear(l);
    size_t most = bytes / sizeof(record) + 1; /* a malformed one ends it */
    l->text = tn__malloc_for(bytes + 1, m->operation);
    l->at = tn__calloc_for(most, sizeof(*l->at), m->operation);
    if (!l->text || !l->at) { return false; }
    memcpy(l->text, bytes ? list : "", bytes);
    l->text[bytes] = 0;
    for (size_t at = 0, used; at < bytes; at += used) {
        tn__manifest_entry *e = &l->at[l->count];
        *e = (tn__manifest_entry){.rank = rank, .item = l->count};
        used = read_entry(l->text + at, bytes - at, e);
        if (!used) {
            return tn__fail(TN_EFORMAT, m->operation, "rank %d sent no list of tensors", rank);
        }
        l->count++;
    }
    return true;
}

/* ---- Who writes ------------------------------------------------------------------------------ */

static int compare_layouts(const tn_layout *a, const tn_layout *b) {
    const int64_t x[] = {a->dim, a->pieces, a->slices, a->slice, a->start, a->length};
    const int64_t y[] = {b->dim, b->pieces, b->slices, b->slice, b->start, b->length};
    int i = 0;
    while (i < 5 && x[i] == y[i]) {
        i++;
    }
    return x[i] < y[i] ? -1 : x[i] > y[i];
}

static int compare_entries(const void *a, const void *b) {
    const tn__manifest_entry *x = *(tn__manifest_entry *const *)a;
    const tn__manifest_entry *y = *(tn__manifest_entry *const *)b;
    int order = strcmp(x->name, y->name);
    order = order ? order : compare_layouts(&x->layout, &y->layout);
    return order ? order : x->rank - y->rank;
}

static bool sort_all(tn__manifest *m) {
    size_t count = 0;
    for (int r = 0; r < m->ranks; r++) {
        count += (size_t)m->lists[r].count;
    }
    free(m->sorted);
    m->count = 0;
    m->sorted = tn__calloc_for(count, sizeof(*m->sorted), m->operation);
    for (int r = 0; m->sorted && r < m->ranks; r++) {
        for (int i = 0; i < m->lists[r].count; i++) {
            m->sorted[m->count++] = &m->lists[r].at[i];
        }
    }
    if (m->count) { qsort(m->sorted, count, sizeof(*m->sorted), compare_entries); }
    return m->sorted != NULL;
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(tn__manifest_entry *const *)a)->name, (*(tn__manifest_entry *const *)b)->name);
}

int tn__manifest_find(const tn__manifest *m, const char *name) {
    const tn__manifest_entry key = {.name = name}, *wanted = &key;
    tn__manifest_entry **at =
        bsearch(&wanted, m->sorted, (size_t)m->count, sizeof(*at), compare_names);
    while (at && at > m->sorted && strcmp(at[-1]->name, name) == 0) {
        at--;
    }
    return at ? (int)(at - m->sorted) : m->count;
}

int tn__manifest_named(const tn__manifest *m, int first) {
    int n = 1;
    while (first + n < m->count &&
           strcmp(m->sorted[first + n]->name, m->sorted[first]->name) == 0) {
        n++;
    }
    return n;
}

/* Chooses the writer of one piece, which n ranks have; bytes[rank]: what they write so far. */
static void deal_piece(tn__manifest_entry *const *at, int n, int64_t *bytes) {
    tn__manifest_entry *writer = at[0];
    for (int i = 1; at[0]->dealt && i < n; i++) {
        writer = bytes[at[i]->rank] < bytes[writer->rank] ? at[i] : writer;
    }
    for (int i = 0; i < n; i++) {
        at[i]->writes = at[i] == writer && writer->layout.length > 0;
    }
    bytes[writer->rank] += writer->layout.length * (int64_t)tn_dtype_size(writer->dtype);
}

/* Deals all entries of one tensor, which all ranks must describe alike. */
static bool deal_tensor(const tn__manifest *m, int first, int n, int64_t *bytes) {
    tn__manifest_entry *const *at = m->sorted + first;
    const tn__manifest_entry *a = at[0];
    int64_t found = 0, whole = tn_dims_count(a->layout.whole);
    for (int i = 1; i < n; i++) {
        const tn__manifest_entry *b = at[i];
        if (a->dtype != b->dtype || !tn_dims_equal(a->layout.whole, b->layout.whole)) {
            return tn__fail(TN_EMISMATCH, m->operation,
                            "\"%.80s\" is %s %s on rank %d but %s %s on rank %d", a->name,
                            tn_dtype_name(a->dtype), tn__dims_text(a->layout.whole), a->rank,
                            tn_dtype_name(b->dtype), tn__dims_text(b->layout.whole), b->rank);
        }
    }
    for (int i = 0, same; i < n; i += same) {
        for (same = 1; i + same < n && compare_layouts(&at[i]->layout, &at[i + same]->layout) == 0;
             same++) {}
        deal_piece(at + i, same, bytes);
        found += at[i]->layout.length;
    }
    return found == whole ||
           tn__fail(TN_EMISMATCH, m->operation,
                    "\"%.80s\" has %" PRId64 " elements, but the ranks have pieces with %" PRId64,
                    a->name, whole, found);
}

static bool deal_all(tn__manifest *m) {
    int64_t *bytes = tn__calloc_for((size_t)m->ranks, sizeof(*bytes), m->operation);
    bool dealt = bytes && sort_all(m);
    for (int i = 0, n; dealt && i < m->count; i += n) {
        n = tn__manifest_named(m, i);
        dealt = deal_tensor(m, i, n, bytes);
    }
    free(bytes);
    return dealt;
}

/* ---- All ranks' ------------------------------------------------------------------------------ */

static bool set_written(tn__manifest *m, int rank, const void *written, size_t bytes) {
    tn__manifest_list *l = &m->lists[rank];
    if (bytes != sizeof(l->bytes) + (size_t)l->count * TN__DIGEST_DIGITS) {
        return tn__fail(TN_EFORMAT, m->operation, "rank %d sent no digests of what it wrote", rank);
    }
    const char *at = written;
    memcpy(&l->bytes, at, sizeof(l->bytes));
    at += sizeof(l->bytes);
    for (int i = 0; i < l->count; i++, at += TN__DIGEST_DIGITS) {
        memcpy(l->at[i].digest, at, TN__DIGEST_DIGITS);
    }
    return true;
}

/* Calls `set` with the bytes of each rank. False after raising. */
static bool gather_all(tn__manifest *m, tn_group *g, const tn__buffer *mine,
                       bool (*set)(tn__manifest *m, int rank, const void *data, size_t bytes)) {
    void **all = tn__calloc_for((size_t)m->ranks, sizeof(*all), m->operation);
    size_t *bytes = tn__calloc_for((size_t)m->ranks, sizeof(*bytes), m->operation);
    /* without memory it tells the others */
    bool sound = tn_all_gather_bytes(g, mine->at, mine->bytes, all, bytes) == TN_OK;
    for (int r = 0; all && r < m->ranks; r++) {
        sound = sound && set(m, r, all[r], bytes[r]);
        tn_bytes_free(all[r]);
    }
    free(all);
    free(bytes);
    return sound;
}

bool tn__manifest_gather(tn__manifest *m, tn_group *g, const tn__buffer *list) {
    return gather_all(m, g, list, tn__manifest_set) && deal_all(m);
}

bool tn__manifest_gather_written(tn__manifest *m, tn_group *g, const tn__buffer *written) {
    return gather_all(m, g, written, set_written);
}

/* ---- The index ------------------------------------------------------------------------------- */

void tn__manifest_index(const tn__manifest *m, tn__buffer *j) {
    tn__buffer_format(j, "{");
    for (int i = 0, n; i < m->count; i += n) {
        const tn__manifest_entry *first = m->sorted[i];
        const char *comma = "";
        n = tn__manifest_named(m, i);
        tn__buffer_format(j, "%s", i ? ",\n" : "\n");
        tn__json_put_string(j, first->name);
        tn__buffer_format(
            j, ":{\"dtype\":\"%s\",\"whole\":", tn__safetensors_dtype_name(first->dtype));
        tn__json_put_list(j, first->layout.whole.size, first->layout.whole.ndim);
        tn__buffer_format(j, ",\"pieces\":[");
        for (int k = i; k < i + n; k++) {
            const tn__manifest_entry *e = m->sorted[k];
            const tn_layout *l = &e->layout;
            if (e->writes) {
                tn__buffer_format(j, "%s{\"file\":%d,\"digest\":\"%s\",", comma, e->rank,
                                  e->digest);
                tn__buffer_format(j, "\"dim\":%d,\"pieces\":%d,\"slice\":%d,\"slices\":%d", l->dim,
                                  l->pieces, l->slice, l->slices);
                tn__buffer_format(j, ",\"start\":%" PRId64 ",\"length\":%" PRId64 "}", l->start,
                                  l->length);
                comma = ",";
            }
        }
        tn__buffer_format(j, "]}");
    }
    tn__buffer_format(j, "}");
}
