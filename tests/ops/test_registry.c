/* Every operation of the registry, on every sample that it declares: gradients, layouts, dtypes,
 * ownership (ops/check.c), with the fast kernels and with the reference. One test per operation, so
 * a new one is covered once it is listed. An argument selects one operation.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

#include <tern/sys/op.h>
#include <tern/tern.h>

static void check_operation(void **state) {
    const tn_op *op = *state;
    assert_ptr_equal(tn_op_named(op->name), op);
    const char *tables[] = {"cpu", "ref"};
    int runs = tn_default_device().kind == TN_CPU ? 2 : 1; /* a device has one table */
    for (int i = 0; i < runs; i++) {
        const tn_backend *table = tn_backend_named(tables[i]);
        assert_non_null(table);
        tn_backend_use(table);
        if (tn_op_check(op) != TN_OK) {
            print_error("%s kernels: %s\n", tables[i], tn_error_message());
            tn_error_clear();
            tn_backend_use(NULL);
            fail();
        }
    }
    tn_backend_use(NULL);
}

static void no_samples(tn_op_samples *s) {}

static void too_many_inputs(tn_op_samples *s) {
    tn_sample_add(s, &(tn_sample){.inputs = TN_OP_INPUTS + 1});
}

static void values_without_values(tn_op_samples *s) {
    tn_sample_add(s, &(tn_sample){.inputs = 1, .in = {tn_spec_values(TN_DIMS(2), NULL)}});
}

static void args_that_are_missing(tn_op_samples *s) {
    tn_sample_add(s, &(tn_sample){.inputs = 1, .in = {tn_spec_real(TN_DIMS(2), 0, 1)}});
}

static void checked_as(void (*samples)(tn_op_samples *s), const char *name, const char *part) {
    tn_op op = *tn_op_named(name);
    op.samples = NULL;
    op.add_samples = samples;
    assert_int_equal(tn_op_check(&op), TN_EVALUE);
    assert_error(TN_EVALUE, part);
}

typedef struct dim_args {
    int dim;
    bool keepdim;
} dim_args;

/* Samples as text, written back: shapes, what they hold, the arguments. */
static void write_sample(tn_op_samples *s, const tn_sample *sample) {
    static const char kinds[] = "rdibyv-"; /* by tn_spec_kind */
    char *to = s->user;
    for (int i = 0; i < sample->inputs; i++) {
        const tn_spec *spec = &sample->in[i];
        bool absent = spec->kind == TN_SPEC_ABSENT;
        double first = spec->kind == TN_SPEC_VALUES ? spec->values[0] : spec->low,
               last = spec->kind == TN_SPEC_VALUES ? spec->values[1] : spec->high;
        to += sprintf(to, "%c%d ", kinds[spec->kind], absent ? 0 : spec->dims.ndim);
        to += absent ? 0 : sprintf(to, "%g %g ", first, last);
    }
    const dim_args *args = sample->args;
    if (args) { to += sprintf(to, "dim %d%s", args->dim, args->keepdim ? " kept" : ""); }
    s->user = to + sprintf(to, "(%s)%s\n", sample->text, sample->no_second ? " once" : "");
}

PLAIN_TEST(samples_as_text) {
    char written[400] = "";
    tn_op_samples s = {.add = write_sample, .user = written};
    tn_op op = *tn_op_named("argmax");
    op.sample_args = &(const dim_args){7, false};
    op.samples = "[2, 3] dim=-1, keepdim=True; {0.5:2, distinct -1:1, bool} [] [4] - [1]; "
                 "[3]<7 [2]=(-1.5, inf) dim=1; {once byte} [0]";
    tn_op_list_samples(&op, &s);
    assert_string_equal(written, "r2 -3 3 dim -1 kept(dim=-1, keepdim=True)\n"
                                 "r0 0.5 2 d1 -1 1 -0 b1 0 2 dim 7()\n"
                                 "i1 0 7 v1 -1.5 inf dim 1(dim=1)\n"
                                 "y1 -127 128 dim 7() once\n");
    char usual[2000] = "";
    s.user = usual;
    op.samples = "* *; {0:1} ** ** dim=1";
    tn_op_list_samples(&op, &s);
    assert_non_null(strstr(usual, "r2 -3 3 r2 -3 3 dim 7()\nr3 -3 3 r3 -3 3 dim 7()\nr0 -3 3 r0 "));
    assert_non_null(strstr(usual, "r2 0 1 r1 0 1 dim 1(dim=1)\nr1 0 1 r2 0 1 dim 1(dim=1)\n"));
    int lines = 0;
    for (const char *at = usual; (at = strchr(at, '\n')); at++) {
        lines++;
    }
    assert_int_equal(lines, 9 + 15);
    static const char *const wrong[] = {"[2] dims=1",
                                        "[2] dim=",
                                        "[2] dim=one",
                                        "[2]=(1)",
                                        "[2",
                                        "[x]",
                                        "[1,1,1,1,1,1,1,1,1]",
                                        "------- - -",
                                        "[2] keepdim=2",
                                        "{distict 0:1} [2] dim=0",
                                        "***",
                                        "* * **",
                                        "* dim=1x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        op.samples = wrong[i];
        tn_op_list_samples(&op, &s);
        assert_error(TN_EVALUE, "argmax: its samples cannot be read from here on: ");
    }
}

PLAIN_TEST(without_samples_fails) {
    checked_as(NULL, "exp", "exp: samples is NULL");
    checked_as(no_samples, "exp", "exp: the operation has no samples");
    checked_as(too_many_inputs, "exp", "exp: sample 0 has 9 inputs (0 to 8)");
    checked_as(values_without_values, "exp", "exp: sample 0: the values of input 0 are NULL");
    checked_as(args_that_are_missing, "softmax", "softmax: sample 0 ([2]; ), contiguous: ");
    assert_int_equal(tn_op_check(NULL), TN_EVALUE);
    assert_error(TN_EVALUE, "op_check: the operation is NULL");
    assert_int_equal(tn_op_check(&(tn_op){.name = "bare"}), TN_EVALUE);
    assert_error(TN_EVALUE, "bare: its shape is NULL");
}

int main(int argc, char **argv) {
    if (argc > 1) { cmocka_set_test_filter(argv[1]); }
    for (int i = 0; i < tn_op_count(); i++) {
        test_add(tn_op_at(i)->name, check_operation, NULL, NULL, (void *)tn_op_at(i), -1);
    }
    return tests_run(NULL, NULL);
}
