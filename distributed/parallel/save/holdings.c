/* Who has what, and who writes it (holdings.h). */
#include "distributed/parallel/save/holdings.h"

#include "core/error.h"
#include "core/memory.h"
#include "nn/layout.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

tn__holdings *tn__holdings_new(int ranks, const char *operation) {
    tn__holdings *h = tn__calloc(1, sizeof(*h));
    tn__holdings_list *lists = tn__calloc((size_t)ranks, sizeof(*lists));
    if (!h || !lists) {
        free(h);
        free(lists);
        tn__raise(TN_ENOMEM, operation, "no memory for what %d ranks have", ranks);
        return NULL;
    }
    h->ranks = ranks;
    h->lists = lists;
    return h;
}

static void list_clear(tn__holdings_list *l) {
    tn__json_free(&l->json);
    free(l->at);
    *l = (tn__holdings_list){0};
}

void tn__holdings_free(tn__holdings *h) {
    if (h) {
        for (int r = 0; r < h->ranks; r++) {
            list_clear(&h->lists[r]);
        }
        free(h->lists);
        free(h->sorted);
        free(h);
    }
}

/* ---- What ranks tell ------------------------------------------------------------------------- */

void tn__holdings_put(tn__json_text *j, const tn__state *s, bool deal) {
    tn__json_put(j, "{");
    for (int i = 0; i < s->count; i++) {
        const tn__state_item *item = &s->items[i];
        tn_layout plain = tn__layout_plain(&item->layout);
        tn__json_put(j, "%s", i ? "," : "");
        tn__json_put_string(j, item->name);
        tn__json_put(j, ":{\"dtype\":\"%s\",\"dealt\":%d,\"whole\":",
                     tn__safetensors_dtype_name(tn_dtype_of(item->tensor)), deal && !item->buffer);
        tn__json_put_list(j, plain.whole.size, plain.whole.ndim);
        tn__json_put(j, ",");
        tn__layout_put(j, &plain);
        tn__json_put(j, "}");
    }
    tn__json_put(j, "}");
}

static bool read_holding(const tn__json *value, tn__holding *h) {
    const char *dtype = tn__text_get(value, "dtype");
    int64_t dealt;
    tn_dims whole;
    h->name = value->key;
    if (!dtype || !tn__safetensors_find_dtype(dtype, &h->dtype) ||
        !tn__whole_get(value, "dealt", 0, 1, &dealt) ||
        !tn__dims_get(tn__json_get(value, "whole"), &whole) ||
        !tn__layout_get(value, &whole, &h->layout)) {
        return false;
    }
    h->dealt = dealt != 0;
    return true;
}

bool tn__holdings_set(tn__holdings *h, int rank, tn__json_file *json, const tn__json *tensors,
                      const char *operation) {
    tn__holdings_list *l = &h->lists[rank];
    list_clear(l);
    l->json = *json;
    *json = (tn__json_file){0};
    l->at = tn__calloc(tensors->count, sizeof(*l->at));
    if (!l->at) {
        tn__raise(TN_ENOMEM, operation, "no memory for the names of %u tensors", tensors->count);
        return false;
    }
    const tn__json *value = tn__json_first(tensors);
    for (uint32_t i = 0; i < tensors->count; i++, value = tn__json_next(value)) {
        l->at[i].rank = rank;
        if (!read_holding(value, &l->at[i])) {
            tn__raise(TN_EFORMAT, operation, "rank %d tells nonsense of \"%.80s\"", rank,
                      value->key);
            return false;
        }
        l->count++;
    }
    return true;
}

/* ---- Who writes ------------------------------------------------------------------------------ */

static int compare_i64(int64_t a, int64_t b) {
    return a < b ? -1 : a > b;
}

static int compare_layouts(const tn_layout *a, const tn_layout *b) {
    int order = compare_i64(a->dim, b->dim);
    order = order ? order : compare_i64(a->pieces, b->pieces);
    order = order ? order : compare_i64(a->slices, b->slices);
    order = order ? order : compare_i64(a->slice, b->slice);
    order = order ? order : compare_i64(a->start, b->start);
    return order ? order : compare_i64(a->length, b->length);
}

static int compare_holdings(const void *a, const void *b) {
    const tn__holding *x = *(const tn__holding *const *)a, *y = *(const tn__holding *const *)b;
    int order = strcmp(x->name, y->name);
    order = order ? order : compare_layouts(&x->layout, &y->layout);
    return order ? order : x->rank - y->rank;
}

static bool sort_all(tn__holdings *h, const char *operation) {
    int count = 0;
    for (int r = 0; r < h->ranks; r++) {
        count += h->lists[r].count;
    }
    free(h->sorted);
    h->count = 0;
    h->sorted = tn__calloc((size_t)count, sizeof(*h->sorted));
    if (!h->sorted) {
        tn__raise(TN_ENOMEM, operation, "no memory for a list of %d pieces", count);
        return false;
    }
    for (int r = 0; r < h->ranks; r++) {
        for (int i = 0; i < h->lists[r].count; i++) {
            h->sorted[h->count++] = &h->lists[r].at[i];
        }
    }
    if (count) {
        qsort(h->sorted, (size_t)count, sizeof(*h->sorted), compare_holdings);
    }
    return true;
}

int tn__holdings_named(const tn__holdings *h, int first) {
    int n = 1;
    while (first + n < h->count &&
           strcmp(h->sorted[first + n]->name, h->sorted[first]->name) == 0) {
        n++;
    }
    return n;
}

/* All ranks speak of the same tensor. */
static bool same_tensor(tn__holding *const *at, int n, const char *operation) {
    for (int i = 1; i < n; i++) {
        const tn__holding *a = at[0], *b = at[i];
        if (a->dtype != b->dtype || !tn_dims_equal(a->layout.whole, b->layout.whole)) {
            tn__raise(TN_EMISMATCH, operation, "\"%.80s\" is %s %s on rank %d but %s %s on rank %d",
                      a->name, tn_dtype_name(a->dtype), tn__dims_text(a->layout.whole), a->rank,
                      tn_dtype_name(b->dtype), tn__dims_text(b->layout.whole), b->rank);
            return false;
        }
    }
    return true;
}

/* The writer of one piece, which n ranks have; *bytes[rank]: what they write so far. */
static void deal_piece(tn__holding *const *at, int n, int64_t *bytes) {
    tn__holding *writer = at[0];
    for (int i = 1; at[0]->dealt && i < n; i++) {
        writer = bytes[at[i]->rank] < bytes[writer->rank] ? at[i] : writer;
    }
    for (int i = 0; i < n; i++) {
        at[i]->writes = at[i] == writer && writer->layout.length > 0;
    }
    bytes[writer->rank] += writer->layout.length * (int64_t)tn_dtype_size(writer->dtype);
}

/* All pieces of one tensor. */
static bool deal_tensor(tn__holding *const *at, int n, int64_t *bytes, const char *operation) {
    int64_t found = 0, whole = tn_dims_count(at[0]->layout.whole);
    if (!same_tensor(at, n, operation)) {
        return false;
    }
    for (int i = 0, same; i < n; i += same) {
        for (same = 1; i + same < n && compare_layouts(&at[i]->layout, &at[i + same]->layout) == 0;
             same++) {
        }
        deal_piece(at + i, same, bytes);
        found += at[i]->layout.length;
    }
    if (found != whole) {
        tn__raise(TN_EMISMATCH, operation,
                  "\"%.80s\" has %" PRId64 " elements, but the ranks have pieces with %" PRId64,
                  at[0]->name, whole, found);
    }
    return found == whole;
}

bool tn__holdings_deal(tn__holdings *h, const char *operation) {
    int64_t *bytes = tn__calloc((size_t)h->ranks, sizeof(*bytes));
    if (!bytes) {
        tn__raise(TN_ENOMEM, operation, "no memory for %d ranks", h->ranks);
        return false;
    }
    bool dealt = sort_all(h, operation);
    for (int i = 0, n; dealt && i < h->count; i += n) {
        n = tn__holdings_named(h, i);
        dealt = deal_tensor(h->sorted + i, n, bytes, operation);
    }
    free(bytes);
    return dealt;
}

/* ---- The index ------------------------------------------------------------------------------- */

static void put_pieces(tn__holding *const *at, int n, tn__json_text *j) {
    const char *comma = "";
    for (int i = 0; i < n; i++) {
        if (at[i]->writes) {
            tn__json_put(j, "%s{\"file\":%d,\"digest\":\"%s\",", comma, at[i]->rank, at[i]->digest);
            tn__layout_put(j, &at[i]->layout);
            tn__json_put(j, "}");
            comma = ",";
        }
    }
}

void tn__holdings_index(const tn__holdings *h, tn__json_text *j) {
    tn__json_put(j, "{");
    for (int i = 0, n; i < h->count; i += n) {
        const tn__holding *first = h->sorted[i];
        n = tn__holdings_named(h, i);
        tn__json_put(j, "%s", i ? ",\n" : "\n");
        tn__json_put_string(j, first->name);
        tn__json_put(j, ":{\"dtype\":\"%s\",\"whole\":", tn__safetensors_dtype_name(first->dtype));
        tn__json_put_list(j, first->layout.whole.size, first->layout.whole.ndim);
        tn__json_put(j, ",\"pieces\":[");
        put_pieces(h->sorted + i, n, j);
        tn__json_put(j, "]}");
    }
    tn__json_put(j, "}");
}
