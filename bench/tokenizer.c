/* Encoding and decoding a text on one thread: tokenizer FOLDER TEXT [decode] answers as bench.h
 * describes, with the number of ids, or of bytes, instead of the loss. tokenizer --train TEXT
 * FOLDER VOCAB PATTERN makes a vocabulary for such a run, and prints how many seconds that took.
 */
#include "bench/bench.h"

typedef struct work {
    tn_tokenizer *tokenizer;
    char *text;
    size_t bytes;
    tn_ids ids;
} work;

static double encode_text(void *user) {
    work *w = user;
    w->ids.count = 0;
    if (tn_tokenizer_encode(w->tokenizer, w->text, w->bytes, false, &w->ids) != TN_OK) { exit(1); }
    return (double)w->ids.count;
}

static double decode_ids(void *user) {
    work *w = user;
    size_t bytes;
    tn_text_free(tn_tokenizer_decode(w->tokenizer, w->ids.ids, w->ids.count, &bytes));
    return (double)bytes;
}

static int train_vocabulary(char **argv) {
    size_t bytes;
    char *text = tn_text_read(argv[2], &bytes);
    const char *texts[] = {text};
    tn_tokenizer_train_options o = tn_tokenizer_train_defaults();
    o.vocab = atoll(argv[4]);
    o.pattern = argv[5];
    double start = bench_now();
    tn_tokenizer *t = tn_tokenizer_train(texts, &bytes, 1, o);
    printf("%.3f\n", bench_now() - start);
    tn_status saved = tn_tokenizer_save(t, argv[3]);
    tn_tokenizer_free(t);
    tn_text_free(text);
    return saved != TN_OK;
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    if (argc == 6 && strcmp(argv[1], "--train") == 0) { return train_vocabulary(argv); }
    if (argc < 3) {
        fprintf(stderr, "tokenizer FOLDER TEXT [decode]: ./run bench tokenizer runs it\n");
        return 2;
    }
    work w = {.tokenizer = tn_tokenizer_load(argv[1])};
    w.text = tn_text_read(argv[2], &w.bytes);
    encode_text(&w);
    int status = bench_serve(argc > 3 ? decode_ids : encode_text, &w);
    tn_ids_free(&w.ids);
    tn_text_free(w.text);
    tn_tokenizer_free(w.tokenizer);
    return status;
}
