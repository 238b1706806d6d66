/* Hogwild: several processes train one model in shared memory, without locks.
 *
 *     09_hogwild              four processes
 *     09_hogwild 1            one
 *
 *     Recht, Ré, Wright, Niu 2011, arXiv:1106.5730
 *
 * The weights are in memory that all processes share. Each process reads them, computes a gradient
 * from its own examples, and subtracts it, while the others do the same. If two change a weight at
 * the same moment, one change is lost. That is rare if an example uses few of the weights, as here:
 * each example has 10 of 20000 features. So no process waits, and the loss falls as if one process
 * took all the steps, but it differs between runs.
 */
#define _GNU_SOURCE
#include <tern/tern.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FEATURES = 20000, ACTIVE = 10, BATCH = 32, STEPS = 4000, TEST = 2000, MOST = 16 };
static const double rate = 1.0;

/* What the processes share. */
typedef struct {
    atomic_int steps;       /* taken by all processes */
    int taken[MOST];        /* taken by each */
    float weight[FEATURES]; /* one per feature */
} board;

/* ---- The data -------------------------------------------------------------------------------- */

/* Batch number `number`: which features each example has, and its score: the sum of their true
 * weights. */
static void make_batch(uint64_t number, int n, int64_t *features, float *scores) {
    tn_generator pick = {.seed = 1, .stream = number};
    for (int i = 0; i < n; i++) {
        scores[i] = 0.0f;
        for (int k = 0; k < ACTIVE; k++) {
            int64_t f = features[i * ACTIVE + k] = tn_random_below(&pick, FEATURES);
            tn_generator truth = {.seed = 2, .stream = (uint64_t)f};
            scores[i] += (float)(tn_random_uniform(&truth) - 0.5);
        }
    }
}

/* The weights as a tensor: the shared memory itself. */
static tn_tensor *weights_of(board *b) {
    return tn_from_memory(b->weight, TN_DIMS(FEATURES, 1), TN_F32, NULL, NULL);
}

static tn_tensor *loss_of(tn_tensor *weights, const int64_t *features, const float *scores, int n) {
    tn_tensor *rows = tn_embedding_op(weights, tn_from_data(features, TN_DIMS(n, ACTIVE), TN_I64));
    tn_tensor *sums = tn_sum(rows, TN_DIMS(1), false); /* (n, 1) */
    return tn_mse(sums, tn_from_data(scores, TN_DIMS(n, 1), TN_F32), TN_MEAN);
}

/* ---- A process that trains ------------------------------------------------------------------- */

/* Takes steps until all processes together have taken STEPS. Touches only the weights that the
 * batch uses. */
static void train_worker(board *b, int worker) {
    int64_t features[BATCH * ACTIVE];
    float scores[BATCH];
    tn_tensor *weights = tn_set_requires_grad(weights_of(b), true);
    for (int step; (step = atomic_fetch_add(&b->steps, 1)) < STEPS; b->taken[worker]++) {
        TN_SCOPE;
        make_batch((uint64_t)step, BATCH, features, scores);
        tn_backward(loss_of(weights, features, scores, BATCH));
        float *gradient = tn_data_mut(tn_grad_of(weights));
        for (int i = 0; i < BATCH * ACTIVE; i++) {
            int64_t f = features[i];
            b->weight[f] -= (float)rate * gradient[f]; /* no lock: this is the point */
            gradient[f] = 0.0f;                        /* once, even if two examples have it */
        }
        tn_zero_grad(weights);
    }
}

static pid_t start_worker(board *b, int worker) {
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* stop training if the parent dies */
        if (getppid() == parent) {
            train_worker(b, worker);
        }
        exit(0);
    }
    return child;
}

/* ---- The process that monitors --------------------------------------------------------------- */

static double test_loss(board *b) {
    static int64_t features[TEST * ACTIVE];
    static float scores[TEST];
    TN_SCOPE;
    TN_NO_GRAD;
    make_batch(1ull << 40, TEST, features, scores);
    return tn_item(loss_of(weights_of(b), features, scores, TEST));
}

/* Prints the loss now and then; returns when all have ended. */
static bool watch_workers(board *b, int workers) {
    bool fine = true;
    int next = 0, status;
    while (workers > 0) {
        int steps = atomic_load(&b->steps);
        if (steps >= next && steps < STEPS) {
            printf("steps %5d  test loss %.4f\n", steps, test_loss(b));
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
    int workers = argc > 1 ? atoi(argv[1]) : 4;
    if (workers < 1 || workers > MOST) {
        fprintf(stderr, "usage: %s [processes, 1 to %d]\n", argv[0], MOST);
        return 2;
    }
    board *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    tn_set_threads(1);
    for (int i = 0; i < workers; i++) {
        if (start_worker(b, i) < 0) {
            perror("fork");
            return 1;
        }
    }
    double begin = tn_flight_now();
    bool fine = watch_workers(b, workers);
    printf("%d processes: test loss %.4f after %.2f s; steps taken by each:", workers, test_loss(b),
           tn_flight_now() - begin);
    for (int i = 0; i < workers; i++) {
        printf(" %d", b->taken[i]);
    }
    printf("\n");
    return !fine || fflush(stdout) || ferror(stdout);
}
