/* The CPU's kernels inside a program's own parallel regions. Their results: test_kernels_*.c. */
#include "trial.h"

#include <omp.h>

/* From inside a parallel region the kernels run serially, with the same bits. */
ARRAY_TEST(test_nested) {
    const int64_t n = 300;
    array a = varied_array(TN_F32, DENSE, 3, SIZES(1, n, n), 1),
          b = varied_array(TN_F32, DENSE, 3, SIZES(1, n, n), 2);
    array alone = make_array(TN_F32, DENSE, 3, SIZES(1, n, n)), inside[3], sums[3],
          sum = make_array(TN_F32, DENSE, 3, SIZES(1, 1, 1));
    const tn_backend *t = tn_backend_named("cpu");
    assert_int_equal(TRIAL_CALL(t, matmul, &alone.d, &a.d, &b.d, 1, 0), TN_OK);
    assert_int_equal(TRIAL_CALL(t, reduce, TN_SUM, &sum.d, &alone.d), TN_OK);
    for (int i = 0; i < 3; i++) {
        inside[i] = make_array(TN_F32, DENSE, 3, SIZES(1, n, n));
        sums[i] = make_array(TN_F32, DENSE, 3, SIZES(1, 1, 1));
    }
#pragma omp parallel for num_threads(3)
    for (int i = 0; i < 3; i++) {
        TRIAL_CALL(t, matmul, &inside[i].d, &a.d, &b.d, 1, 0);
        TRIAL_CALL(t, reduce, TN_SUM, &sums[i].d, &inside[i].d);
    }
    for (int i = 0; i < 3; i++) {
        assert_memory_equal(inside[i].memory, alone.memory, alone.bytes);
        assert_memory_equal(sums[i].memory, sum.memory, sum.bytes);
    }
}
