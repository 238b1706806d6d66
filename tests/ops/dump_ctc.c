/* CTC losses of random shapes, for test_ctc_torch.py:  dump_ctc FILE
 *
 * CASE/options   i64: blank, reduction (0 none, 1 mean, 2 sum), zero_infinity
 * CASE/x         log-probabilities (T, N, C), and CASE/targets, CASE/frames, CASE/labels
 * CASE/y, CASE/dy, CASE/gx     the loss, what it is weighted with, the gradient of x
 */
#include "tests/support/dump.h"

/* Targets from few classes, so that labels repeat; never the blank. */
static tn_tensor *draw_targets(tn_dims dims, int64_t classes, int64_t blank) {
    tn_tensor *drawn = tn_randint(0, classes - 1, dims, TN_I64);
    tn_tensor *next = tn_add(drawn, tn_ones(TN_DIMS(), TN_I64));
    return tn_where(tn_ge(drawn, tn_full(TN_DIMS(), (double)blank, TN_I64)), next, drawn);
}

static void dump_case(const char *name, int i, tn_dtype dtype) {
    TN_SCOPE;
    static const tn_reduction hows[] = {TN_NONE, TN_MEAN, TN_SUM};
    int64_t T = draw_whole(1, 30), N = draw_whole(1, 6), C = draw_whole(2, 9), S = draw_whole(1, 8);
    int64_t blank = draw_whole(0, C - 1), how = i % 3;
    bool joined = draw_whole(0, 1), infinity = draw_whole(0, 1);
    tn_tensor *frames = tn_randint(0, T + 1, TN_DIMS(N), TN_I64),
              *labels = tn_randint(0, S + 1, TN_DIMS(N), TN_I64);
    int64_t all = (int64_t)tn_item(tn_sum_all(labels));
    tn_tensor *targets = draw_targets(joined ? TN_DIMS(all) : TN_DIMS(N, S), C, blank);
    tn_tensor *x = tn_log_softmax(tn_mul_scalar(tn_randn(TN_DIMS(T, N, C), dtype), 2.0), 2);
    tn_set_requires_grad(x, true);
    tn_ctc_options o = tn_ctc_defaults();
    o.blank = blank;
    o.reduction = hows[how];
    o.zero_infinity = infinity;
    tn_tensor *y = tn_ctc(x, targets, frames, labels, o);
    tn_tensor *dy = tn_randn(tn_shape(y), tn_dtype_of(y));
    tn_backward_from(&y, &dy, 1, false);
    int64_t options[] = {blank, how, infinity};
    add_tensor(name, "options", "", tn_from_data(options, TN_DIMS(3), TN_I64));
    add_tensor(name, "x", "", x);
    add_tensor(name, "targets", "", targets);
    add_tensor(name, "frames", "", frames);
    add_tensor(name, "labels", "", labels);
    add_tensor(name, "y", "", y);
    add_tensor(name, "dy", "", dy);
    add_tensor(name, "gx", "", tn_grad_of(x));
}

int main(int argc, char **argv) {
    if (!dump_begin(argc, argv)) { return 1; }
    char name[16];
    for (int i = 0; i < 48; i++) {
        snprintf(name, sizeof(name), "case_%02d", i);
        dump_case(name, i, i % 4 ? TN_F64 : TN_F32);
    }
    return tn_safetensors_writer_save(writer, argv[1]) == TN_OK ? 0 : 1;
}
