/* A program's own operations: every optional part of a descriptor is left out once, and whatever
 * cannot work without it is an error.
 */
#include <stdio.h>
#include <string.h>

#include "ops/host.h"
#include "tests/support/test.h"

#include <tern/sys/op.h>
#include <tern/tern.h>

static bool like_input(tn_op_call *c) {
    return tn_op_out_like(c, 0);
}

static bool like_input_twice(tn_op_call *c) {
    return tn_op_out_like(c, 0) && tn_op_out_like(c, 0);
}

static tn_status square_forward(const tn_op_call *c) {
    return c->kernels->unary(c->ctx, TN_SQUARE, c->y[0], c->x[0], 0, 0);
}

/* x^2 of input 0, and of the last. */
static tn_status squares_forward(const tn_op_call *c) {
    tn_status status = square_forward(c);
    return status == TN_OK
               ? c->kernels->unary(c->ctx, TN_SQUARE, c->y[1], c->x[c->inputs - 1], 0, 0)
               : status;
}

static tn_tensor *square_compose(tn_op_call *c) {
    return tn_square(c->in[0]);
}

static tn_tensor *squares_compose(tn_op_call *c) {
    c->out[1] = tn_square(c->in[c->inputs - 1]);
    return tn_square(c->in[0]);
}

static tn_status square_backward_kernel(const tn_op_back *b) {
    tn_status status = b->kernels->binary(b->ctx, TN_MUL, b->dx[0], b->x[0], b->dy[0]);
    return status == TN_OK ? b->kernels->unary(b->ctx, TN_MUL_K, b->dx[0], b->dx[0], 2, 0) : status;
}

static tn_tensor *tensor_of_twos(tn_dtype dtype, bool requires_grad) {
    return tn_set_requires_grad(tn_full(TN_DIMS(3), 2, dtype), requires_grad);
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* Only a backward kernel: it cannot be differentiated again, nor start from any result but the
 * first. */
TEST(kernel_alone) {
    static const tn_op one = {.name = "one",
                              .saves = TN_SAVES_INPUT(0),
                              .shape = like_input,
                              .forward = square_forward,
                              .backward_kernel = square_backward_kernel},
                       two = {.name = "two",
                              .results = 2,
                              .saves = TN_SAVES_INPUT(0),
                              .shape = like_input_twice,
                              .forward = squares_forward,
                              .backward_kernel = square_backward_kernel};
    tn_tensor *x = tensor_of_twos(TN_F32, true), *y = tn_sum_all(tn_apply1(&one, NULL, x)), *g,
              *r[2];
    tn_grad_options again = TN_WITH(tn_grad, .create_graph = true);
    tn_grad(&y, NULL, 1, &x, 1, &g, again);
    assert_error(TN_EUNSUPPORTED, "one: its gradient has only a kernel");
    assert_int_equal(tn_backward(y), TN_OK);
    assert_true(tn_equal(tn_grad_of(x), tn_full(TN_DIMS(3), 4, TN_F32)));
    tn_apply_many(&two, NULL, &x, 1, r);
    tn_backward(tn_sum_all(r[1]));
    assert_error(TN_EUNSUPPORTED, "two: its gradient has only a kernel");
}

/* A composition of which one result does not depend on the input that requires a gradient. */
TEST(unrelated_result) {
    static const tn_op op = {.name = "squares",
                             .results = 2,
                             .saves = TN_SAVES_INPUTS,
                             .shape = like_input_twice,
                             .forward = squares_forward,
                             .compose = squares_compose};
    tn_tensor *in[] = {tensor_of_twos(TN_F32, true), tensor_of_twos(TN_F32, false)}, *r[2];
    tn_apply_many(&op, NULL, in, 2, r);
    assert_int_equal(tn_backward(tn_sum_all(tn_add(r[0], r[1]))), TN_OK);
    assert_true(tn_equal(tn_grad_of(in[0]), tn_full(TN_DIMS(3), 4, TN_F32)));
    tn_apply_many(&op, NULL, in, 2, r);
    assert_int_equal(tn_backward(tn_sum_all(r[1])), TN_OK);
    assert_true(tn_equal(tn_grad_of(in[0]), tn_full(TN_DIMS(3), 4, TN_F32)));
}

static tn_status absent_backward_kernel(const tn_op_back *b) {
    return b->dx[1] ? TN_EVALUE : square_backward_kernel(b);
}

/* TN_OP_ALL_DX does not make a gradient for an absent input. */
TEST(always_but_absent) {
    static const tn_op op = {.name = "always",
                             .optional = 1u << 1,
                             .flags = TN_OP_ALL_DX,
                             .saves = TN_SAVES_INPUT(0),
                             .shape = like_input,
                             .forward = square_forward,
                             .backward_kernel = absent_backward_kernel};
    tn_tensor *x = tensor_of_twos(TN_F32, true);
    assert_int_equal(tn_backward(tn_sum_all(tn_apply2(&op, NULL, x, NULL))), TN_OK);
    assert_true(tn_equal(tn_grad_of(x), tn_full(TN_DIMS(3), 4, TN_F32)));
}

static tn_status square_and_copy(const tn_op_call *c) {
    tn_status status = square_forward(c);
    return status == TN_OK ? c->kernels->copy(c->ctx, c->y[1], c->x[0]) : status;
}

static void far_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_mul(g->dout[0], tn_op_saved_input(g, 17)));
}

/* Input 17 is not saved, and the bit of output 1 is not taken for it. */
TEST(far_input) {
    static const tn_op op = {.name = "far",
                             .saves = TN_SAVES_OUTPUT(1),
                             .shape = like_input_twice,
                             .forward = square_and_copy,
                             .backward = far_backward};
    tn_tensor *in[20];
    for (int i = 0; i < 20; i++) {
        in[i] = tensor_of_twos(TN_F32, true);
    }
    tn_backward(tn_sum_all(tn_apply(&op, NULL, in, 20)));
    assert_error(TN_EVALUE, "far: backward reads input 17");
}

static bool lend_shape(tn_op_call *c) {
    return tn_op_view(c, tn_shape(c->in[0]), (int64_t[]){1, 1}, 0);
}

static void lend_backward(tn_op_grad *g) {
    tn_op_give(g, 1, tn_cast(g->dout[0], tn_op_input_dtype(g, 1)));
}

static tn_tensor *lend_parameter(tn_tensor *parameter, tn_dtype dtype) {
    static const tn_op op = {.name = "lent",
                             .shape = lend_shape,
                             .backward = lend_backward,
                             .flags = TN_OP_LOW_PRECISION_COPY};
    return tn_apply2(&op, NULL, tn_detach(tn_cast(tn_detach(parameter), dtype)), parameter);
}

/* Low-precision copies of parameters of two dtypes, shared by several products: each contribution
 * is counted once, whether or not kernels can add it in place. */
TEST(lent_by_two) {
    tn_tensor *w = tn_set_requires_grad(tn_ones(TN_DIMS(4, 1), TN_F32), true), *sum = NULL;
    tn_tensor *b = tn_set_requires_grad(tn_ones(TN_DIMS(4), TN_F64), true);
    tn_tensor *narrow_w = lend_parameter(w, TN_BF16), *narrow_b = lend_parameter(b, TN_BF16);
    for (int i = 0; i < 3; i++) {
        tn_tensor *y = tn_linear_op(tn_ones(TN_DIMS(3, 1), TN_BF16), narrow_w, narrow_b);
        sum = sum ? tn_add(sum, tn_sum_all(y)) : tn_sum_all(y);
    }
    assert_int_equal(tn_backward(sum), TN_OK);
    assert_true(tn_equal(tn_grad_of(w), tn_full(TN_DIMS(4, 1), 9, TN_F32)));
    assert_true(tn_equal(tn_grad_of(b), tn_full(TN_DIMS(4), 9, TN_F64)));
}

/* ---- Incomplete descriptors ------------------------------------------------------------------ */

typedef struct numbers {
    int64_t many[4];
} numbers;

static void finish_numbers(void *args) {
    ((numbers *)args)->many[0]++;
}

static void reads_a_third(tn_op_grad *g) {
    tn_op_give(g, 0, tn_op_saved_input(g, 2));
}

static void reads_an_output(tn_op_grad *g) {
    tn_op_give(g, 0, tn_op_saved_output(g, 2));
}

static void expect_refused(const tn_op *op, const void *args, tn_tensor *const *in, int n,
                           const char *part) {
    tn_tensor *r[TN_OP_OUTPUTS] = {NULL};
    tn_apply_many(op, args, in, n, r);
    assert_inert(r[0], TN_EVALUE, part);
    assert_inert(tn_apply(op, args, in, n), TN_EVALUE, part);
}

TEST(what_is_missing_is_named) {
    const tn_op whole = {.name = "own", .shape = like_input, .forward = square_forward};
    tn_tensor *in[TN_OP_INPUTS + 1];
    for (int i = 0; i <= TN_OP_INPUTS; i++) {
        in[i] = tensor_of_twos(TN_F32, true);
    }
    expect_refused(NULL, NULL, in, 1, "apply: the operation is NULL");
    tn_op op = whole;
    op.name = NULL;
    expect_refused(&op, NULL, in, 1, "apply: its name is NULL");
    op = whole;
    op.shape = NULL;
    expect_refused(&op, NULL, in, 1, "own: its shape is NULL");
    op = whole;
    op.forward = NULL;
    expect_refused(&op, NULL, in, 1,
                   "own: output 0 is not a view of input 0, and nothing fills it: forward, host");
    op = whole;
    op.args_size = sizeof(numbers);
    expect_refused(&op, NULL, in, 1, "own: args is NULL, but its args_size is not 0");
    op.args_size = 0;
    op.args_finish = finish_numbers;
    expect_refused(&op, NULL, in, 1, "own: args is NULL, but its args_finish releases them");
    op = whole;
    op.results = TN_OP_OUTPUTS + 1;
    expect_refused(&op, NULL, in, 1, "own: it has 9 results (must be 0, which means 1, to 8)");
    op.results = -1;
    expect_refused(&op, NULL, in, 1, "own: it has -1 results");
    expect_refused(&whole, NULL, NULL, 1, "own: 1 inputs, and the list of them is NULL");
    expect_refused(&whole, NULL, in, -1, "own: -1 inputs");
    expect_refused(&whole, NULL, (tn_tensor *[]){NULL}, 1, "own: input 0 must not be NULL");
    expect_refused(&whole, NULL, in, 0, "own: the rule needs input 0 but 0 inputs are given");
    tn_apply_many(&whole, NULL, in, 1, NULL);
    assert_error(TN_EVALUE, "own: 1 inputs, and the results are NULL");
}

TEST(inputs_that_are_named) {
    tn_op op = {.name = "own",
                .inputs = {"a", "b", "bias"},
                .optional = 1u << 2,
                .shape = like_input,
                .forward = square_forward};
    tn_tensor *in[TN_OP_INPUTS + 1];
    for (int i = 0; i <= TN_OP_INPUTS; i++) {
        in[i] = tensor_of_twos(TN_F32, true);
    }
    assert_false(tn_is_inert(tn_apply(&op, NULL, in, 2)));
    assert_false(tn_is_inert(tn_apply(&op, NULL, in, 3)));
    expect_refused(&op, NULL, in, 1, "own: 1 inputs given, but b is missing");
    expect_refused(&op, NULL, in, 0, "own: 0 inputs given, but a is missing");
    expect_refused(&op, NULL, in, 4, "own: 4 inputs given, but bias is its last");
    expect_refused(&op, NULL, in, TN_OP_INPUTS + 1, "own: 9 inputs given, but bias is its last");
}

/* ---- Shape rules as text --------------------------------------------------------------------- */

/* "[2, 3] f32 [] f64": the outputs that the rule makes for these inputs; "": an error is pending.
 */
static const char *outputs_of(const char *shapes, tn_tensor *const *in, int n, bool record) {
    static char text[200];
    static const tn_op op = {.name = "own", .inputs = {"a", "b", "c"}, .optional = 1u << 1};
    tn_op_call c = {.op = &op, .inputs = n, .in = in, .record = record};
    size_t at = 0;
    text[0] = 0;
    if (!tn_op_shapes(&c, shapes)) { return ""; }
    for (int i = 0; i < c.outputs; i++) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s %s", i ? " " : "",
                               tn_shape_text(c.out[i]), tn_dtype_name(tn_dtype_of(c.out[i])));
    }
    return text;
}

TEST(shapes_as_text) {
    tn_tensor *const of_letter[128] = {['a'] = tn_zeros(TN_DIMS(2, 5, 3), TN_BF16),
                                       ['b'] = tn_zeros(TN_DIMS(4, 3), TN_BF16),
                                       ['d'] = tn_zeros(TN_DIMS(3), TN_F64),
                                       ['i'] = tn_zeros(TN_DIMS(2, 5), TN_I32),
                                       ['z'] = tn_zeros(TN_DIMS(3, 5), TN_BF16),
                                       ['x'] = tn_zeros(TN_DIMS(3), TN_F32),
                                       ['y'] = tn_zeros(TN_DIMS(1, 1, 1, 1, 1, 1, 1, 1), TN_F32)};
    static const struct {
        const char *shapes, *outputs, *error;
        const char *in; /* letters as above; 0: absent */
    } all[] = {
        {"... in, out in -> ... out, wide: ..., bool:", "[2, 5, 4] bf16 [2, 5] f32 [] bool", "",
         "ab"},
        {"rows ... n, , n -> n rows", "[3, 2] bf16", "", "a0"},
        {"... in, index: ... -> in", "[3] bf16", "", "ai"},
        {"any: ..., float: n -> ...", "[2, 5] i32", "", "id"},
        {"... in, f64: in -> f64: ...", "[2, 5] f64", "", "ad"},
        {"i32: ... -> i32: ...", "[2, 5] i32", "", "i"},
        {"..., ...", "", "", "aa"},
        {"... in, out in -> ... out", "", "a is bf16 but b is f64 (cast one of them)", "ad"},
        {"... -> ...", "", "the dtype of a is i32 but must be", "i"},
        {"any: ..., float: ... n", "", "the dtype of b is i32 but must be", "ai"},
        {"..., index: n", "", "the dtype of b is f64 but indices must be i64 or i32", "ad"},
        {"..., i8: n", "", "b is i32 (i8 is needed)", "ai"},
        {"flaot: ...", "", "its shape rule has 'flaot' for a dtype", "a"},
        {"wide: ...", "", "its shape rule has 'wide' for a dtype", "a"},
        {"... -> any: ...", "", "its shape rule has 'any' for a dtype", "a"},
        {"... n ...", "", "\"... n ...\" has ... twice in one operand", "a"},
        {"... - ...", "", "has a - that is no ->", "a"},
        {"... -> ... -> ...", "", "has a - that is no ->", "a"},
        {"a b c d e f g h i j", "", "has too many words", "a"},
        {"a b c d e f, g h i j k l, m n o p q", "", "has too many words", "a"},
        {"a_word_that_is_much_too_long", "", "has too long a word", "a"},
        {"n, n, n, n, n, n, n, n, n -> n, n, n, n, n, n, n, n", "", "has too many operands", "d"},
        {"n -> n", "", "a is [2, 5, 3] (it must be [n])", "a"},
        {"a b c d ...", "", "a is [2, 5, 3] (it must be [a, b, c, d, ...])", "a"},
        {"n n", "", "a is [4, 3] (it must be [n, n]: n is 4 and 3)", "b"},
        {"n, float: n ...", "", "(they must be [n] and [n, ...]: n is 3 and 2)", "da"},
        {"..., ... -> ...", "", "a is [2, 5, 3] but b is [4, 3] (they must be equal)", "ab"},
        {"any: ..., i32: ... n", "", "... is [2, 5] and [2]", "ii"},
        {"... n, ...", "", "... is [2, 5] and [3, 5]", "az"},
        {"... m, ... n", "", "(they must be [..., m] and [..., n]: ... is [2, 5] and [4])", "ab"},
        {"... -> ... m", "", "no input has the size 'm' of its result", "a"},
        {"n -> ...", "", "no input has the size '...' of its result", "d"},
        {"..., n -> ... n", "", "(the result would have more than 8 dimensions)", "yx"},
        {"... -> ...", "", "2 inputs given, but \"... -> ...\" has 1", "aa"},
    };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        tn_tensor *in[3];
        int n = (int)strlen(all[k].in);
        for (int j = 0; j < n; j++) {
            in[j] = of_letter[(unsigned char)all[k].in[j]];
        }
        const char *got = outputs_of(all[k].shapes, in, n, true);
        if (strcmp(got, all[k].outputs) != 0 || !strstr(tn_error_message(), all[k].error) ||
            (tn_error() != TN_OK) != (all[k].error[0] != 0)) {
            fail_msg("%s of %s: %s %s", all[k].shapes, all[k].in, got, tn_error_message());
        }
        tn_error_clear();
    }
    assert_string_equal(outputs_of("n -> n, wide: n", &of_letter['x'], 1, false), "[3] f32");
}

/* A rule that was read is found again by its text, not by where that is alone; and more rules than
 * are kept are read each time. */
TEST(shapes_of_many_texts) {
    enum { TEXTS = 300 };
    static char text[TEXTS][32];
    tn_tensor *x = tn_zeros(TN_DIMS(2, 3), TN_F32);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < TEXTS; i++) {
            bool swaps = (i + round) % 2;
            snprintf(text[i], sizeof text[i], "a%d b -> %s%d", i, swaps ? "b a" : "a", i);
            const char *got = outputs_of(text[i], &x, 1, false);
            assert_string_equal(got, swaps ? "[3, 2] f32" : "[2] f32");
        }
    }
    char longer[200];
    memset(longer, ' ', sizeof longer);
    memcpy(longer + 190, "-> n", sizeof "-> n");
    assert_string_equal(outputs_of(longer, &x, 1, false), "");
    assert_error(TN_EVALUE, "has too long a text");
}

TEST(what_is_saved_and_not_there) {
    tn_op op = {.name = "own",
                .saves = TN_SAVES_OUTPUT(2),
                .shape = like_input,
                .forward = square_forward,
                .backward = reads_a_third};
    tn_tensor *x = tensor_of_twos(TN_F32, true);
    tn_backward(tn_sum_all(tn_apply1(&op, NULL, x)));
    assert_error(TN_EVALUE, "own: backward reads input 2 of 1");
    op.backward = reads_an_output;
    tn_backward(tn_sum_all(tn_apply1(&op, NULL, x)));
    assert_error(TN_ESTATE, "own: backward asks for output 2");
}

/* ---- Compositions ---------------------------------------------------------------------------- */

TEST(composition_alone) {
    static const tn_op op = {.name = "composed",
                             .saves = TN_SAVES_INPUTS,
                             .shape = like_input,
                             .compose = square_compose};
    tn_tensor *x = tensor_of_twos(TN_F32, true), *y = tn_apply1(&op, NULL, x);
    assert_true(tn_equal(tn_detach(y), tn_full(TN_DIMS(3), 4, TN_F32)));
    assert_int_equal(tn_backward(tn_sum_all(y)), TN_OK);
    assert_true(tn_equal(tn_grad_of(x), tn_full(TN_DIMS(3), 4, TN_F32)));
}

TEST(forgotten_results) {
    static const tn_op op = {
        .name = "forgetful", .results = 2, .shape = like_input_twice, .compose = square_compose};
    tn_tensor *x = tensor_of_twos(TN_F32, false), *r[2];
    tn_apply_many(&op, NULL, &x, 1, r);
    assert_inert(r[1], TN_EVALUE, "forgetful: the composition did not make result 1");
    static const tn_op one_of_two = {
        .name = "short", .results = 2, .shape = like_input, .forward = square_forward};
    tn_apply_many(&one_of_two, NULL, &x, 1, r);
    assert_inert(r[1], TN_EVALUE, "short: the shape rule makes 1 of 2 results");
}

TEST(many_widened_inputs) {
    static const tn_op op = {
        .name = "many", .shape = like_input, .compose = square_compose, .flags = TN_OP_WIDE};
    tn_tensor *in[TN_OP_INPUTS + 40];
    for (int i = 0; i < TN_OP_INPUTS + 40; i++) {
        in[i] = tensor_of_twos(TN_BF16, false);
    }
    assert_inert(tn_apply(&op, NULL, in, TN_OP_INPUTS + 40), TN_EUNSUPPORTED, "at most 8 inputs");
    assert_true(tn_equal(tn_apply(&op, NULL, in, TN_OP_INPUTS), tn_full(TN_DIMS(3), 4, TN_BF16)));
}

static tn_tensor *itself_compose(tn_op_call *c) {
    return tn_apply1(c->op, NULL, c->in[0]);
}

TEST(composed_of_itself) {
    tn_op op = {.name = "itself", .shape = like_input, .compose = itself_compose};
    assert_inert(tn_apply1(&op, NULL, tn_ones(TN_DIMS(3), TN_F32)), TN_ESTATE,
                 "itself: 1000 forwards are running inside each other");
}

/* ---- Host loops ------------------------------------------------------------------------------ */

/* x^3 if x is not negative, and for the gradient 3 x^2 by. */
typedef struct cube_job {
    tn_desc x, y, by;
} cube_job;

static inline void cube_elements(const cube_job *j, int64_t first, int64_t end, tn_dtype t) {
    for (int64_t i = first; i < end; i++) {
        double x = tn__host_load(j->x.data, t, tn__element_at(&j->x, i));
        double by = j->by.data ? 3 * tn__host_load(j->by.data, t, tn__element_at(&j->by, i)) : x;
        tn__host_store(j->y.data, t, tn__element_at(&j->y, i), x * x * by);
    }
}

static void cube_piece(const void *job, int64_t first, int64_t end) {
    const cube_job *j = job;
    j->x.dtype == TN_F64 ? cube_elements(j, first, end, TN_F64)
                         : cube_elements(j, first, end, TN_F32);
}

static int64_t count_of(const tn_desc *x) {
    int64_t n = 1;
    for (int i = 0; i < x->ndim; i++) {
        n *= x->size[i];
    }
    return n;
}

static tn_status cube_host(const tn_op_call *c) {
    cube_job job = {.x = *c->x[0], .y = *c->y[0]};
    if (job.x.dtype != job.y.dtype || c->ctx->device.kind != TN_CPU ||
        (job.x.dtype != TN_F32 && job.x.dtype != TN_F64)) {
        return TN_EVALUE;
    }
    tn__host_pieces(count_of(&job.x), 1, cube_piece, &job);
    for (int64_t i = 0; i < count_of(&job.x); i++) {
        double x = tn__host_load(job.x.data, job.x.dtype, tn__element_at(&job.x, i));
        if (x < 0) { return tn__host_bad_index(c->ctx, i, (int64_t)x); }
    }
    return TN_OK;
}

static tn_status cube_host_backward(const tn_op_back *b) {
    if (!b->dy[0]) { return TN_EVALUE; }
    cube_job job = {.x = *b->x[0], .y = *b->dx[0], .by = *b->dy[0]};
    if (job.y.dtype != job.x.dtype || job.by.dtype != job.x.dtype) { return TN_EVALUE; }
    tn__host_pieces(count_of(&job.x), 1, cube_piece, &job);
    return TN_OK;
}

static tn_status never_forward(const tn_op_call *c) {
    return TN_EUNSUPPORTED;
}

static tn_tensor *none_compose(tn_op_call *c) {
    return tn_zeros_like(c->in[0]);
}

static const tn_op cube_op = {.name = "cube",
                              .saves = TN_SAVES_INPUT(0),
                              .shape = like_input,
                              .host = {cube_host, cube_host_backward}};

/* 1 … 6 as (2, 3), transposed in memory. */
static tn_tensor *strided_tensor(tn_dtype dtype) {
    tn_tensor *x = tn_cast(tn_arange(1, 7, 1, TN_F32), dtype);
    return tn_contiguous(tn_transpose(tn_reshape(x, TN_DIMS(2, 3)), 0, 1));
}

/* Every float dtype, any strides, on either device; results and gradients are rounded once. */
TEST(host_loops) {
    static const tn_dtype dtypes[] = {TN_F32, TN_F64, TN_BF16, TN_F16};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        tn_tensor *leaf = tn_set_requires_grad(strided_tensor(dtypes[i]), true);
        tn_tensor *x = tn_transpose(leaf, 0, 1), *exact = tn_cast(tn_detach(x), TN_F64);
        tn_tensor *y = tn_apply1(&cube_op, NULL, x);
        assert_int_equal(tn_dtype_of(y), dtypes[i]);
        assert_int_equal(tn_device_of(y).kind, tn_default_device().kind);
        tn_tensor *want = tn_cast(tn_pow_scalar(exact, 3), dtypes[i]);
        assert_true(tn_equal(tn_detach(y), want));
        assert_int_equal(tn_backward(tn_sum_all(y)), TN_OK);
        want = tn_cast(tn_mul_scalar(tn_square(exact), 3), dtypes[i]);
        assert_true(tn_equal(tn_transpose(tn_grad_of(leaf), 0, 1), want));
    }
    tn_tensor *many = tn_ones(TN_DIMS(3, 20000), TN_F32);
    assert_true(tn_equal(tn_apply1(&cube_op, NULL, many), many));
    many = tn_ones(TN_DIMS(3, 0), TN_BF16);
    assert_true(tn_equal(tn_apply1(&cube_op, NULL, many), many));
}

/* A forward that the table cannot run, or that declines, leaves the work to the host loops; so does
 * a backward kernel. A composition comes after them on the CPU, and before them elsewhere. */
TEST(host_in_its_turn) {
    static tn_op op;
    op = cube_op;
    op.forward = never_forward;
    tn_tensor *x = tensor_of_twos(TN_F32, true), *cubes = tn_full(TN_DIMS(3), 8, TN_F32);
    assert_true(tn_equal(tn_detach(tn_apply1(&op, NULL, x)), cubes));
    op.forward = square_forward;
    tn_tensor *squares = tn_full(TN_DIMS(3), 4, TN_F32);
    assert_true(tn_equal(tn_detach(tn_apply1(&op, NULL, x)), squares));
    op.backward_kernel = square_backward_kernel; /* 2 x where the loops give 3 x^2 */
    assert_int_equal(tn_backward(tn_sum_all(tn_apply1(&op, NULL, x))), TN_OK);
    assert_true(tn_equal(tn_grad_of(x), squares));
    op.forward = NULL;
    op.compose = none_compose;
    bool host = tn_default_device().kind == TN_CPU;
    tn_tensor *y = tn_detach(tn_apply1(&op, NULL, x));
    assert_true(tn_equal(y, host ? cubes : tn_zeros(TN_DIMS(3), TN_F32)));
}

TEST(host_errors) {
    static const double values[] = {1, 2, -3};
    tn_tensor *x = tn_cast(tn_from_data(values, TN_DIMS(3), TN_F64), TN_BF16);
    assert_inert(tn_apply1(&cube_op, NULL, x), TN_EINDEX,
                 "cube: index -3 at position 2 is out of range");
    x = tensor_of_twos(TN_F16, true);
    tn_tensor *y = tn_sum_all(tn_apply1(&cube_op, NULL, x)), *g;
    tn_grad(&y, NULL, 1, &x, 1, &g, TN_WITH(tn_grad, .create_graph = true));
    assert_error(TN_EUNSUPPORTED, "cube: its gradient has only a kernel");
    tn_tensor *in[TN_OP_INPUTS + 1];
    for (int i = 0; i <= TN_OP_INPUTS; i++) {
        in[i] = tensor_of_twos(TN_BF16, false);
    }
    assert_inert(tn_apply(&cube_op, NULL, in, TN_OP_INPUTS + 1), TN_EUNSUPPORTED,
                 "cube: host loops take at most 8 inputs");
}

static tn_status second_host(const tn_op_call *c) {
    tn_op_call second = *c;
    second.y[0] = c->y[1];
    tn_status status = cube_host(c);
    return status == TN_OK ? cube_host(&second) : status;
}

static tn_status second_backward(const tn_op_back *b) {
    tn_op_back second = *b;
    second.dy[0] = b->dy[0] ? b->dy[0] : b->dy[1];
    return cube_host_backward(&second);
}

/* Of two results only the second leads to the loss. */
TEST(host_second_result) {
    static tn_op op;
    op = cube_op;
    op.results = 2;
    op.shape = like_input_twice;
    op.host.forward = second_host;
    op.host.backward = second_backward;
    tn_tensor *x = tensor_of_twos(TN_BF16, true), *r[2];
    tn_apply_many(&op, NULL, &x, 1, r);
    assert_int_equal(tn_backward(tn_sum_all(r[1])), TN_OK);
    assert_true(tn_equal(tn_grad_of(x), tn_full(TN_DIMS(3), 12, TN_BF16)));
}

/* Lines along each dimension of a strided operand, in row-major order of the other dimensions. */
TEST(host_lines) {
    tn_tensor *x = tn_to(tn_transpose(strided_tensor(TN_F32), 0, 1), tn_cpu());
    tn_desc d = tn_desc_of(x);
    tn__lines down = tn__lines_along(&d, 0), across = tn__lines_along(&d, 1);
    assert_int_equal(down.count, 3);
    assert_int_equal(down.length, 2);
    assert_int_equal(across.count, 2);
    const float *data = d.data;
    for (int64_t i = 0; i < 2; i++) {
        for (int64_t j = 0; j < 3; j++) {
            assert_true(data[tn__line_at(&down, j) + i * down.step] == (float)(1 + 3 * i + j));
            assert_true(data[tn__line_at(&across, i) + j * across.step] == (float)(1 + 3 * i + j));
        }
    }
    d.ndim = 0;
    assert_int_equal(tn__lines_along(&d, 0).count, 1);
    assert_int_equal(tn__lines_along(&d, 0).length, 1);
}
