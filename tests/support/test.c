#include "tests/support/test.h"

#include "tern/autograd.h"
#include "tern/tensor.h"

#include <math.h>
#include <string.h>

/* ---- Around each test ------------------------------------------------------------------------ */

static int64_t live_before;
static tn_scope scope_of_test;

int test_no_error(void **state) {
    tn_error_clear();
    return 0;
}

int test_begin(void **state) {
    static const bool record = true;
    tn_error_clear(); /* a test that failed may have left either */
    tn_grad_mode_end(&record);
    tn_seed(1);
    live_before = tn_live_tensors();
    scope_of_test = tn_scope_begin(__FILE__, __LINE__);
    return 0;
}

int test_end(void **state) {
    tn_scope_end(&scope_of_test);
    assert_string_equal(tn_error_message(), "");
    assert_int_equal(tn_live_tensors(), live_before);
    return 0;
}

/* ---- Numbers --------------------------------------------------------------------------------- */

bool is_near(double a, double b, double within) {
    return a == b || fabs(a - b) <= within;
}

void assert_near_at(double a, double b, double within, const char *file, int line) {
    if (!is_near(a, b, within)) {
        print_error("ERROR: %.17g and %.17g are not within %g\n", a, b, within);
        _fail(file, line);
    }
}

/* ---- Expected errors ------------------------------------------------------------------------- */

void assert_fails_at(tn_status returned, tn_status status, const char *part, const char *file,
                     int line) {
    if (returned != status) {
        print_error("ERROR: it returned %s, not %s\n", tn_status_name(returned),
                    tn_status_name(status));
        _fail(file, line);
    }
    assert_error_at(status, part, file, line);
}

void assert_none_at(const void *returned, tn_status status, const char *part, const char *file,
                    int line) {
    if (returned) {
        print_error("ERROR: it is not NULL\n");
        _fail(file, line);
    }
    assert_error_at(status, part, file, line);
}

void assert_contains_at(const char *text, const char *part, const char *file, int line) {
    if (!strstr(text, part)) {
        print_error("ERROR: \"%s\" does not contain \"%s\"\n", text, part);
        _fail(file, line);
    }
}

void assert_error_at(tn_status status, const char *part, const char *file, int line) {
    if (tn_error() != status) {
        print_error("ERROR: the error is %s \"%s\", not %s\n", tn_status_name(tn_error()),
                    tn_error_message(), tn_status_name(status));
        _fail(file, line);
    }
    assert_contains_at(tn_error_message(), part, file, line);
    tn_error_clear();
}

void assert_inert_at(const tn_tensor *t, tn_status status, const char *part, const char *file,
                     int line) {
    if (!tn_is_inert(t)) {
        print_error("ERROR: the tensor is not inert\n");
        _fail(file, line);
    }
    assert_error_at(status, part, file, line);
}
