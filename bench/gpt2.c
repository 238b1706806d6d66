/* Training steps of GPT-2: gpt2 [OPTIONS] T, driven through bench_serve.
 *
 * Sequences of T random tokens (trainer.h). peers/torch_gpt2.py takes the same options and
 * does the same in PyTorch.
 */
#include "bench/trainer.h"

#include <getopt.h>

static void print_usage(void) {
    fprintf(stderr,
            "usage: gpt2 [--size tiny|124M|350M|774M|1.5B] [--batch N] [--vocab N] [--device "
            "NAME]\n            [--precision f32|bf16] [--recompute] [--share FOLDER] T   "
            "(run bench/gpt2.py)\n");
    exit(2);
}

typedef struct options {
    tn_gpt_options gpt;
    int64_t T, batch;
    bool recompute, bf16;
    const char *folder; /* for the initial weights and the batch */
} options;

static options parse_options(int argc, char **argv) {
    static const struct option list[] = {{"size", 1, NULL, 's'},      {"batch", 1, NULL, 'b'},
                                         {"vocab", 1, NULL, 'v'},     {"device", 1, NULL, 'd'},
                                         {"precision", 1, NULL, 'p'}, {"recompute", 0, NULL, 'r'},
                                         {"share", 1, NULL, 'f'},     {0}};
    options o = {.gpt = tn_gpt_defaults(), .batch = 4};
    for (int key; (key = getopt_long(argc, argv, "", list, NULL)) != -1;) {
        switch (key) {
        case 's':
            if (!trainer_size(optarg, &o.gpt)) { print_usage(); }
            break;
        case 'b':
            o.batch = atoi(optarg);
            break;
        case 'v':
            o.gpt.vocab = atoi(optarg);
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
    if (o.T < 1 || o.batch < 1 || o.gpt.vocab < 50257) { print_usage(); }
    return o;
}

int main(int argc, char **argv) {
    static trainer t;
    tn_on_error(tn_error_exit);
    options o = parse_options(argc, argv);
    tn_seed(1337);
    tn_gpt_init(&t.gpt, o.gpt);
    for (int i = 0; o.recompute && i < o.gpt.layers; i++) {
        tn_module_set_recompute(&t.gpt.h[i], true);
    }
    if (o.bf16) { tn_module_set_precision(&t.gpt, tn_precision_defaults()); }
    trainer_optimise(&t);
    trainer_draw(&t, o.batch, o.T, 50257); /* higher rows are padding */
    if (o.folder) {
        TN_SCOPE;
        bench_share(&t.gpt, o.folder, tn_unsqueeze(t.x, 0), tn_unsqueeze(t.y, 0));
    }
    int status = bench_serve(trainer_step, &t);
    trainer_finish(&t);
    return status;
}
