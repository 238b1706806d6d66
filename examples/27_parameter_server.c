/* A parameter server: rank 0 has the weights, the others compute gradients and wait for each other
 * no more than they are told to.
 *
 *     tern run -n 5 27_parameter_server                   four workers in step
 *     tern run -n 5 27_parameter_server --staleness 4     none begins a step more than 4 ahead
 *     tern run -n 5 27_parameter_server --staleness free  none waits: asynchronous SGD
 *     27_parameter_server --alone 4                       one process, in step: the same bits
 *
 * A worker pulls the weights, computes a gradient from its own points, and pushes it. With
 * staleness s, a pull waits until every worker has pushed all but s of the steps that this one has
 * (Ho et al. 2013: stale synchronous parallel): no worker begins a step more than s steps ahead of
 * another. With 0 the server adds up the gradients of a step, in the order of the ranks, and steps
 * once: this is SGD. Otherwise it steps when a gradient comes, by its share, although the weights
 * may no longer be those that it was computed with. docs/asynchronous.md has a picture of what that
 * does.
 *
 * If a worker dies, the others cannot go on with a bound, and end with an error that names it.
 * Without one they go on, unless tern run started them: it ends all ranks when one fails.
 */
#include <tern/tern.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BATCH = 16, LINE = 240, TEST = 500, WEIGHTS = 4, MOST = 4096 };

static int64_t staleness, alone, steps = 2100;
static double lr = 0.13, delay;
static const tn_option table[] = {
    {"staleness", 's', "N", "by how many steps a worker may be ahead, or free: no bound",
     .whole = &staleness, .zero = true, .word = "free"},
    {"steps", 'n', "N", "of each worker, on average", .whole = &steps},
    {"lr", 'r', "RATE", "of SGD", .real = &lr},
    {"delay", 'd', "MS", "what a worker's step takes longer, at random", .real = &delay,
     .zero = true},
    {"alone", 'a', "N", "no ranks: this process computes what N workers in step would",
     .whole = &alone, .most = MOST},
    {0},
};

/* ---- What every rank has --------------------------------------------------------------------- */

static int workers;
static tn_sequential *net;
static tn_tensor *weight[WEIGHTS]; /* the parameters of net */
static tn_rpc *rpc;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for what is below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static bool list_weight(const tn_entry *entry, void *user) {
    int *count = user;
    weight[(*count)++] = *entry->field;
    return *count < WEIGHTS;
}

/* y = sin(3 a) b, for points (a, b) in a square; none comes twice. */
static tn_tensor *loss_of(int64_t number, int64_t n) {
    tn_generator g = {.seed = 1, .stream = (uint64_t)number};
    tn_tensor *x = tn_uniform_(tn_empty(TN_DIMS(n, 2), TN_F32), -1.0, 1.0, &g);
    tn_tensor *a = tn_slice(x, 1, 0, 1, 1), *b = tn_slice(x, 1, 1, 2, 1);
    return tn_mse(tn_call(net, x), tn_mul(tn_sin(tn_mul_scalar(a, 3.0)), b), TN_MEAN);
}

/* ---- The server ------------------------------------------------------------------------------ */

typedef struct {
    int64_t pushed;
    tn_tensor *grads[WEIGHTS]; /* of a step that not all have pushed; one reference each */
    tn_future *end;            /* of a call that ends with the worker; NULL: it has ended */
} worker;

static tn_optim *opt;
static worker *list; /* [workers]: rank w + 1 is list[w] */
static int64_t pushes;
static int lost; /* the rank without which the others cannot go on; or 0 */
static double began;

static int64_t slowest_worker(void) {
    int64_t least = list[0].pushed;
    for (int w = 1; w < workers; w++) {
        least = list[w].pushed < least ? list[w].pushed : least;
    }
    return least;
}

/* One step with the gradients of workers first to end - 1. */
static void step_weights(int first, int end) {
    for (int i = 0; i < WEIGHTS; i++) {
        tn_tensor *sum = list[first].grads[i];
        for (int w = first + 1; w < end; w++) {
            sum = tn_add(sum, list[w].grads[i]);
        }
        tn_set_grad(weight[i], tn_mul_scalar(sum, 1.0 / workers));
        for (int w = first; w < end; w++) {
            tn_release(list[w].grads[i]);
        }
    }
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
    if (pushes / LINE != (pushes - (end - first)) / LINE) {
        TN_NO_GRAD;
        printf("pushes %5lld  time %6.3f  test loss %.9g\n", (long long)pushes,
               tn_flight_now() - began, tn_item(loss_of(-1, TEST)));
        fflush(stdout);
    }
}

static tn_values push_gradients(tn_values in, void *user) {
    (void)user;
    pthread_mutex_lock(&lock);
    int w = tn_rpc_caller() - 1;
    for (int i = 0; i < WEIGHTS; i++) {
        list[w].grads[i] = tn_keep(in.v[i]);
    }
    pushes++;
    list[w].pushed++;
    if (staleness != 0) {
        step_weights(w, w + 1);
    } else if (slowest_worker() == list[w].pushed) {
        step_weights(0, workers);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return (tn_values){0};
}

/* Whether a worker that is `own` steps far must wait for others. */
static bool must_wait(int64_t own) {
    return !lost && pushes < steps * workers && staleness >= 0 &&
           slowest_worker() < own - staleness;
}

/* Returns the weights, or nothing when there is no more to do. */
static tn_values pull_weights(tn_values in, void *user) {
    (void)in, (void)user;
    tn_values out = {0};
    pthread_mutex_lock(&lock);
    while (must_wait(list[tn_rpc_caller() - 1].pushed)) {
        pthread_cond_wait(&changed, &lock);
    }
    if (lost) { tn_raise(TN_EPEER, "worker %d is gone: the others cannot go on without it", lost); }
    for (; out.n < WEIGHTS && pushes < steps * workers; out.n++) {
        out.v[out.n] = tn_copy(weight[out.n]); /* others may step while it is sent */
    }
    pthread_mutex_unlock(&lock);
    return out;
}

/* The error that is pending says how. */
static void lose_worker(int rank) {
    pthread_mutex_lock(&lock);
    if (!lost) {
        printf("worker %d is gone: %s\n", rank, tn_error_message());
        fflush(stdout);
    }
    tn_error_clear();
    lost = lost || staleness < 0 ? lost : rank;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Until all workers have ended. A call to each of them fails as soon as it dies. */
static void serve_workers(void) {
    int left = workers;
    for (int w = 0; w < workers; w++) {
        list[w].end = tn_rpc_call(rpc, w + 1, "end", (tn_values){0}, 1e6);
    }
    for (; left > 0; usleep(1000)) {
        for (int w = 0; w < workers; w++) {
            if (list[w].end && tn_rpc_done(list[w].end)) {
                tn_rpc_wait(list[w].end);
                if (tn_error()) { lose_worker(w + 1); }
                list[w].end = NULL;
                left--;
            }
        }
    }
    if (lost) { tn_raise(TN_EPEER, "worker %d is gone", lost); }
}

/* ---- A worker -------------------------------------------------------------------------------- */

static bool ended;

static tn_values wait_for_end(tn_values in, void *user) {
    (void)user;
    pthread_mutex_lock(&lock);
    while (!ended) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
    return in;
}

/* False: there is no more to do, or it has failed. */
static bool train_step(int64_t number) {
    TN_SCOPE;
    tn_values weights = tn_rpc_wait(tn_rpc_call(rpc, 0, "pull", (tn_values){0}, 0));
    if (weights.n != WEIGHTS) { return false; }
    for (int i = 0; i < WEIGHTS; i++) {
        TN_NO_GRAD;
        tn_copy_(weight[i], weights.v[i]);
    }
    tn_generator chance = {.seed = 2, .stream = (uint64_t)number};
    usleep((useconds_t)(-log(1.0 - tn_random_uniform(&chance)) * delay * 1e3));
    tn_backward(loss_of(number, BATCH));
    tn_values gradients = {WEIGHTS, {NULL}};
    for (int i = 0; i < WEIGHTS; i++) {
        gradients.v[i] = tn_grad_of(weight[i]);
    }
    tn_rpc_wait(tn_rpc_call(rpc, 0, "push", gradients, 0));
    tn_module_zero_grad(net);
    return !tn_error();
}

static void train_worker(int64_t number) {
    while (train_step(number)) {
        number += workers;
    }
    pthread_mutex_lock(&lock);
    ended = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* ---- Starting -------------------------------------------------------------------------------- */

static void run_rank(tn_group *world) {
    /* room for a pull of each worker, which may have to wait for the others */
    rpc = tn_rpc_new(world, TN_WITH(tn_rpc, .threads = workers, .threads_most = workers));
    tn_rpc_register(rpc, "pull", pull_weights, NULL);
    tn_rpc_register(rpc, "push", push_gradients, NULL);
    tn_rpc_register(rpc, "end", wait_for_end, NULL);
    tn_rpc_start(rpc);
    tn_on_error(NULL); /* from here on the loss of a worker need not be the end */
    if (tn_group_rank(world) == 0) {
        serve_workers();
    } else {
        train_worker(tn_group_rank(world) - 1);
    }
    if (!tn_error() && tn_rpc_shutdown(rpc, 0) == TN_EPEER && staleness < 0) { tn_error_clear(); }
    if (tn_error()) { fprintf(stderr, "%s\n", tn_error_message()); }
    tn_rpc_free(rpc);
}

/* In step, without calls. */
static void run_alone(void) {
    for (int64_t step = 0; step < steps; step++) {
        TN_SCOPE;
        for (int w = 0; w < workers; w++) {
            tn_backward(loss_of(step * workers + w, BATCH));
            for (int i = 0; i < WEIGHTS; i++) {
                list[w].grads[i] = tn_keep(tn_copy(tn_grad_of(weight[i])));
            }
            tn_module_zero_grad(net);
        }
        pushes += workers;
        step_weights(0, workers);
    }
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_options_parse(argc, argv, "Trains an MLP whose weights are on one rank (tern run -n N).",
                     table);
    tn_set_threads(1);
    tn_group *world = tn_dist_init(tn_dist_defaults());
    workers = alone ? (int)alone : tn_group_size(world) - 1;
    if (workers < 1 || workers > MOST || (alone && tn_group_size(world) > 1)) {
        tn_options_refuse("start 2 to %d ranks, or one with --alone 1 to %d", MOST + 1, MOST);
    }
    list = calloc((size_t)workers, sizeof(*list));
    if (!list) {
        perror("calloc");
        return 1;
    }
    tn_seed(7);
    net = TN_SEQUENTIAL(tn_linear_new(2, 64), TN_FN(tn_tanh), tn_linear_new(64, 1));
    int count = 0;
    tn_module_each(net, (tn_walk){0}, list_weight, &count);
    opt = tn_sgd(net, TN_WITH(tn_sgd, .lr = lr));
    began = tn_flight_now();
    if (alone) {
        run_alone();
    } else {
        run_rank(world);
    }
    bool failed = tn_error() != TN_OK;
    tn_error_clear();
    tn_optim_free(opt);
    tn_module_free(net);
    free(list);
    tn_dist_finish();
    return failed || fflush(stdout) || ferror(stdout);
}
