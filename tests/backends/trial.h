/* Fast kernels against ref: every entry of the kernel table on every table that this process tries.
 *
 * A trial names its outputs and a function that makes the call on them. trial_run makes the call
 * once on ref, and on each table in several ways. It compares the status and every element, and
 * checks that nothing outside the elements (gaps) was written and that each way has the same bits.
 *
 *     static tn_status call_exp(const tn_backend *t, const tn_desc *const *out, void *user) {
 *         return TRIAL_CALL(t, unary, TN_EXP, out[0], user, 0, 0);
 *     }
 *     array x = varied_array(TN_F32, SPREAD, 2, SIZES(3, 5), 1);
 *     array y = make_array(TN_F32, DENSE, 2, SIZES(3, 5));
 *     trial t = {"exp", 1, {y}, call_exp, &x.d, .relative = 1e-6};
 *     trial_run(&t);
 *     trial_forget();                      between cases: frees the arrays
 *     … {TRIAL_TEST(test_exp)} …           makes two tests of them
 *
 * Which tables: the CPU's levels and the twin of tiles (with TERN_CPU only the one that it names),
 * each with 1, 2 and 3 threads. With TERN_TEST_CUDA=emulator or =device it is cuda's table instead:
 * over the emulator (with TERN_CUDA=cuda_emulator) blocks run forwards, backwards and shuffled; on
 * a real device the call is repeated. Each program test_kernels_*.c is therefore run twice: as
 * backends/kernels_x and as cuda/kernels_x.
 *
 * Operands are in memory that the host and the kernels both reach: malloc (so that the address
 * sanitizer watches the kernels of the CPU and of the emulator), or page-locked memory for a real
 * device.
 */
#ifndef TERN_TESTS_BACKENDS_TRIAL_H
#define TERN_TESTS_BACKENDS_TRIAL_H

#include "arrays.h"

enum { TRIAL_OUTPUTS = 6, TRIAL_TABLES = 6 };

typedef struct trial {
    const char *name;
    int outputs;
    array start[TRIAL_OUTPUTS]; /* copied before each call: the initial contents of the outputs */
    tn_status (*call)(const tn_backend *t, const tn_desc *const *out, void *user);
    void *user;
    /* A float may differ by relative max(1, |expected|) + absolute, and by one step of bf16 or f16.
     * Both 0: the same value, whatever the dtype. Where cuda's mathematics library needs more:
     * trial_on_cuda() ? 4e-6 : 2e-6, with the reason. */
    double relative, absolute;
} trial;

void trial_run(const trial *t);

/* Two tests of a function: in the second, the dimensions of dense arrays have any order in memory,
 * which a kernel must not take for row-major. */
#define TRIAL_TEST(name)                                                                  \
    static void name(void **state);                                                       \
    __attribute__((constructor)) static void register_##name(void) {                      \
        test_add(#name, name, NULL, arrays_free, NULL, __COUNTER__);                      \
        test_add(#name "_in_any_order", name, trial_in_any_order, trial_order_ends, NULL, \
                 __COUNTER__);                                                            \
    }                                                                                     \
    static void name(void **state)
static inline int trial_in_any_order(void **state) {
    array_any_order = true;
    return 0;
}
static inline int trial_order_ends(void **state) {
    array_any_order = false;
    return arrays_free(state);
}

/* The tables to try, ended by NULL. */
const tn_backend *const *trial_tables(void);
/* ref and those, for tests that know the results themselves. */
const tn_backend *const *trial_and_ref(void);
bool trial_on_cuda(void);
/* On the emulator a thread is a fibre, and large cases take long. */
bool trial_on_emulator(void);

/* The ways in which each call is tried: numbers of threads, or orders of blocks. */
enum { TRIAL_WAYS = 3 };
void trial_set_way(const tn_backend *t, int way);
const char *trial_way_name(const tn_backend *t, int way);

/* The context for calls on this table, which becomes the one in use, and the status after its
 * device has done the work. A bad index may be reported by the entry or here; the context then has
 * its position and value. */
tn_context *trial_context(const tn_backend *t);
tn_status trial_wait(const tn_backend *t, tn_status status);

/* Checks that the call found this bad index, at once or late. */
static inline void trial_expect_bad(const tn_backend *t, tn_status status, int64_t position,
                                    int64_t value) {
    assert_int_equal(trial_wait(t, status), TN_EINDEX);
    assert_int_equal(trial_context(t)->bad_position, position);
    assert_int_equal(trial_context(t)->bad_value, value);
}

/* Calls an entry in the table's context. TN_EUNSUPPORTED if there is none, which fails the trial.
 */
#define TRIAL_CALL(t, entry, ...) \
    ((t)->entry ? (t)->entry(trial_context(t), __VA_ARGS__) : TN_EUNSUPPORTED)

/* The spacing of numbers at 1; 0 for f32 and f64. */
static inline double step_of(tn_dtype dtype) {
    return dtype == TN_BF16 ? 0x1p-7 : dtype == TN_F16 ? 0x1p-10 : 0;
}

/* ---- Operands -------------------------------------------------------------------------------- */

#define SIZES(...) ((const int64_t[]){__VA_ARGS__})

static inline array make_array(tn_dtype dtype, array_layout layout, int ndim, const int64_t *size) {
    return array_new(dtype, layout, ndim, size);
}

static inline array varied_array(tn_dtype dtype, array_layout layout, int ndim, const int64_t *size,
                                 int64_t salt) {
    array a = make_array(dtype, layout, ndim, size);
    array_vary(&a, salt);
    return a;
}

/* The same memory, broadcast along dim. */
static inline tn_desc broadcast_along(const array *a, int dim, int64_t size) {
    tn_desc d = a->d;
    d.size[dim] = size;
    d.stride[dim] = 0;
    return d;
}

/* Special values at the start, if they fit. */
static inline void spoil_front(array *a) {
    static const double odd[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-40, 100, -100};
    for (int64_t i = 0; i < 8 && a->count > 16; i++) {
        array_set(a, 3 * i % a->count, odd[i]);
    }
}

/* Called between cases: arrays are many and large. */
static inline void trial_forget(void) {
    arrays_free(NULL);
}

/* Empty, one, odd, longer than a row of blocks, larger than a chunk. */
static const int64_t trial_shapes[][3] = {
    {0, 3, 2}, {1, 1, 1}, {3, 5, 7}, {2, 1, 2050}, {33, 40, 31}};
enum { TRIAL_SHAPES = sizeof(trial_shapes) / sizeof(*trial_shapes) };

#endif
