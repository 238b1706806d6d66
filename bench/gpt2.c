/* GPT-2, one training step after the other: gpt2 [OPTIONS] T, driven through bench_serve.
 *
 * Sequences of T random tokens, AdamW. peers/torch_gpt2.py takes the same options and
 * does the same in PyTorch.
 */
#include "bench/bench.h"

#include <getopt.h>

typedef struct trainer {
    tn_gpt gpt;
    tn_optim *opt;
    tn_tensor *x, *y;
} trainer;

typedef struct size {
    const char *name;
    int layers, heads;
    int64_t width;
} size;

static const size sizes[] = {
    {"124M", 12, 12, 768}, {"350M", 24, 16, 1024}, {"774M", 36, 20, 1280}, {"1.5B", 48, 25, 1600}};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static double train_step(void *user) {
    trainer *t = user;
    TN_SCOPE;
    tn_tensor *loss = tn_gpt_loss(&t->gpt, t->x, t->y);
    tn_backward(loss);
    tn_optim_step(t->opt);
    tn_optim_zero_grad(t->opt);
    return tn_item(loss);
}

static void print_usage(void) {
    fprintf(stderr,
            "usage: gpt2 [--size 124M|350M|774M|1.5B] [--batch N] [--vocab N] [--device NAME]\n"
            "            [--precision f32|bf16] [--recompute] [--share FOLDER] T   (run "
            "bench/gpt2.py)\n");
    exit(2);
}

static const size *size_named(const char *name) {
    for (int i = 0; i < SIZES; i++) {
        if (strcmp(sizes[i].name, name) == 0) {
            return &sizes[i];
        }
    }
    print_usage();
    return NULL;
}

typedef struct options {
    const size *shape;
    int64_t T, batch, vocab;
    bool recompute, bf16;
    const char *folder; /* for the weights and the batch that it begins with */
} options;

static options parse_options(int argc, char **argv) {
    static const struct option list[] = {{"size", 1, NULL, 's'},      {"batch", 1, NULL, 'b'},
                                         {"vocab", 1, NULL, 'v'},     {"device", 1, NULL, 'd'},
                                         {"precision", 1, NULL, 'p'}, {"recompute", 0, NULL, 'r'},
                                         {"share", 1, NULL, 'f'},     {0}};
    options o = {.shape = &sizes[0], .batch = 4, .vocab = 50257};
    for (int key; (key = getopt_long(argc, argv, "", list, NULL)) != -1;) {
        switch (key) {
        case 's':
            o.shape = size_named(optarg);
            break;
        case 'b':
            o.batch = atoi(optarg);
            break;
        case 'v':
            o.vocab = atoi(optarg);
            break;
        case 'd':
            tn_set_default_device(tn_device_named(optarg));
            break;
        case 'p':
            o.bf16 = strcmp(optarg, "bf16") == 0;
            break;
        case 'r':
            o.recompute = true;
            break;
        case 'f':
            o.folder = optarg;
            break;
        default:
            print_usage();
        }
    }
    o.T = optind + 1 == argc ? atoi(argv[optind]) : 0;
    if (o.T < 1 || o.batch < 1 || o.vocab < 50257) {
        print_usage();
    }
    return o;
}

int main(int argc, char **argv) {
    static trainer t;
    tn_on_error(tn_error_exit);
    options o = parse_options(argc, argv);
    tn_gpt_options g = tn_gpt_defaults();
    g.vocab = o.vocab;
    g.layers = o.shape->layers;
    g.heads = o.shape->heads;
    g.width = o.shape->width;
    tn_seed(1337);
    tn_gpt_init(&t.gpt, g);
    for (int i = 0; o.recompute && i < g.layers; i++) {
        tn_module_set_recompute(&t.gpt.h[i], true);
    }
    if (o.bf16) {
        tn_module_set_precision(&t.gpt, tn_precision_defaults());
    }
    tn_adamw_options a = tn_adamw_defaults();
    a.lr = 1e-4;
    t.opt = tn_adamw(&t.gpt, a);
    t.x = tn_randint(0, 50257, TN_DIMS(o.batch, o.T), TN_I64);
    t.y = tn_randint(0, 50257, TN_DIMS(o.batch, o.T), TN_I64);
    if (o.folder) {
        TN_SCOPE;
        bench_share(&t.gpt, o.folder, tn_unsqueeze(t.x, 0), tn_unsqueeze(t.y, 0));
    }
    int status = bench_serve(train_step, &t);
    tn_optim_free(t.opt);
    tn_module_finish(&t.gpt);
    return status;
}
