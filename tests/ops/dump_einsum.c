/* Sums of products with drawn subscripts, for test_einsum.py:  dump_einsum FILE
 *
 * A case's name is NUMBER:EQUATION. CASE/x0, CASE/x1, … operands and CASE/g0, … their gradients;
 * CASE/y, CASE/dy     the result and what it is weighted with
 */
#include "tests/support/dump.h"

#include <string.h>

enum { CASES = 200, OPERANDS = 4, LETTERS = 5, WIDE = 2 }; /* WIDE: dimensions of an ellipsis */

/* Capitals among them: without "->" results are in the order of codes. */
static const char letters[] = "cAeBd";

typedef struct equation {
    char text[64];
    int used[LETTERS]; /* by how many subscripts */
    bool ellipsis;
    int64_t size[LETTERS], wide[WIDE];
} equation;

static void append_text(equation *e, const char *text, int n) {
    size_t at = strlen(e->text);
    snprintf(e->text + at, sizeof(e->text) - at, "%.*s", n, text);
}

/* A dimension of that size; now and then 1, which broadcasts. */
static int64_t maybe_one(int64_t size) {
    return draw_whole(0, 7) ? size : 1;
}

static void draw_ellipsis(equation *e, tn_dims *dims) {
    append_text(e, "...", 3);
    e->ellipsis = true;
    for (int64_t i = draw_whole(0, WIDE); i < WIDE; i++) {
        dims->size[dims->ndim++] = maybe_one(e->wide[i]);
    }
}

/* The subscripts of an operand, and an operand for them. A letter may occur twice: a diagonal. */
static tn_tensor *draw_operand(equation *e) {
    tn_dims dims = {0};
    int64_t own[LETTERS];
    for (int i = 0; i < LETTERS; i++) {
        own[i] = maybe_one(e->size[i]);
    }
    int64_t n = draw_whole(0, 4), dots = draw_whole(0, 8); /* half of the time there are none */
    for (int64_t i = 0; i <= n; i++) {
        if (i == dots) { draw_ellipsis(e, &dims); }
        if (i < n) {
            int64_t letter = draw_whole(0, LETTERS - 1);
            append_text(e, letters + letter, 1);
            e->used[letter]++;
            dims.size[dims.ndim++] = own[letter];
        }
    }
    return tn_set_requires_grad(tn_randn(dims, TN_F64), true);
}

/* "->" and some of the letters, in any order; or nothing. */
static void draw_result(equation *e) {
    if (!draw_whole(0, 3)) { return; }
    append_text(e, "->", 2);
    int64_t from = draw_whole(0, LETTERS - 1), dots = draw_whole(0, 2 * LETTERS - 1);
    for (int64_t i = 0; i < LETTERS; i++) {
        int64_t letter = (from + 2 * i) % LETTERS;
        if (e->ellipsis && i == dots) { append_text(e, "...", 3); }
        if (e->used[letter] && draw_whole(0, 1)) { append_text(e, letters + letter, 1); }
    }
}

static void dump_case(int number) {
    TN_SCOPE;
    equation e = {0};
    for (int i = 0; i < LETTERS; i++) {
        e.size[i] = draw_whole(1, 4);
    }
    for (int i = 0; i < WIDE; i++) {
        e.wide[i] = draw_whole(1, 3);
    }
    tn_tensor *x[OPERANDS];
    int n = (int)draw_whole(1, OPERANDS);
    for (int i = 0; i < n; i++) {
        append_text(&e, ",", i > 0);
        x[i] = draw_operand(&e);
    }
    draw_result(&e);
    tn_tensor *y = tn_einsum(e.text, x, n), *dy = tn_randn(tn_shape(y), TN_F64);
    tn_backward_from(&y, &dy, 1, false);
    char name[96], what[8];
    snprintf(name, sizeof(name), "%03d:%s", number, e.text);
    add_tensor(name, "y", "", y);
    add_tensor(name, "dy", "", dy);
    for (int i = 0; i < n; i++) {
        snprintf(what, sizeof(what), "x%d", i);
        add_tensor(name, what, "", x[i]);
        what[0] = 'g';
        add_tensor(name, what, "", tn_grad_of(x[i]));
    }
}

int main(int argc, char **argv) {
    if (!dump_begin(argc, argv)) { return 1; }
    for (int i = 0; i < CASES; i++) {
        dump_case(i);
    }
    return tn_safetensors_writer_save(writer, argv[1]) == TN_OK ? 0 : 1;
}
