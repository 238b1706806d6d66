/* Layouts as runs: for any two ways to lay a parameter on ranks, copying from one to the other is
 * right, element by element. */
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#include "nn/layout.h"

enum { PAIRS = 4000, MOST = 24 };

static uint64_t random_state;

/* 0 … below-1 */
static int64_t draw_below(int64_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)below);
}

/* ---- A way to lay a parameter on ranks ------------------------------------------------------- */

/* The whole is cut along dim into pieces; each of `slices` groups of ranks has a slice of each
 * piece. Within a group, each of `ranges` ranks has a range of any length. */
enum {
    PARTS = 1 << 20
}; /* cuts are in these fractions of a block, since blocks may differ in size */
typedef struct mesh {
    int dim, pieces, slices, ranges;
    int64_t cut[8]; /* [ranges + 1] */
} mesh;

static int compare_numbers(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static mesh random_mesh(tn_dims *whole, int dim) {
    static const int slices[] = {1, 2, 4}, pieces[] = {1, 3};
    mesh m = {.dim = -1, .pieces = 1, .slices = 1, .ranges = 1 + (int)draw_below(6)};
    if (draw_below(3)) {
        m.dim = dim;
        m.pieces = pieces[draw_below(2)];
        m.slices = slices[draw_below(3)];
    }
    if (m.dim >= 0 && m.pieces == 1) { /* these sizes need not divide */
        m.slices = 1 + (int)draw_below(7);
        whole->size[m.dim] = 1 + draw_below(MOST);
    }
    m.cut[m.ranges] = PARTS;
    for (int i = 1; i < m.ranges; i++) {
        m.cut[i] = draw_below(3) ? draw_below(PARTS + 1)
                                 : draw_below(2) * PARTS; /* some ranks have no element */
    }
    qsort(m.cut, (size_t)m.ranges + 1, sizeof(*m.cut), compare_numbers);
    return m;
}

static int mesh_ranks(const mesh *m) {
    return m->slices * m->ranges;
}

/* Rows of each slice except the last. */
static int64_t rows_each(int64_t size, int pieces, int slices) {
    return (size / pieces + slices - 1) / slices;
}

static tn_layout mesh_layout(const mesh *m, const tn_dims *whole, int rank) {
    int range = rank / m->slices, slice = rank % m->slices;
    int64_t block = tn_dims_count(*whole);
    if (m->dim >= 0) {
        int64_t size = whole->size[m->dim] / m->pieces, each = rows_each(size, 1, m->slices);
        int64_t rows = 0;
        for (int64_t row = 0; row < size; row++) {
            rows += row / each == slice;
        }
        block = block / size * rows;
    }
    int64_t from = m->cut[range] * block / PARTS, to = m->cut[range + 1] * block / PARTS;
    return (tn_layout){.whole = *whole,
                       .dim = m->dim,
                       .pieces = m->pieces,
                       .slice = slice,
                       .slices = m->slices,
                       .start = from,
                       .length = to - from};
}

/* ---- What is where, plainly ------------------------------------------------------------------ */

/* The index in the whole of each element that l has, found by walking over all of the whole. */
static void list_elements(const tn_layout *l, int64_t *elements) {
    int64_t inner = 1, in_block = 0, count = tn_dims_count(l->whole);
    for (int d = l->dim + 1; d < l->whole.ndim; d++) {
        inner *= l->whole.size[d];
    }
    for (int64_t e = 0; e < count; e++) {
        if (l->dim >= 0) {
            int64_t size = l->whole.size[l->dim], row = e / inner % size;
            int64_t slice = row % (size / l->pieces) / rows_each(size, l->pieces, l->slices);
            if (slice != l->slice) { continue; }
        }
        if (in_block >= l->start && in_block < l->start + l->length) {
            elements[in_block - l->start] = e;
        }
        in_block++;
    }
}

static void check_runs(const tn_layout *l, const int64_t *elements) {
    for (int64_t here = 0; here < l->length; here++) {
        tn__layout_span r = tn__layout_run(l, here);
        assert_int_equal(r.here, here);
        assert_true(r.length > 0 && here + r.length <= l->length);
        for (int64_t i = 0; i < r.length; i++) {
            assert_int_equal(elements[here + i], r.whole + i);
        }
    }
}

/* Copies the whole from the ranks of one mesh to those of another: each element arrives once. */
static void check_pair(const tn_dims *whole, const mesh *from, const mesh *to) {
    int64_t count = tn_dims_count(*whole), arrived = 0;
    int64_t *a_has = malloc(sizeof(int64_t) * (size_t)(count + 1));
    int64_t *b_has = malloc(sizeof(int64_t) * (size_t)(count + 1));
    int64_t *got = malloc(sizeof(int64_t) * (size_t)(count + 1));
    for (int b = 0; b < mesh_ranks(to); b++) {
        tn_layout mine = mesh_layout(to, whole, b);
        assert_true(tn__layout_sound(&mine));
        list_elements(&mine, b_has);
        check_runs(&mine, b_has);
        memset(got, 0xff, sizeof(int64_t) * (size_t)count);
        for (int a = 0; a < mesh_ranks(from); a++) {
            tn_layout theirs = mesh_layout(from, whole, a);
            list_elements(&theirs, a_has);
            for (tn__common c = {0}; tn__layouts_next(&theirs, &mine, &c);) {
                for (int64_t i = 0; i < c.length; i++) {
                    assert_int_equal(got[c.b + i], -1);
                    got[c.b + i] = a_has[c.a + i];
                }
                arrived += c.length;
            }
        }
        assert_memory_equal(got, b_has, sizeof(int64_t) * (size_t)mine.length);
    }
    assert_int_equal(arrived, count);
    free(a_has);
    free(b_has);
    free(got);
}

TEST(any_mesh_to_any_other) {
    random_state = 1;
    for (int pairs = 0; pairs < PAIRS;) {
        tn_dims whole = {.ndim = 1 + (int)draw_below(3)};
        for (int d = 0; d < whole.ndim; d++) {
            whole.size[d] = 1 + draw_below(5);
        }
        int dim = (int)draw_below(whole.ndim);
        whole.size[dim] = 12 * (1 + draw_below(MOST / 12));
        mesh from = random_mesh(&whole, dim), to = random_mesh(&whole, dim);
        bool fit = whole.size[dim] % (from.pieces * from.slices) == 0 || from.pieces == 1;
        if (fit && (whole.size[dim] % (to.pieces * to.slices) == 0 || to.pieces == 1)) {
            check_pair(&whole, &from, &to);
            pairs++;
        }
    }
}

/* Four ranks have 12565, 12565, 12565 and 12562 of the 50257 rows of GPT-2's embedding; of 5 rows,
 * 2, 2, 1 and none. */
TEST(slices_that_do_not_divide) {
    static const struct {
        int64_t size, count[4];
    } cases[] = {{50257, {12565, 12565, 12565, 12562}}, {5, {2, 2, 1, 0}}, {8, {2, 2, 2, 2}}};
    for (int i = 0; i < 3; i++) {
        int64_t first = 0;
        for (int r = 0; r < 4; r++) {
            tn_layout l = {TN_DIMS(3, cases[i].size), 1, 1, r, 4, 0, 3 * cases[i].count[r]};
            assert_true(tn__layout_sound(&l));
            assert_int_equal(tn__layout_slice(&l).count, cases[i].count[r]);
            assert_int_equal(tn__layout_slice(&l).first, first);
            assert_int_equal(tn__layout_block(&l).size[1], cases[i].count[r]);
            first += cases[i].count[r];
            l.length++;
            assert_false(tn__layout_sound(&l));
        }
    }
    tn_layout pieces = {TN_DIMS(9), 0, 3, 0, 2, 0, 1}; /* q, k and v are cut evenly or not at all */
    assert_false(tn__layout_sound(&pieces));
}

TEST(scalars_and_nothing) {
    tn_layout scalar = tn__layout_whole((tn_dims){.ndim = 0}),
              empty = tn__layout_whole(TN_DIMS(3, 0));
    tn__common c = {0};
    assert_true(tn__layout_sound(&scalar) && tn__layout_sound(&empty));
    assert_true(tn__layouts_next(&scalar, &scalar, &c) && c.length == 1);
    assert_false(tn__layouts_next(&scalar, &scalar, &c));
    c = (tn__common){0};
    assert_false(tn__layouts_next(&empty, &empty, &c));
}

/* ---- Wrong layouts --------------------------------------------------------------------------- */

static void assert_refused(tn_layout l) {
    assert_false(tn__layout_sound(&l));
}

TEST(unsound_ones_are_found) {
    const int64_t large = INT64_MAX;
    tn_layout l = {.whole = TN_DIMS(6, 4),
                   .dim = 0,
                   .pieces = 3,
                   .slice = 1,
                   .slices = 2,
                   .start = 2,
                   .length = 10};
    assert_true(tn__layout_sound(&l));
#define WITH(field, value)   \
    {                        \
        tn_layout bad = l;   \
        bad.field = value;   \
        assert_refused(bad); \
    }
    WITH(dim, 2)
    WITH(dim, -2)
    WITH(pieces, 0)
    WITH(pieces, -3)
    WITH(pieces, 4)
    WITH(slices, 0)
    WITH(slices, -2)
    WITH(slices, 3)
    WITH(slice, 2)
    WITH(slice, -1)
    WITH(start, -1)
    WITH(start, 3)
    WITH(start, large)
    WITH(length, -1)
    WITH(length, 11)
    WITH(length, large)
    WITH(whole, TN_DIMS(-6, 4))
    WITH(whole, TN_DIMS(large - 1, 4))
    WITH(whole.ndim, -1)
    WITH(whole.ndim, TN_MAX_DIMS + 1)
#undef WITH
}

TEST(equal_ones_are_written_alike) {
    tn_layout a = tn__layout_whole(TN_DIMS(2, 3)), b = a;
    b.pieces = b.slices = 0;
    b = tn__layout_plain(&b);
    assert_true(tn__layout_equal(&a, &b));
    b.start = 1;
    b.length--;
    assert_false(tn__layout_equal(&a, &b));
}
