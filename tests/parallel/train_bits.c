/* What training runs end with: gathered from all ranks, and compared. See train.h. */
#include "tests/parallel/train.h"

#include "nn/layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Bytes ----------------------------------------------------------------------------------- */

void *train_grow(train_bits *bits, size_t bytes) {
    bits->data = realloc(bits->data, bits->bytes + bytes);
    bits->bytes += bytes;
    return bits->data + bits->bytes - bytes;
}

void train_join(train_bits *bits, train_bits more) {
    if (more.bytes > 0) { /* none after an error */
        memcpy(train_grow(bits, more.bytes), more.data, more.bytes);
    }
    free(more.data);
}

bool train_same(train_bits a, train_bits b) {
    return a.bytes == b.bytes && a.bytes > 0 && memcmp(a.data, b.data, a.bytes) == 0;
}

double train_difference(train_bits a, train_bits b) {
    double most = a.bytes == b.bytes ? 0 : NAN;
    for (size_t at = 0; at < a.bytes && a.bytes == b.bytes; at += sizeof(float)) {
        float x, y;
        memcpy(&x, a.data + at, sizeof(x));
        memcpy(&y, b.data + at, sizeof(y));
        most = isnan(x - y) ? NAN : fmax(most, fabs((double)x - (double)y));
        if (isnan(most)) { break; }
    }
    return most;
}

/* ---- Gathering from all ranks ---------------------------------------------------------------- */

static bool append_entry(const tn_entry *entry, void *user) {
    train_bits *bits = user;
    TN_SCOPE;
    tn_layout layout = entry->layout;
    layout.length = entry->absent ? 0 : layout.length;
    memcpy(train_grow(bits, sizeof(layout)), &layout, sizeof(layout));
    if (layout.length > 0) {
        size_t bytes = (size_t)layout.length * tn_dtype_size(tn_dtype_of(entry->stored));
        tn_copy_out(entry->stored, train_grow(bits, bytes));
    }
    return true;
}

typedef struct pieces {
    train_bits all;
    char **at; /* [ranks]: each rank's next piece */
    int ranks;
} pieces;

/* One whole parameter, from pieces that cover it; ranks that have the same elements must agree. */
static bool assemble_entry(const tn_entry *entry, void *user) {
    pieces *p = user;
    size_t size = tn_dtype_size(tn_dtype_of(entry->stored));
    int64_t count = tn_dims_count(entry->layout.whole);
    char *whole = train_grow(&p->all, (size_t)count * size);
    memset(whole, 0xEE, (size_t)count * size);
    for (int pass = 0; pass < 2; pass++) {
        for (int r = 0; r < p->ranks; r++) {
            tn_layout l;
            memcpy(&l, p->at[r], sizeof(l));
            const char *piece = p->at[r] + sizeof(l);
            for (tn__layout_span run = {0}; run.here < l.length; run.here += run.length) {
                run = tn__layout_run(&l, run.here);
                char *place = whole + (size_t)run.whole * size;
                const char *mine = piece + (size_t)run.here * size;
                if (pass == 0) {
                    memcpy(place, mine, (size_t)run.length * size);
                } else if (memcmp(place, mine, (size_t)run.length * size) != 0) {
                    tn_raise(TN_EMISMATCH, "ranks differ in %s (rank %d)", entry->path, r);
                }
            }
            p->at[r] += pass * (int64_t)(sizeof(l) + (size_t)l.length * size);
        }
    }
    return true;
}

train_bits train_whole(void *m, tn_group *g) {
    train_bits mine = {0};
    int ranks = tn_group_size(g);
    void **data = calloc((size_t)ranks, sizeof(*data));
    size_t *bytes = calloc((size_t)ranks, sizeof(*bytes));
    tn_module_each(m, (tn_walk){.absent = true}, append_entry, &mine);
    pieces p = {.ranks = ranks, .at = calloc((size_t)ranks, sizeof(char *))};
    if (tn_all_gather_bytes(g, mine.data, mine.bytes, data, bytes) == TN_OK) {
        memcpy(p.at, data, (size_t)ranks * sizeof(*data));
        tn_module_each(m, (tn_walk){.absent = true}, assemble_entry, &p);
    }
    for (int r = 0; r < ranks; r++) {
        tn_bytes_free(data[r]);
    }
    free(data);
    free(bytes);
    free(p.at);
    free(mine.data);
    return p.all;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

bool train_agrees(const train_end *a, const train_end *b, const train_run *run, double within) {
    /* squares are added in the order of the parts */
    double norms = within > 0 ? 1e-6 : run->how == TRAIN_MESH ? 1e-12 : 1e-11;
    for (int i = 0; i <= run->steps; i++) { /* the last is a validation, or 0 */
        double loss = fabs(b->losses[i] - a->losses[i]);
        double norm = i < run->steps ? fabs(b->norms[i] / a->norms[i] - 1) : 0;
        if (!(loss <= (within > 0 ? 1e-6 : 1e-15 * a->losses[i])) ||
            (run->clip > 0 && !(norm <= norms))) {
            fprintf(stderr, "step %d has the loss %.17g, not %.17g; its norm is off by %g\n", i,
                    b->losses[i], a->losses[i], norm);
            return false;
        }
    }
    double off = train_difference(a->bits, b->bits);
    bool same = within > 0 ? a->bits.bytes > 0 && off <= within : train_same(a->bits, b->bits);
    if (!same) { fprintf(stderr, "weights differ by %g\n", off); }
    return same;
}

typedef struct job {
    const train_run *run;
    train_end ends[TRAIN_MOST_RANKS];
} job;

static void train_rank(tn_group *world, void *user) {
    job *j = user;
    j->ends[tn_group_rank(world)] = train_as_rank(world, j->run);
}

train_end train_on_threads(train_run run) {
    job j = {.run = &run};
    int ranks = train_ranks(&run);
    if (run.alone) {
        j.ends[0] = train_as_rank(NULL, &run);
    } else {
        tn_local_run(ranks, train_rank, &j);
    }
    if (tn_error()) {
        print_error("%s: %s\n", train_text(&run), tn_error_message());
        tn_error_clear();
        fail();
    }
    for (int r = 1; r < ranks; r++) {
        if (!train_same(j.ends[0].bits, j.ends[r].bits)) {
            fail_msg("%s: rank %d has other bits", train_text(&run), r);
        }
        free(j.ends[r].bits.data);
        j.ends[0].alive[r] = j.ends[r].alive[r];
    }
    return j.ends[0];
}

void train_expect(const train_end *want, train_run run, double within) {
    train_end is = train_on_threads(run);
    if (!train_agrees(want, &is, &run, within)) {
        fail_msg("%s: does not train as expected", train_text(&run));
    }
    free(is.bits.data);
}

void train_expect_alone(train_run run, double within) {
    train_end want = train_on_threads(train_oracle(run, NULL));
    train_expect(&want, run, within);
    free(want.bits.data);
}
