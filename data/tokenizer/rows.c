/* A batch of texts as rows of ids. */
#include "core/error.h"
#include "data/tokenizer/tokenizer.h"
#include "tern/sys/tensor.h"

#include <stdlib.h>
#include <string.h>

tn_rows_options tn_rows_defaults(void) {
    return (tn_rows_options){.multiple = 1, .pad = -1, .from_defaults = true};
}

/* The id after a row's end; below 0 after raising. */
static int64_t find_pad(const tn_tokenizer *t, const tn_rows_options *o) {
    int64_t pad = o->pad < 0 ? tn__tokenizer_end(t) : o->pad;
    if (pad < 0) {
        tn__raise(TN_EVALUE, "tokenizer_encode_rows",
                  "the tokenizer has no end token to pad with: give `pad`");
    }
    return pad;
}

/* All texts, one after another, and where each ends. */
static bool encode_all(const tn_tokenizer *t, const char *const *texts, int64_t n, bool special,
                       tn_ids *ids, int64_t *ends) {
    for (int64_t i = 0; i < n; i++) {
        if (!texts[i]) {
            return tn__fail(TN_EVALUE, "tokenizer_encode_rows", "text %lld is NULL", (long long)i);
        }
        if (tn_tokenizer_encode(t, texts[i], strlen(texts[i]), special, ids) != TN_OK) {
            return false;
        }
        ends[i] = ids->count;
    }
    return true;
}

tn_tensor *tn_tokenizer_encode_rows(const tn_tokenizer *t, const char *const *texts, int64_t n,
                                    tn_rows_options o, tn_tensor **lengths) {
    if (lengths) { *lengths = tn_inert(); }
    if (tn__pending() || !tn__options_made(o.from_defaults, "tokenizer_encode_rows", "tn_rows")) {
        return tn_inert();
    }
    if (!t || !texts || n < 1) {
        tn__raise(TN_EVALUE, "tokenizer_encode_rows", "%s",
                  !t       ? "the tokenizer is NULL"
                  : !texts ? "the texts are NULL"
                           : "there is no text");
        return tn_inert();
    }
    const char *wrong =
        TN__BEYOND({"max_length", o.max_length, 0, 0}, {"multiple", o.multiple, 1, 0});
    if (wrong) {
        tn__raise(TN_EVALUE, "tokenizer_encode_rows", "%s", wrong);
        return tn_inert();
    }
    TN_SCOPE;
    tn_ids ids = {0};
    int64_t pad = find_pad(t, &o), longest = 0, width = 0;
    tn_tensor *counts = tn_empty_on(tn_cpu(), TN_DIMS(n), TN_I64), *rows = tn_inert();
    int64_t *count = tn_data_mut(counts); /* first the ends, then lengths */
    if (count && pad >= 0 && encode_all(t, texts, n, o.special, &ids, count)) {
        for (int64_t i = n - 1; i >= 0; i--) {
            count[i] -= i > 0 ? count[i - 1] : 0;
            longest = count[i] > longest ? count[i] : longest;
        }
        longest = o.max_length > 0 && longest > o.max_length ? o.max_length : longest;
        int64_t beyond = longest % o.multiple;
        width = beyond ? longest - beyond + o.multiple : longest;
        rows = tn_empty_on(tn_cpu(), TN_DIMS(n, width), TN_I64);
    }
    int64_t *row = tn__pending() ? NULL : tn_data_mut(rows);
    for (int64_t i = 0, at = 0; row && count && i < n; i++) {
        int64_t all = count[i];
        count[i] = all < longest ? all : longest;
        for (int64_t j = 0; j < width; j++) {
            row[i * width + j] = j < count[i] ? ids.ids[at + j] : pad;
        }
        at += all;
    }
    tn_ids_free(&ids);
    if (lengths && row) { *lengths = tn_return(counts); }
    return tn_return(rows);
}
