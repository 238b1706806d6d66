/* Hogwild: several processes train one model in shared memory, without locks.
 *
 *     09_hogwild                  four processes
 *     09_hogwild --processes 1    one
 *
 *     Recht, Ré, Wright, Niu 2011, arXiv:1106.5730
 *
 * The parameters are in memory that all processes share: tn_storage_share, before fork. Each
 * process has its own gradients and its own optimiser. It reads the parameters, computes a gradient
 * from its own examples, and its optimiser steps the parameters, while the others do the same. So
 * no process waits, and the loss falls as if one process took all the steps, but it differs between
 * runs: docs/asynchronous.md#hogwild says which races are accepted, and why these are processes.
 */
#define _GNU_SOURCE
#include <tern/tern.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WIDTH = 64, BATCH = 32, STEPS = 8000, TEST = 500, MOST = 16 };

static int64_t processes = 4;
static const tn_option table[] = {
    {"processes", 'p', "N", "that train the model", .whole = &processes, .most = MOST},
    {0},
};

/* What the processes share beside the parameters. */
typedef struct {
    atomic_int steps; /* taken by all processes */
    int taken[MOST];  /* taken by each */
} board;

/* ---- The data: y = sin(3 a) b, for points (a, b) in a square --------------------------------- */

static tn_tensor *make_points(int64_t number, int64_t n) {
    tn_generator g = {.seed = 1, .stream = (uint64_t)number};
    return tn_uniform_(tn_empty(TN_DIMS(n, 2), TN_F32), -1.0, 1.0, &g);
}

static tn_tensor *loss_of(tn_sequential *net, tn_tensor *x) {
    tn_tensor *a = tn_slice(x, 1, 0, 1, 1), *b = tn_slice(x, 1, 1, 2, 1);
    return tn_mse(tn_call(net, x), tn_mul(tn_sin(tn_mul_scalar(a, 3.0)), b), TN_MEAN);
}

/* ---- A process that trains ------------------------------------------------------------------- */

static bool share_weight(const tn_entry *entry, void *user) {
    (void)user;
    return tn_storage_share(*entry->field) == TN_OK;
}

/* Takes steps until all processes together have taken STEPS. Nothing here is special. */
static void train_worker(tn_sequential *net, board *b, int worker) {
    tn_optim *opt = tn_sgd(net, TN_WITH(tn_sgd, .lr = 0.1));
    for (int step; (step = atomic_fetch_add(&b->steps, 1)) < STEPS; b->taken[worker]++) {
        TN_SCOPE;
        tn_backward(loss_of(net, make_points(step, BATCH)));
        tn_optim_step(opt); /* no lock: this is the point */
        tn_optim_zero_grad(opt);
    }
    tn_optim_free(opt);
}

static pid_t start_worker(tn_sequential *net, board *b, int worker) {
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* stop training if the parent dies */
        if (getppid() == parent) { train_worker(net, b, worker); }
        exit(0);
    }
    return child;
}

/* ---- The process that monitors --------------------------------------------------------------- */

/* On points that no process trains with. */
static double test_loss(tn_sequential *net) {
    TN_SCOPE;
    TN_NO_GRAD;
    return tn_item(loss_of(net, make_points(STEPS, TEST)));
}

/* Prints the loss now and then; returns when all have ended. */
static bool watch_workers(tn_sequential *net, board *b, int workers) {
    bool fine = true;
    int next = 0, status;
    while (workers > 0) {
        int steps = atomic_load(&b->steps);
        if (steps >= next && steps < STEPS) {
            printf("steps %5d  test loss %.5f\n", steps, test_loss(net));
            next += STEPS / 4;
        }
        while (waitpid(-1, &status, WNOHANG) > 0) {
            fine = fine && WIFEXITED(status) && WEXITSTATUS(status) == 0;
            workers--;
        }
        usleep(5000);
    }
    return fine;
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_options_parse(argc, argv, "Trains an MLP in shared memory without locks.", table);
    int workers = (int)processes;
    board *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    tn_set_threads(1);
    tn_seed(7);
    tn_sequential *net =
        TN_SEQUENTIAL(tn_linear_new(2, WIDTH), TN_FN(tn_tanh), tn_linear_new(WIDTH, 1));
    tn_module_each(net, (tn_walk){.buffers = true}, share_weight, NULL);
    for (int i = 0; i < workers; i++) {
        if (start_worker(net, b, i) < 0) {
            perror("fork");
            return 1;
        }
    }
    double begin = tn_flight_now();
    bool fine = watch_workers(net, b, workers);
    printf("%d processes: test loss %.5f after %.2f s; steps taken by each:", workers,
           test_loss(net), tn_flight_now() - begin);
    for (int i = 0; i < workers; i++) {
        printf(" %d", b->taken[i]);
    }
    printf("\n");
    tn_module_free(net);
    return !fine || fflush(stdout) || ferror(stdout);
}
