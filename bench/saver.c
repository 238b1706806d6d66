/* How long a sharded save stalls training, compared with a plain copy of the data: `saver [WIDTH]
 * [ROUNDS] [FOLDER]`, one rank with a linear layer of WIDTH x WIDTH (6144) and Adam's state, in a
 * folder that is removed afterwards. Prints lines "NAME MS", medians of the rounds after the first:
 *
 *   copy    memcpy of parameters and state to memory that is there, with one thread
 *   first   the first save until it returns: its copies are new memory, which stays mapped
 *   save    later saves until they return, while nothing is being written
 *   write   from there until the step is committed: a thread's time, not training's
 *   plain   tn_checkpoint_save of the same
 */
#include "bench/bench.h"

#include <unistd.h>

typedef struct run {
    tn_linear net;
    tn_optim *optim;
    tn_checkpoint checkpoint;
    tn_saver *saver;
    char *copy; /* as large as the state */
    size_t bytes;
} run;

static void must_work(tn_status status) {
    if (status != TN_OK) {
        fprintf(stderr, "%s\n", tn_error_message());
        exit(1);
    }
}

static void copy_tensor(run *r, tn_tensor *t, bool count) {
    size_t bytes = (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t));
    if (!count) { memcpy(r->copy + r->bytes, tn_data(t), bytes); }
    r->bytes += bytes;
}

static bool copy_state(const char *name, tn_tensor *t, void *user) {
    run *r = user;
    copy_tensor(r, t, r->copy == NULL);
    return true;
}

static double copy_all(run *r) {
    double start = bench_now();
    r->bytes = 0;
    copy_tensor(r, r->net.weight, r->copy == NULL);
    tn_optim_each(r->optim, copy_state, r);
    return (bench_now() - start) * 1e3;
}

static void save_rounds(run *r, int rounds, const char *path) {
    double *ms[4], first = 0;
    for (int k = 0; k < 4; k++) {
        ms[k] = calloc((size_t)rounds + 1, sizeof(double));
    }
    for (int i = 0; i <= rounds; i++) {
        ms[0][i] = copy_all(r);
        r->checkpoint.step++;
        double start = bench_now();
        must_work(tn_saver_save(r->saver, &r->checkpoint));
        ms[1][i] = (bench_now() - start) * 1e3;
        start = bench_now();
        must_work(tn_saver_wait(r->saver));
        ms[2][i] = (bench_now() - start) * 1e3;
        start = bench_now();
        must_work(tn_checkpoint_save(&r->checkpoint, path));
        ms[3][i] = (bench_now() - start) * 1e3;
        first = i == 0 ? ms[1][0] : first;
    }
    static const char *const names[] = {"copy", "save", "write", "plain"};
    printf("MiB %.0f\nfirst %.1f\n", (double)r->bytes / (1 << 20), first);
    for (int k = 0; k < 4; k++) {
        printf("%s %.1f\n", names[k], bench_median(ms[k] + 1, rounds));
        free(ms[k]);
    }
}

int main(int argc, char **argv) {
    int64_t width = argc > 1 ? atoll(argv[1]) : 6144;
    int rounds = argc > 2 ? atoi(argv[2]) : 5;
    char folder[256], path[300], command[300];
    snprintf(folder, sizeof(folder), "%s/tern_bench_XXXXXX", argc > 3 ? argv[3] : "/tmp");
    if (rounds < 1 || !mkdtemp(folder)) {
        fprintf(stderr, "no rounds, or no folder\n");
        return 1;
    }
    snprintf(path, sizeof(path), "%s/plain", folder);
    run r = {0};
    tn_linear_init(&r.net, width, width, TN_WITH(tn_linear, .bias = false));
    r.optim = tn_adamw(&r.net, tn_adamw_defaults());
    r.saver = tn_saver_new(NULL, folder, tn_saver_defaults());
    r.checkpoint = (tn_checkpoint){.model = &r.net, .optim = r.optim};
    copy_all(&r); /* how much it is */
    r.copy = malloc(r.bytes);
    must_work(r.copy && r.saver ? TN_OK : TN_ENOMEM);
    memset(r.copy, 0, r.bytes);
    save_rounds(&r, rounds, path);
    tn_saver_free(r.saver);
    tn_optim_free(r.optim);
    tn_module_finish(&r.net);
    free(r.copy);
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    return system(command) != 0;
}
