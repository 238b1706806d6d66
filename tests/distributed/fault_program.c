/* A training that breaks where it is told to: the program of tests/distributed/faults.py.
 *
 *     fault_program --steps 12 --out DIR            losses in DIR/loss.csv,
 *                                                   checkpoints in DIR/checkpoint
 *     fault_program … --stage 3                     sharded; checkpoints in DIR/parts
 *     fault_program … --mesh tp=2,shard=2           a language model by tn_spread; likewise,
 *                                                   MICROS micro-batches a step
 *
 * Otherwise it is data parallel. TERN_FAULT=KIND@PHASE:RANK:STEP makes rank RANK break in step STEP
 * of the first attempt:
 *     KIND    kill   SIGKILL
 *             stop   SIGSTOP
 *             pause  SIGSTOP, and SIGCONT a second later
 *             wait   makes the file DIR/at-phase and continues when DIR/go-on is there
 *             throw  an error of its own
 *             fork   has a child, which computes, is refused by the group, and ends with that error
 *             memory no tensor gets memory any more
 *             model  a layer that the others lack
 *             mesh   another mesh of as many ranks
 *     PHASE   rendezvous  before the ranks have met        forward    before the forward
 *             bucket      one bucket is sent, the next is not
 *             hook        in a gradient hook               optimiser  between backward and step
 *             save        while the checkpoint is being written
 *             attach      with --stage or --mesh: before the model is cut
 *             gather      with --stage: one unit is here, the next is not
 *             scatter     the same: one unit's gradients are sent, the next's are not made yet
 *             forward     with --mesh: one block has run, the next has not; with its pp: one
 *                         micro-batch has, the next has not; backward: likewise
 *             step        with --stage or --mesh: before the norm of all gradients
 *             part        the same: while a checkpoint in parts is being written, behind training
 *             load        the same: before one is loaded
 */
#include <tern/tern.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WIDTH = 256, BATCH = 8, SAVE_EVERY = 3, VOCAB = 29, POSITIONS = 16, MICROS = 2 };

/* ---- Breaking -------------------------------------------------------------------------------- */

static struct {
    char kind[16], phase[16];
    int rank, step;
    bool armed;
} fault;
static const char *out = ".";
static int my_rank;
static int64_t my_step = -1;
static char checkpoint[512], parts[512];

typedef struct net {
    tn_module base;
    tn_linear in, out;
    tn_dropout drop;
} net;
static union {
    net net;
    tn_gpt gpt;
} model;
static tn_linear more;
static const char *mesh; /* NULL: the model is the net */

static void read_fault(void) {
    const char *text = getenv("TERN_FAULT"), *rank = getenv("RANK");
    const char *restarts = getenv("TERN_RESTART_COUNT");
    my_rank = rank ? atoi(rank) : 0;
    fault.armed = text && (!restarts || atoi(restarts) == 0) &&
                  sscanf(text, "%15[a-z]@%15[a-z]:%d:%d", fault.kind, fault.phase, &fault.rank,
                         &fault.step) == 4 &&
                  fault.rank == my_rank;
}

/* A child that wakes this process up later, as someone with a shell would. */
static void wake_me_later(void) {
    pid_t me = getpid(), child = fork();
    if (child == 0) {
        sleep(1);
        kill(me, SIGCONT);
        _exit(0);
    }
}

static void wait_for_script(void) {
    char path[600];
    snprintf(path, sizeof(path), "%s/at-phase", out);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    snprintf(path, sizeof(path), "%s/go-on", out);
    for (int i = 0; i < 1000 && access(path, F_OK) != 0; i++) {
        usleep(10000);
    }
}

/* What the child does reaches no one. */
static int live_as_child(void) {
    TN_SCOPE;
    alarm(60);
    tn_on_error(NULL);
    tn_tensor *ones = tn_ones(TN_DIMS(WIDTH, WIDTH), TN_F32);
    bool computes = tn_item(tn_sum_all(tn_matmul(ones, ones))) == WIDTH * WIDTH * WIDTH;
    bool refused = tn_barrier(tn_world()) == TN_ESTATE;
    tn_dist_finish();
    fprintf(stderr, "child: %s\n", tn_error_message());
    return computes && refused ? 0 : 1;
}

static void have_child(void) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) { _exit(live_as_child()); }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        tn_raise(TN_ESTATE, "the child ended with %#x", (unsigned)status);
    }
}

static void break_now(void) {
    fault.armed = false;
    fprintf(stderr, "fault: %s at %s\n", fault.kind, fault.phase);
    if (strcmp(fault.kind, "kill") == 0) {
        kill(getpid(), SIGKILL);
    } else if (strcmp(fault.kind, "stop") == 0) {
        kill(getpid(), SIGSTOP);
    } else if (strcmp(fault.kind, "pause") == 0) {
        wake_me_later();
        kill(getpid(), SIGSTOP);
    } else if (strcmp(fault.kind, "wait") == 0) {
        wait_for_script();
    } else if (strcmp(fault.kind, "fork") == 0) {
        have_child();
    } else if (strcmp(fault.kind, "throw") == 0) {
        tn_raise(TN_EVALUE, "thrown on purpose at %s", fault.phase);
    } else if (strcmp(fault.kind, "memory") == 0) {
        tn_memory_set_limit(1);
    } else if (strcmp(fault.kind, "model") == 0) {
        tn_linear_init(&more, 2, 2, tn_linear_defaults());
        tn_module_add(&model, "more", &more);
    } else if (strcmp(fault.kind, "mesh") == 0) {
        mesh = "tp=2,dp=2";
    }
}

static void reach_point(const char *phase) {
    if (fault.armed && strcmp(phase, fault.phase) == 0 && (my_step < 0 || my_step == fault.step)) {
        break_now();
    }
}

/* The next step that is saved. */
static long long next_save(void) {
    return (long long)(my_step / SAVE_EVERY + 1) * SAVE_EVERY;
}

/* The appearance of what has no name yet is the middle of a save. */
static void *watch_save(void *unused) {
    char temporary[600];
    if (strcmp(fault.phase, "part") == 0) {
        snprintf(temporary, sizeof(temporary), "%s/step-%06lld.tmp", parts, next_save());
    } else {
        snprintf(temporary, sizeof(temporary), "%s.tmp", checkpoint);
    }
    while (fault.armed && access(temporary, F_OK) != 0) {
        usleep(50);
    }
    if (fault.armed) { break_now(); }
    return unused;
}

static void watch_saves(void) {
    pthread_t thread;
    bool wanted = strcmp(fault.phase, "save") == 0 || strcmp(fault.phase, "part") == 0;
    if (fault.armed && wanted && my_step + 1 >= fault.step &&
        pthread_create(&thread, NULL, watch_save, NULL) == 0) {
        pthread_detach(thread);
    }
}

/* ---- The net, data parallel or sharded ------------------------------------------------------- */

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *m = (net *)self;
    return tn_call(&m->out, tn_call(&m->drop, tn_relu(tn_call(&m->in, x))));
}

static void net_init(net *m) {
    tn_module_init(m, "net", net_forward);
    tn_linear_init(&m->in, WIDTH, 2 * WIDTH, tn_linear_defaults());
    tn_linear_init(&m->out, 2 * WIDTH, WIDTH, tn_linear_defaults());
    tn_dropout_init(&m->drop, 0.1);
    tn_module_add(m, "in", &m->in);
    tn_module_add(m, "drop", &m->drop);
    tn_module_add(m, "out", &m->out);
}

/* The second bucket of a step begins after the point. */
static tn_work *send_bucket(tn_group *g, tn_ddp_bucket *bucket, int stage, void *user) {
    int *sent = user;
    if (stage > 0) { return NULL; }
    if ((*sent)++ == 1) { reach_point("bucket"); }
    return tn_all_reduce(g, bucket->flat, bucket->how);
}

static tn_tensor *gradient_hook(tn_tensor *grad, void *user) {
    reach_point("hook");
    return NULL;
}

static void attach_ddp(int *sent) {
    tn_on_grad(model.net.in.weight, gradient_hook, NULL);
    tn_ddp(&model, tn_world(),
           TN_WITH(tn_ddp, .bucket_bytes = WIDTH * WIDTH, .hook = send_bucket, .hook_user = sent));
}

static tn_values forward_point(tn_module *m, tn_values in, void *user) {
    reach_point(user);
    return in;
}

static void backward_point(tn_module *m, void *user) {
    reach_point(user);
}

/* Points before `later` runs forward, and before `earlier` runs backward; they come before those of
 * what is attached after. */
static void set_points(void *later, char *forward, void *earlier, char *backward) {
    tn_module_hook(later, (tn_module_hooks){.before = forward_point, .user = forward});
    tn_module_hook(earlier, (tn_module_hooks){.backward_before = backward_point, .user = backward});
}

/* Two units. */
static void attach_fsdp(int stage) {
    set_points(&model.net.out, "gather", &model.net.in, "scatter");
    tn_fsdp_options f = TN_WITH(tn_fsdp, .stage = stage, .units = "in out");
    reach_point("attach");
    tn_fsdp(&model, tn_world(), NULL, f);
}

/* Batch `step` of this rank: a function of both alone. */
static tn_tensor *net_loss(int64_t step) {
    tn_generator g = {.seed = 7, .stream = (uint64_t)(step * 64 + my_rank)};
    float *x = malloc(sizeof(float) * BATCH * WIDTH);
    for (int i = 0; i < BATCH * WIDTH; i++) {
        x[i] = (float)tn_random_uniform(&g);
    }
    tn_tensor *t = tn_from_data(x, TN_DIMS(BATCH, WIDTH), TN_F32);
    free(x);
    reach_point("forward");
    return tn_mse(tn_call(&model, t), t, TN_MEAN);
}

/* ---- A language model on a mesh -------------------------------------------------------------- */

static void lm_init(tn_gpt *m) {
    tn_gpt_init(m, TN_WITH(tn_gpt, .vocab = VOCAB, .context = POSITIONS, .layers = 2, .heads = 4,
                           .width = 32));
}

static void action_point(tn_pipe_action a, bool done, void *user) {
    if (!done && a.micro == 1) { reach_point(a.what == 'F' ? "forward" : "backward"); }
}

static tn_spread *attach_mesh(void) {
    tn_spread_options o = TN_WITH(tn_spread, .pipeline.on_action = action_point);
    if (!strstr(mesh, "pp=")) {
        set_points(&model.gpt.h[1], "forward", &model.gpt.h[0], "backward");
    }
    reach_point("attach");
    tn_spread_read(&o, mesh);
    return tn_spread_new(&model, tn_world(), o);
}

/* Random tokens. */
static tn_loader *open_loader(tn_group *data) {
    int32_t tokens[64 * POSITIONS];
    tn_generator g = {.seed = 7};
    for (int i = 0; i < 64 * POSITIONS; i++) {
        tokens[i] = (int32_t)tn_random_below(&g, VOCAB);
    }
    return tn_loader_new(tn_token_dataset(tokens, 64 * POSITIONS, POSITIONS),
                         tn_distributed_sampler(data, tn_random_sampler(7), true),
                         TN_WITH(tn_loader, .batch = BATCH / MICROS, .epochs = 0));
}

/* ---- The training ---------------------------------------------------------------------------- */

static double net_step(int64_t at) {
    tn_tensor *loss = net_loss(at);
    tn_backward(loss);
    return tn_item(loss);
}

/* spread: NULL for the net */
static double train_step(const tn_checkpoint *c, tn_spread *spread) {
    TN_SCOPE;
    tn_optim *optim = c->optim;
    double loss = spread ? tn_spread_step(spread, c->loader, MICROS, NULL) : net_step(c->step);
    reach_point("optimiser");
    reach_point("step");
    tn_optim_clip(optim, 1e6); /* above any norm: the ranks meet, and nothing is scaled */
    tn_optim_step(optim);
    tn_optim_zero_grad(optim);
    return tn_group_mean(spread ? tn_spread_data(spread) : tn_world(), loss, 1);
}

static bool save_run(const tn_checkpoint *c, tn_history *history, tn_saver *saver) {
    return (!history || tn_history_sync(history) == TN_OK) &&
           (saver ? tn_saver_save(saver, c) : tn_dist_save(tn_world(), c, checkpoint)) == TN_OK;
}

/* With a saver that one, else the file. */
static bool load_run(tn_checkpoint *c, tn_saver *saver) {
    bool found;
    if (saver) {
        reach_point("load");
        return tn_saver_load(saver, c, &found) == TN_OK;
    }
    return access(checkpoint, F_OK) != 0 || tn_dist_load(tn_world(), c, checkpoint) == TN_OK;
}

static void train_model(int64_t steps, int stage) {
    int sent = 0;
    tn_spread *spread = NULL;
    tn_seed(1);
    mesh ? lm_init(&model.gpt) : net_init(&model.net);
    if (mesh) {
        spread = attach_mesh();
    } else if (stage > 0) {
        attach_fsdp(stage);
    } else {
        attach_ddp(&sent);
    }
    tn_optim *optim = tn_adamw(&model, tn_adamw_defaults());
    tn_checkpoint c = {.model = &model,
                       .optim = optim,
                       .loader = spread ? open_loader(tn_spread_data(spread)) : NULL,
                       .generator = tn_default_generator()};
    tn_saver *saver =
        mesh || stage > 0 ? tn_saver_new(tn_world(), parts, tn_saver_defaults()) : NULL;
    if (!load_run(&c, saver)) { exit(1); }
    char losses[600];
    snprintf(losses, sizeof(losses), "%s/loss.csv", out);
    tn_history *history = my_rank == 0 ? tn_history_open(losses, c.step) : NULL;
    while (c.step < steps) {
        my_step = c.step;
        watch_saves();
        sent = 0;
        double loss = train_step(&c, spread);
        c.step++;
        if (history) { tn_history_add(history, loss); }
        if (c.step % SAVE_EVERY == 0 && !save_run(&c, history, saver)) { exit(1); }
    }
    tn_saver_free(saver);
    fault.armed = false;
    tn_history_free(history);
    tn_loader_free(c.loader);
    tn_optim_free(optim);
    tn_module_finish(&model);
    tn_spread_free(spread);
}

int main(int argc, char **argv) {
    int64_t steps = 12;
    int stage = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--steps") == 0) {
            steps = atoll(argv[i + 1]);
        } else if (strcmp(argv[i], "--out") == 0) {
            out = argv[i + 1];
        } else if (strcmp(argv[i], "--stage") == 0) {
            stage = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--mesh") == 0) {
            mesh = argv[i + 1];
        }
    }
    snprintf(checkpoint, sizeof(checkpoint), "%s/checkpoint", out);
    snprintf(parts, sizeof(parts), "%s/parts", out);
    tn_on_error(tn_error_exit);
    read_fault();
    reach_point("rendezvous");
    tn_dist_init(tn_dist_defaults());
    train_model(steps, stage);
    tn_dist_finish();
    return 0;
}
