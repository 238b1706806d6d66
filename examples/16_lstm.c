/* An LSTM that learns to write, one character at a time.
 *
 *     16_lstm --data shakespeare.txt        --help has the options
 *
 * The text is cut into as many streams as a batch has sequences. Each step reads the next piece of
 * every stream and starts from the last step's final state, so that the net remembers more than one
 * piece, although gradients stop at its start (truncated backpropagation through time; Williams and
 * Peng 1990). Writing needs only that state too: each character goes in once.
 */
#include <tern/tern.h>

#include <stdio.h>
#include <stdlib.h>

static struct {
    const char *data;
    int64_t width, times, batch, steps, sample;
    double lr, temperature;
} o = {NULL, 256, 64, 32, 1500, 600, 2e-3, 0.8};

static const tn_option table[] = {
    {"data", 'd', "FILE", "the text to learn, UTF-8", .text = &o.data, .needed = true},
    {"width", 0, "N", "units of a layer", .whole = &o.width},
    {"times", 0, "N", "characters that are differentiated through", .whole = &o.times},
    {"batch", 0, "N", "streams that the text is cut into", .whole = &o.batch},
    {"steps", 0, "N", "pieces of all streams to learn", .whole = &o.steps, .zero = true},
    {"sample", 0, "N", "characters to write at the end", .whole = &o.sample, .zero = true},
    {"lr", 0, "X", "learning rate", .real = &o.lr},
    {"temperature", 0, "X", "below 1: likely characters more often", .real = &o.temperature},
    {0},
};

/* ---- The model ------------------------------------------------------------------------------- */

typedef struct {
    tn_module base;
    tn_embedding *wte;
    tn_lstm *lstm;
    tn_linear *head;
    tn_tensor *h, *c; /* the state, (layers, B, width): buffers; NULL at the start of a text */
} writer;

static void set_state(writer *w, tn_tensor *h, tn_tensor *c) {
    tn_module_set_buffer(w, "h", h);
    tn_module_set_buffer(w, "c", c);
}

/* x (B, T) characters -> (B, T, V) scores of the character after each */
static tn_tensor *writer_forward(tn_module *self, tn_tensor *x) {
    writer *w = (writer *)self;
    tn_rnn_state state = {w->h, w->c};
    tn_tensor *y = tn_rnn_call(w->lstm, tn_call(w->wte, x), &state, NULL);
    set_state(w, tn_detach(state.h),
              tn_detach(state.c)); /* carried over to the next call, but without gradients */
    return tn_call(w->head, y);
}

static void writer_init(writer *w, int64_t vocab) {
    tn_module_init(w, "writer", writer_forward);
    TN_OWN(w, wte, tn_embedding_new(vocab, o.width));
    TN_OWN(w, lstm,
           tn_lstm_new_with(o.width, o.width, TN_WITH(tn_rnn, .layers = 2, .batch_first = true)));
    TN_OWN(w, head, tn_linear_new(o.width, vocab));
    tn_module_scratch(w, "h", &w->h, NULL);
    tn_module_scratch(w, "c", &w->c, NULL);
}

/* ---- Learning and writing -------------------------------------------------------------------- */

/* The text's characters as streams (B, length). */
static tn_tensor *read_streams(tn_charset **charset) {
    size_t bytes;
    char *text = tn_text_read(o.data, &bytes);
    *charset = tn_charset_from_text(text, bytes);
    int32_t *tokens = malloc(bytes * sizeof(*tokens) + 1);
    int64_t length = tokens ? tn_charset_encode(*charset, text, bytes, tokens) / o.batch : 0;
    if (length <= o.times) {
        tn_raise(TN_EVALUE,
                 "%s: %lld streams of it have %lld characters; more than %lld are needed", o.data,
                 (long long)o.batch, (long long)length, (long long)o.times);
    }
    tn_tensor *streams = tn_from_data(tokens, TN_DIMS(o.batch, length), TN_I32);
    tn_text_free(text);
    free(tokens);
    return streams;
}

static void train_writer(writer *w, tn_tensor *streams) {
    tn_optim *optim = tn_adam(w, TN_WITH(tn_adam, .lr = o.lr));
    int64_t pieces = (tn_size(streams, 1) - 1) / o.times;
    for (int64_t step = 0; step < o.steps; step++) {
        TN_SCOPE;
        int64_t at = step % pieces *
                     o.times; /* after the streams' end the state carries over to their start */
        tn_tensor *scores = tn_call(w, tn_narrow(streams, 1, at, o.times));
        tn_tensor *loss = tn_cross_entropy(scores, tn_narrow(streams, 1, at + 1, o.times), TN_MEAN);
        tn_backward(loss);
        tn_optim_clip(optim, 1.0);
        tn_optim_step(optim);
        tn_optim_zero_grad(optim);
        if (step % 100 == 0 || step == o.steps - 1) {
            printf("step %5lld   loss %.4f\n", (long long)step, tn_item(loss));
        }
    }
    tn_optim_free(optim);
}

/* Draws a character from scores (1, 1, V). */
static int64_t draw_character(tn_tensor *scores) {
    tn_tensor *p = tn_softmax(tn_mul_scalar(scores, 1.0 / o.temperature), 2);
    double left = tn_random_uniform(tn_default_generator());
    int64_t last = tn_size(p, 2) - 1, next = -1;
    do {
        left -= tn_at(p, TN_DIMS(0, 0, ++next));
    } while (left > 0.0 && next < last);
    return next;
}

static void write_sample(writer *w, const tn_charset *charset, int64_t character) {
    TN_NO_GRAD;
    set_state(w, NULL, NULL);
    for (int64_t i = 0; i < o.sample; i++) {
        TN_SCOPE;
        character = draw_character(tn_call(w, tn_full(TN_DIMS(1, 1), (double)character, TN_I64)));
        fputs(tn_charset_text(charset, character), stdout);
    }
    putchar('\n');
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_options_parse(argc, argv, "Trains an LSTM on the characters of a text.", table);
    tn_seed(1337);
    tn_charset *charset;
    tn_tensor *streams = read_streams(&charset);
    static writer w;
    writer_init(&w, tn_charset_size(charset));
    printf("%lld characters, %d of them different; %lld parameters\n", (long long)tn_count(streams),
           tn_charset_size(charset), (long long)tn_module_count(&w));
    train_writer(&w, streams);
    write_sample(&w, charset, (int64_t)tn_at(streams, TN_DIMS(0, 0)));
    tn_module_finish(&w);
    tn_charset_free(charset);
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
