/* Training steps of a character LSTM: lstm LAYERS WIDTH BATCH TIMES [FOLDER], driven through
 * bench_serve. The initial weights and one batch go to the folder.
 *
 * Embedding, LSTM and classifier, all of the same width; random characters, learned by heart; Adam.
 * peers/torch_lstm.py is the same in PyTorch.
 */
#include "bench/bench.h"

enum { VOCAB = 96 };

typedef struct net {
    tn_module base;
    tn_embedding *wte;
    tn_lstm *lstm;
    tn_linear *head;
} net;

typedef struct trainer {
    net net;
    tn_optim *opt;
    tn_tensor *x, *y; /* (B, T) */
} trainer;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *n = (net *)self;
    return tn_call(n->head, tn_call(n->lstm, tn_call(n->wte, x)));
}

static void net_init(net *n, int layers, int64_t width) {
    tn_rnn_options o = tn_rnn_defaults();
    o.layers = layers;
    o.batch_first = true;
    tn_module_init(n, "net", net_forward);
    TN_OWN(n, wte, tn_embedding_new(VOCAB, width));
    TN_OWN(n, lstm, tn_lstm_new_with(width, width, o));
    TN_OWN(n, head, tn_linear_new(width, VOCAB));
}

static double train_step(void *user) {
    trainer *t = user;
    TN_SCOPE;
    tn_tensor *loss = tn_cross_entropy(tn_call(&t->net, t->x), t->y, TN_MEAN);
    tn_backward(loss);
    tn_optim_step(t->opt);
    tn_optim_zero_grad(t->opt);
    return tn_item(loss);
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 6) {
        fprintf(stderr, "usage: lstm LAYERS WIDTH BATCH TIMES [FOLDER]   (run bench/lstm.py)\n");
        return 2;
    }
    tn_on_error(tn_error_exit);
    tn_seed(1337);
    static trainer t;
    tn_dims dims = TN_DIMS(1, atoll(argv[3]), atoll(argv[4]));
    net_init(&t.net, atoi(argv[1]), atoll(argv[2]));
    t.opt = tn_adam(&t.net, tn_adam_defaults());
    tn_tensor *x = tn_randint(0, VOCAB, dims, TN_I64), *y = tn_randint(0, VOCAB, dims, TN_I64);
    if (argc == 6) { bench_share(&t.net, argv[5], x, y); }
    t.x = tn_select(x, 0, 0);
    t.y = tn_select(y, 0, 0);
    int status = bench_serve(train_step, &t);
    tn_optim_free(t.opt);
    tn_module_finish(&t.net);
    return status;
}
