/* ONNX: what a file contains, and what it cannot. test_pypi_onnx.py checks that runtimes compute
 * the same numbers. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/temp.h"

#include <tern/sys/op.h>
#include <tern/tern.h>

/* ---- Reading what was written ---------------------------------------------------------------- */

typedef struct part {
    int field;
    const unsigned char *at; /* of a counted field */
    uint64_t value;          /* its length, or the number */
} part;

static uint64_t read_varint(const unsigned char **at) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) { return value; }
    }
}

/* The next field of a message; false at its end. */
static bool next_part(const unsigned char **at, const unsigned char *end, part *p) {
    if (*at >= end) { return false; }
    uint64_t tag = read_varint(at);
    *p = (part){.field = (int)(tag >> 3)};
    switch (tag & 7) {
    case 0:
        p->value = read_varint(at);
        break;
    case 2:
        p->value = read_varint(at);
        p->at = *at;
        *at += p->value;
        break;
    case 5:
        *at += 4;
        break;
    default:
        fail_msg("wire type %d", (int)(tag & 7));
    }
    assert_true(*at <= end);
    return true;
}

static void append_text(char *text, const char *before, const part *p) {
    size_t used = strlen(text);
    snprintf(text + used, 2048 - used, "%s%.*s", before, (int)p->value, (const char *)p->at);
}

/* "Gemm input weight bias > /linear_5": a node. */
static void tell_node(char *text, const part *node) {
    part p;
    const unsigned char *end = node->at + node->value;
    for (int field = 4; field != 0; field = field == 4 ? 1 : field == 1 ? 2 : 0) {
        for (const unsigned char *at = node->at; next_part(&at, end, &p);) {
            if (p.field == field) {
                append_text(text, field == 4 ? "" : field == 1 ? " " : " > ", &p);
            }
        }
    }
    strcat(text, "\n");
}

/* The name in field `field` of a message, after `before`. */
static void tell_name(char *text, const char *before, const part *message, int field) {
    part p;
    const unsigned char *at = message->at, *end = at + message->value;
    while (next_part(&at, end, &p)) {
        if (p.field == field) {
            append_text(text, before, &p);
            strcat(text, "\n");
        }
    }
}

/* The file as lines: inputs, outputs, nodes, initialisers with names. */
static const char *tell_file(const char *path) {
    static char text[2048];
    size_t bytes;
    unsigned char *file = temp_read(path, &bytes);
    part p, graph = {0};
    uint64_t ir = 0;
    text[0] = 0;
    for (const unsigned char *at = file; next_part(&at, file + bytes, &p);) {
        graph = p.field == 7 ? p : graph;
        ir = p.field == 1 ? p.value : ir;
    }
    assert_int_equal(ir, 8);
    assert_non_null(graph.at);
    for (const unsigned char *at = graph.at; next_part(&at, graph.at + graph.value, &p);) {
        if (p.field == 1) {
            tell_node(text, &p);
        } else if (p.field == 5) {
            tell_name(text, "initializer ", &p, 8);
        } else if (p.field == 11 || p.field == 12) {
            tell_name(text, p.field == 11 ? "input " : "output ", &p, 1);
        }
    }
    free(file);
    return text;
}

/* ---- Files ----------------------------------------------------------------------------------- */

TEST(a_module) {
    const char *path = temp_path("module.onnx");
    tn_linear m;
    tn_linear_init(&m, 4, 2, tn_linear_defaults());
    tn_module_train(&m, false);
    tn_tensor *x = tn_ones(TN_DIMS(3, 4), TN_F32);
    assert_int_equal(tn_onnx_export(&m, TN_VALUES(x), path, tn_onnx_defaults()), TN_OK);
    assert_string_equal(tell_file(path), "input input\n"
                                         "output output\n"
                                         "Gemm input weight bias > /linear_4\n"
                                         "Identity /linear_4 > output\n"
                                         "initializer weight\n"
                                         "initializer bias\n");
    tn_module_finish(&m);
}

static tn_values add_and_scale(void *user, tn_values in) {
    tn_tensor *sum = tn_add(tn_detach(in.v[0]), in.v[2]); /* the same elements: the same value */
    return TN_VALUES(tn_mul_scalar(sum, 3), in.v[2]);
}

/* Given names, an input that is absent, a constant, an input that is an output. */
TEST(a_function) {
    const char *path = temp_path("function.onnx");
    static const char *const inputs[] = {"a", "b", "c"}, *const outputs[] = {"y", "z"};
    tn_onnx_options options = TN_WITH(tn_onnx, .inputs = inputs, .outputs = outputs);
    tn_values in = TN_VALUES(tn_ones(TN_DIMS(2), TN_F32), NULL, tn_ones(TN_DIMS(2), TN_F32));
    assert_int_equal(tn_onnx_export_function(add_and_scale, NULL, NULL, in, path, options), TN_OK);
    assert_string_equal(tell_file(path), "input a\n"
                                         "input c\n"
                                         "output y\n"
                                         "output z\n"
                                         "Add a c > /add_3\n"
                                         "Mul /add_3 /mul_scalar_4 > /mul_scalar_5\n"
                                         "Identity /mul_scalar_5 > y\n"
                                         "Identity c > z\n"
                                         "initializer /mul_scalar_4\n");
}

/* An operation that the exporter has never seen, made of others. */
static bool third_shape(tn_op_call *c) {
    return tn_op_out_like(c, 0);
}
static tn_tensor *third_compose(tn_op_call *c) {
    return tn_exp(tn_neg(c->in[0]));
}
static tn_values apply_own(void *user, tn_values in) {
    static const tn_op own = {.name = "own", .shape = third_shape, .compose = third_compose};
    return TN_VALUES(tn_apply1(&own, NULL, in.v[0]));
}

TEST(an_operation_of_others) {
    const char *path = temp_path("own.onnx");
    tn_values in = TN_VALUES(tn_ones(TN_DIMS(2), TN_F32));
    tn_status status = tn_onnx_export_function(apply_own, NULL, NULL, in, path, tn_onnx_defaults());
    assert_int_equal(status, TN_OK);
    assert_string_equal(tell_file(path), "input input\n"
                                         "output output\n"
                                         "Neg input > /neg_2\n"
                                         "Exp /neg_2 > /exp_3\n"
                                         "Identity /exp_3 > output\n");
}

static tn_values product_of_all(void *user, tn_values in) {
    return TN_VALUES(tn_prod(in.v[0], TN_DIMS(), false));
}

/* It is made of others but has a counterpart, so what it runs is not written. */
TEST(a_whole_operation) {
    const char *path = temp_path("whole.onnx");
    tn_values in = TN_VALUES(tn_ones(TN_DIMS(3), TN_F32));
    assert_int_equal(
        tn_onnx_export_function(product_of_all, NULL, NULL, in, path, tn_onnx_defaults()), TN_OK);
    assert_string_equal(tell_file(path), "input input\n"
                                         "output output\n"
                                         "ReduceProd input > /prod_2\n"
                                         "Identity /prod_2 > output\n");
}

static tn_values clamp_far(void *user, tn_values in) {
    tn_tensor *open = tn_clamp(in.v[0], -INFINITY, INFINITY);
    return TN_VALUES(tn_clamp(tn_clamp(open, INFINITY, INFINITY), -INFINITY, -INFINITY));
}

/* A bound is left out only if it bounds nothing. */
TEST(bounds_that_are_infinite) {
    const char *path = temp_path("clamp.onnx");
    tn_values in = TN_VALUES(tn_ones(TN_DIMS(3), TN_F32));
    assert_int_equal(tn_onnx_export_function(clamp_far, NULL, NULL, in, path, tn_onnx_defaults()),
                     TN_OK);
    assert_string_equal(tell_file(path), "input input\n"
                                         "output output\n"
                                         "Clip input > /clamp_2\n"
                                         "Clip /clamp_2 /clamp_3 > /clamp_4\n"
                                         "Clip /clamp_4  /clamp_5 > /clamp_6\n"
                                         "Identity /clamp_6 > output\n"
                                         "initializer /clamp_3\n"
                                         "initializer /clamp_5\n");
}

/* Parameters are written as they are stored, and cast if the module computes in another dtype; also
 * the second time, when it has low-precision copies already. */
TEST(a_module_with_a_policy) {
    const char *path = temp_path("policy.onnx");
    tn_linear m;
    tn_linear_init(&m, 4, 2, tn_linear_defaults());
    tn_module_set_precision(&m, tn_precision_defaults());
    tn_module_train(&m, false);
    for (int i = 0; i < 2; i++) {
        tn_values in = TN_VALUES(tn_ones(TN_DIMS(3, 4), TN_F32));
        assert_int_equal(tn_onnx_export(&m, in, path, tn_onnx_defaults()), TN_OK);
        const char *text = tell_file(path);
        assert_contains(text, "Cast input > ");
        assert_contains(text, "Cast weight > ");
        assert_contains(text, "Cast bias > ");
        assert_contains(text, "initializer weight\ninitializer bias\n");
        assert_null(strstr(text, "initializer /"));
    }
    tn_module_finish(&m);
}

/* The offsets in descriptors' argument tables are within the arguments. */
TEST(fields_of_operations) {
    int found = 0;
    for (int i = 0; i < tn_op_count(); i++) {
        const tn_op *op = tn_op_at(i);
        for (int k = 0; k < TN_OP_FIELDS && op->fields[k].name; k++) {
            assert_true(op->fields[k].offset + op->fields[k].bytes <= op->args_size);
            found++;
        }
    }
    assert_true(found > 50);
}

/* ---- Windows --------------------------------------------------------------------------------- */

enum window_kind { CONV, CONV_TRANSPOSE, MAX_POOL, AVG_POOL };
typedef struct window {
    enum window_kind kind;
    tn_conv_options conv;
    tn_pool_options pool;
    tn_dims kernel;
    tn_tensor *weight;
} window;

static int64_t draw_integer(int64_t low, int64_t high) {
    return low + tn_random_below(tn_default_generator(), high - low + 1);
}

/* x is (2, 2, in, in); the window is not larger than its padded input. */
static window draw_window(int64_t in) {
    window w = {.kind = (enum window_kind)draw_integer(CONV, AVG_POOL)};
    w.conv = tn_conv_defaults();
    w.pool = tn_pool_defaults();
    w.conv.same = w.kind == CONV && draw_integer(0, 1);
    w.pool.ceil_mode = draw_integer(0, 1);
    w.kernel.ndim = w.conv.stride.ndim = w.conv.padding.ndim = w.conv.dilation.ndim =
        w.conv.output_padding.ndim = 2;
    for (int i = 0; i < 2; i++) {
        int64_t kernel = draw_integer(1, 4), dilation = w.kind == AVG_POOL ? 1 : draw_integer(1, 3);
        int64_t stride = w.conv.same ? 1 : draw_integer(1, 3),
                padding = draw_integer(0, kernel / 2);
        bool fits = w.kind == CONV_TRANSPOSE ? 2 * padding <= dilation * (kernel - 1)
                                             : dilation * (kernel - 1) < in + 2 * padding;
        fits = fits || w.conv.same;
        w.kernel.size[i] = fits ? kernel : 1;
        w.conv.padding.size[i] = fits ? padding : 0;
        w.conv.stride.size[i] = stride;
        w.conv.dilation.size[i] = dilation;
        w.conv.output_padding.size[i] =
            draw_integer(0, (stride > dilation ? stride : dilation) - 1);
    }
    w.pool.stride = w.conv.stride;
    w.pool.padding = w.conv.padding;
    w.pool.dilation = w.conv.dilation;
    w.weight = tn_ones(TN_DIMS(2, 2, w.kernel.size[0], w.kernel.size[1]), TN_F32);
    return w;
}

static tn_values slide_window(void *user, tn_values in) {
    const window *w = user;
    switch (w->kind) {
    case CONV:
        return TN_VALUES(tn_conv2d_op(in.v[0], w->weight, NULL, w->conv));
    case CONV_TRANSPOSE:
        return TN_VALUES(tn_conv_transpose2d_op(in.v[0], w->weight, NULL, w->conv));
    case MAX_POOL:
        return TN_VALUES(tn_max_pool2d_op(in.v[0], w->kernel, w->pool));
    default:
        return TN_VALUES(tn_avg_pool2d_op(in.v[0], w->kernel, w->pool));
    }
}

/* Whether field 1 of a message is this text. */
static bool is_called(const part *message, const char *name) {
    part p;
    for (const unsigned char *at = message->at; next_part(&at, message->at + message->value, &p);) {
        if (p.field == 1) { return p.value == strlen(name) && memcmp(p.at, name, p.value) == 0; }
    }
    return false;
}

/* The first part of a message with this field. */
static part first_part(const unsigned char *at, const unsigned char *end, int field) {
    part p = {0};
    while (next_part(&at, end, &p) && p.field != field) {}
    return p;
}

/* The integers of attribute `name` of the file's first node; how many. */
static int read_ints(const char *path, const char *name, int64_t *to) {
    size_t bytes;
    unsigned char *file = temp_read(path, &bytes);
    part graph = first_part(file, file + bytes, 7);
    part node = first_part(graph.at, graph.at + graph.value, 1), p, number;
    int n = 0;
    for (const unsigned char *at = node.at; next_part(&at, node.at + node.value, &p);) {
        bool here = p.field == 5 && is_called(&p, name);
        for (const unsigned char *in = p.at; here && next_part(&in, p.at + p.value, &number);) {
            if (number.field == 8) { to[n++] = (int64_t)number.value; }
        }
    }
    free(file);
    return n;
}

/* ONNX's formulas give the size of Tern's result; what the window's attributes cannot express is an
 * error. */
TEST(sizes_of_windows) {
    const char *path = temp_path("window.onnx");
    int refused = 0;
    for (int i = 0; i < 400; i++) {
        TN_SCOPE;
        TN_NO_GRAD;
        int64_t in = draw_integer(1, 7), strides[2], pads[4], dilations[2] = {1, 1},
                more[2] = {0, 0};
        window w = draw_window(in);
        tn_values x = TN_VALUES(tn_ones(TN_DIMS(2, 2, in, in), TN_F32)), y = slide_window(&w, x);
        tn_status status =
            tn_onnx_export_function(slide_window, &w, NULL, x, path, tn_onnx_defaults());
        if (status != TN_OK) {
            assert_error(TN_EUNSUPPORTED, "has no counterpart in ONNX with these arguments");
            refused++;
            continue;
        }
        assert_int_equal(read_ints(path, "strides", strides), 2);
        assert_int_equal(read_ints(path, "pads", pads), 4);
        read_ints(path, "dilations", dilations);
        read_ints(path, "output_padding", more);
        for (int d = 0; d < 2; d++) {
            int64_t span = dilations[d] * (w.kernel.size[d] - 1) + 1, pad = pads[d] + pads[2 + d];
            int64_t size = w.kind == CONV_TRANSPOSE ? (in - 1) * strides[d] + more[d] + span - pad
                                                    : (in + pad - span) / strides[d] + 1;
            assert_true(pads[d] >= 0 && pads[2 + d] >= 0);
            assert_int_equal(size, tn_size(y.v[0], 2 + d));
        }
    }
    assert_true(refused > 0 && refused < 100);
}

/* ---- Batches of any size --------------------------------------------------------------------- */

static tn_values in_rows(void *user, tn_values in) {
    tn_tensor *x = in.v[0];
    return TN_VALUES(tn_reshape(x, TN_DIMS(2 * tn_size(x, 0), 2)));
}

/* The size that a reshape needs is computed; input 1 keeps its own. */
TEST(a_batch_of_any_size) {
    const char *path = temp_path("batch.onnx");
    tn_onnx_options options = TN_WITH(tn_onnx, .batch_inputs = 1);
    tn_values in = TN_VALUES(tn_ones(TN_DIMS(1, 4), TN_F32), tn_ones(TN_DIMS(3), TN_F32));
    assert_int_equal(tn_onnx_export_function(in_rows, NULL, NULL, in, path, options), TN_OK);
    assert_string_equal(tell_file(path), "input input_0\n"
                                         "input input_1\n"
                                         "output output\n"
                                         "Shape input_0 > /batch_6\n"
                                         "Mul /batch_6 /batch_7 > /batch_8\n"
                                         "Add /batch_8 /batch_9 > /batch_10\n"
                                         "Identity /batch_10 > /reshape_3\n"
                                         "Reshape input_0 /reshape_3 > /reshape_4\n"
                                         "Identity /reshape_4 > output\n"
                                         "initializer /batch_7\n"
                                         "initializer /batch_9\n");
    size_t bytes;
    unsigned char *file = temp_read(path, &bytes);
    int found = 0;
    for (size_t i = 0; i + 7 < bytes; i++) {
        found += memcmp(file + i,
                        "\x12\x05"
                        "batch",
                        7) == 0; /* a dimension's name */
    }
    assert_int_equal(found, 1);
    free(file);
}

static tn_values otherwise_when_large(void *user, tn_values in) {
    return TN_VALUES(tn_size(in.v[0], 0) > 3 ? tn_exp(in.v[0]) : tn_neg(in.v[0]));
}

static tn_values share_of_rows(void *user, tn_values in) {
    return TN_VALUES(tn_mul_scalar(in.v[0], 1.0 / (double)tn_size(in.v[0], 0)));
}

static tn_values squares_of_rows(void *user, tn_values in) {
    int64_t n = tn_size(in.v[0], 0);
    return TN_VALUES(tn_expand(tn_sum_all(in.v[0]), TN_DIMS(n * n)));
}

static tn_values add_rows(void *user, tn_values in) {
    return TN_VALUES(tn_add(in.v[0], tn_arange(0, (double)tn_size(in.v[0], 0), 1, TN_F32)));
}

TEST(what_a_batch_cannot_be) {
    static const struct {
        tn_forward f;
        uint32_t inputs;
        tn_status status;
        const char *part;
    } cases[] = {
        {otherwise_when_large, 1, TN_EUNSUPPORTED, "the operations, or their arguments, depend"},
        {share_of_rows, 1, TN_EUNSUPPORTED, "the values of a constant"},
        {squares_of_rows, 1, TN_EUNSUPPORTED, "do not grow by the same amount"},
        {add_rows, 1, TN_EUNSUPPORTED, "the shape of a constant"},
        {share_of_rows, 3, TN_ESHAPE, "input 1 is [3] and does not have the batch size"},
        {share_of_rows, 4, TN_EVALUE, "batch_inputs names no input"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        TN_SCOPE;
        tn_onnx_options options = TN_WITH(tn_onnx, .batch_inputs = cases[i].inputs);
        const char *path = temp_path("no_batch.onnx");
        tn_values in = TN_VALUES(tn_ones(TN_DIMS(2), TN_F32), tn_ones(TN_DIMS(3), TN_F32));
        tn_status status = tn_onnx_export_function(cases[i].f, NULL, NULL, in, path, options);
        assert_int_equal(status, cases[i].status);
        assert_error(cases[i].status, cases[i].part);
        assert_int_not_equal(access(path, F_OK), 0);
    }
}

/* ---- What cannot be expressed ---------------------------------------------------------------- */

static tn_values drop_half(void *user, tn_values in) {
    return TN_VALUES(tn_dropout_op(in.v[0], 0.5));
}

static tn_values change_input(void *user, tn_values in) {
    tn_tensor *y = tn_exp(in.v[0]);
    tn_mul_scalar_(y, 2);
    return TN_VALUES(tn_neg(y));
}

static tn_values gather_in_place(void *user, tn_values in) {
    tn_tensor *all = tn_zeros(TN_DIMS(2, 2), TN_F32);
    tn_copy_(tn_select(all, 0, 0), in.v[0]);
    return TN_VALUES(tn_neg(all));
}

static tn_values change_constant(void *user, tn_values in) {
    tn_tensor *c = tn_zeros(TN_DIMS(2), TN_F32), *y = tn_add(in.v[0], c);
    tn_fill_(c, 77);
    return TN_VALUES(y);
}

static tn_values select_from_huge(void *user, tn_values in) {
    tn_tensor *huge = tn_expand(tn_ones(TN_DIMS(1), TN_F32), TN_DIMS((int64_t)1 << 29));
    return TN_VALUES(tn_index_select(huge, 0, tn_cast(in.v[0], TN_I64)));
}

static tn_values pool_unevenly(void *user, tn_values in) {
    tn_tensor *x = tn_repeat(tn_reshape(in.v[0], TN_DIMS(1, 1, 2)), TN_DIMS(1, 1, 2));
    return TN_VALUES(tn_adaptive_avg_pool1d_op(x, TN_DIMS(3)));
}

static tn_values return_nothing(void *user, tn_values in) {
    return (tn_values){0};
}

TEST(what_cannot_be_said) {
    static const struct {
        tn_forward f;
        tn_status status;
        const char *part;
    } cases[] = {
        {drop_half, TN_EUNSUPPORTED, "dropout [2] has no counterpart in ONNX (tn_module_train"},
        {change_input, TN_EUNSUPPORTED, "neg: x [2] was changed in place"},
        {gather_in_place, TN_EUNSUPPORTED, "copy_: a tensor is changed in place by [2]"},
        {change_constant, TN_EUNSUPPORTED, "[2] was changed in place after it was used"},
        {select_from_huge, TN_EUNSUPPORTED, "fewer than 2 GiB"},
        {pool_unevenly, TN_EUNSUPPORTED,
         "avg_pool [1, 1, 4] has no counterpart in ONNX with these"},
        {return_nothing, TN_EVALUE, "the forward returns 0 tensors"},
        {NULL, TN_EVALUE, "the function is NULL"},
    };
    const char *path = temp_path("not.onnx");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        TN_SCOPE;
        tn_values in = TN_VALUES(tn_ones(TN_DIMS(2), TN_F32));
        tn_status status =
            tn_onnx_export_function(cases[i].f, NULL, NULL, in, path, tn_onnx_defaults());
        assert_int_equal(status, cases[i].status);
        assert_error(cases[i].status, cases[i].part);
        assert_int_not_equal(access(path, F_OK), 0);
        tn_mul_scalar_(tn_exp(in.v[0]), 2); /* nothing is tracing any more */
        assert_int_equal(tn_error(), TN_OK);
    }
}

static tn_status export_named(const char *input, const char *output) {
    TN_SCOPE;
    tn_linear m;
    tn_onnx_options options = TN_WITH(tn_onnx, .inputs = &input, .outputs = &output);
    tn_linear_init(&m, 4, 2, tn_linear_defaults());
    tn_module_train(&m, false);
    tn_values in = TN_VALUES(tn_ones(TN_DIMS(3, 4), TN_F32));
    tn_status status = tn_onnx_export(&m, in, temp_path("named.onnx"), options);
    tn_module_finish(&m);
    return status;
}

TEST(wrong_names) {
    assert_int_equal(export_named("x", "y"), TN_OK);
    assert_int_equal(export_named("weight", "y"), TN_EVALUE);
    assert_error(TN_EVALUE, "input 0 is called weight, like something else");
    assert_int_equal(export_named("x", "x"), TN_EVALUE);
    assert_error(TN_EVALUE, "output 0 is called x");
    assert_int_equal(export_named("/x", "y"), TN_EVALUE);
    assert_error(TN_EVALUE, "begins with '/'");
    assert_int_equal(export_named("x", ""), TN_EVALUE);
    assert_error(TN_EVALUE, "output 0 is empty");
}

TEST(a_module_that_trains) {
    tn_sequential *m = TN_SEQUENTIAL(tn_linear_new(4, 4), tn_dropout_new(0.5));
    tn_values in = TN_VALUES(tn_ones(TN_DIMS(3, 4), TN_F32));
    const char *path = temp_path("trains.onnx");
    assert_int_equal(tn_onnx_export(m, in, path, tn_onnx_defaults()), TN_ESTATE);
    assert_error(TN_ESTATE, "sequential is in training mode");
    tn_module_train(m, false);
    assert_int_equal(tn_onnx_export(m, in, path, tn_onnx_defaults()), TN_OK);
    assert_int_equal(tn_onnx_export(m, (tn_values){0}, path, tn_onnx_defaults()), TN_EVALUE);
    tn_error_clear();
    tn_module_free(m);
}
