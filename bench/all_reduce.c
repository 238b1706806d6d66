/* One rank of an all-reduce of f32, compared with what the memory bandwidth allows: `all_reduce
 * ENGINE ROUNDS MIB …`, started once for each rank with the variables of a launcher (all_reduce.py
 * does it). Rank 0 prints lines "NAME MIB MS", the medians of the rounds:
 *
 *   shared   a tensor of tn_group_empty, which the shm engine need not copy
 *   private  any other tensor
 *   limit    each rank adds a number to its own tensor of this size, all ranks at once: the same
 *            traffic, since an all-reduce must read and write every rank's tensor once
 */
#include "bench/bench.h"

static void must_work(tn_status status) {
    if (status != TN_OK) {
        fprintf(stderr, "%s\n", tn_error_message());
        exit(1);
    }
}

static void add_number(float *x, int64_t n, float number) {
    for (int64_t i = 0; i < n; i++) {
        x[i] += number;
    }
}

/* Seconds from the moment when all ranks have arrived to the end of the operation. */
static double time_all_reduce(tn_group *g, tn_tensor *t) {
    must_work(tn_barrier(g));
    double start = bench_now();
    must_work(tn_work_wait(tn_all_reduce(g, t, TN_MEAN), 0));
    return bench_now() - start;
}

/* The same, until all ranks have added. */
static double time_add(tn_group *g, tn_tensor *t) {
    float *x = tn_data_mut(t);
    must_work(tn_barrier(g));
    double start = bench_now();
    add_number(x, tn_count(t), 1.0f);
    must_work(tn_barrier(g));
    return bench_now() - start;
}

static double best_of(double (*measure)(tn_group *, tn_tensor *), tn_group *g, tn_tensor *t,
                      int times) {
    double best = measure(g, t);
    for (int i = 1; i < times; i++) {
        double seconds = measure(g, t);
        best = seconds < best ? seconds : best;
    }
    return best;
}

/* A mean of ones stays one. */
static tn_tensor *checked_tensor(tn_tensor *t) {
    const float *x = tn_data(t);
    if (x[0] != 1.0f || x[tn_count(t) / 2] != 1.0f || x[tn_count(t) - 1] != 1.0f) {
        fprintf(stderr, "the result is wrong\n");
        exit(1);
    }
    return t;
}

static tn_tensor *fill_ones(tn_tensor *t) {
    float *x = tn_data_mut(t);
    for (int64_t i = 0; i < tn_count(t); i++) {
        x[i] = 1.0f;
    }
    return t;
}

enum { MOST_ROUNDS = 100 };

static void measure_mib(tn_group *g, int rounds, long mib) {
    TN_SCOPE;
    bool has_memory = strcmp(tn_group_engine(g), "shm") == 0;
    int times = mib <= 1 ? 50 : 3;
    double shared_ms[MOST_ROUNDS], private_ms[MOST_ROUNDS], limit_ms[MOST_ROUNDS];
    tn_dims dims = TN_DIMS(mib << 18);
    tn_tensor *shared = has_memory ? fill_ones(tn_group_empty(g, dims, TN_F32)) : NULL;
    tn_tensor *private = fill_ones(tn_empty(dims, TN_F32));
    must_work(tn_error());
    for (int r = 0; r < rounds; r++) {
        shared_ms[r] = shared ? best_of(time_all_reduce, g, shared, times) * 1e3 : 0.0;
        private_ms[r] = best_of(time_all_reduce, g, checked_tensor(private), times) * 1e3;
        limit_ms[r] = best_of(time_add, g, private, times) * 1e3;
        fill_ones(private);
    }
    if (tn_group_rank(g) == 0) {
        if (shared) { printf("shared %ld %.4f\n", mib, bench_median(shared_ms, rounds)); }
        printf("private %ld %.4f\n", mib, bench_median(private_ms, rounds));
        printf("limit %ld %.4f\n", mib, bench_median(limit_ms, rounds));
        fflush(stdout);
    }
    if (shared) { checked_tensor(shared); }
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "all_reduce ENGINE ROUNDS MIB …\n");
        return 2;
    }
    tn_on_error(tn_error_exit);
    tn_dist_options o = tn_dist_defaults();
    o.engine = argv[1];
    tn_group *g = tn_dist_init(o);
    int asked = atoi(argv[2]), rounds = asked < 1 ? 1 : asked > MOST_ROUNDS ? MOST_ROUNDS : asked;
    for (int i = 3; i < argc; i++) {
        measure_mib(g, rounds, atol(argv[i]));
    }
    tn_dist_finish();
    return 0;
}
