/* The functions of data.h, transforms.h and tokenizer.h, called as no one should; see
 * test_inert.c. */
#include "inert.h"

/* ---- data.h ---------------------------------------------------------------------------------- */

static void files_of_examples(void) {
    tn_csv_options table = tn_csv_defaults();
    tn_image_folder_options size = tn_image_folder_defaults();
    NOTHING(tn_cifar10(NULL, true));
    NOTHING(tn_cifar10("/nowhere", false));
    NOTHING(tn_cifar100(NULL, true));
    NOTHING(tn_csv_dataset(NULL, table));
    NOTHING(tn_csv_dataset("/nowhere", table));
    NOTHING(tn_csv_dataset("/nowhere", (tn_csv_options){0}));
    NOTHING(tn_libsvm_dataset(NULL, 3));
    INERT(tn_image_read(NULL, TN_F32));
    INERT(tn_image_read("/nowhere", (tn_dtype)-1));
    NOTHING(tn_image_folder(NULL, size));
    NOTHING(tn_image_folder("/nowhere", size));
    NOTHING(tn_npy_dataset(NULL, NULL));
    NOTHING(tn_npz_dataset(NULL, NULL, NULL));
    for (int i = 0; i < LONGS; i++) {
        NOTHING(tn_libsvm_dataset("/nowhere", longs[i]));
        size.height = longs[i];
        NOTHING(tn_image_folder("/nowhere", size));
    }
}

static void odd_charsets(void) {
    int32_t tokens[4] = {0};
    NOTHING(tn_charset_from_text(NULL, 4));
    NOTHING(tn_charset_from_text("\xff", 1));
    TAKES(tn_charset_free(tn_charset_from_text("", 0)));
    TAKES(tn_charset_free(NULL));
    QUIET(tn_charset_size(NULL), 0);
    QUIET(tn_charset_encode(NULL, "a", 1, tokens), -1);
    TAKES(tn_charset_text(NULL, 0));
    tn_charset *c = tn_charset_from_text("ab", 2);
    QUIET(tn_charset_encode(c, NULL, 2, tokens), -1);
    QUIET(tn_charset_encode(c, "ab", 2, NULL), -1);
    QUIET(tn_charset_encode(c, "x", 1, tokens), -1);
    for (int i = 0; i < LONGS; i++) {
        TAKES(tn_charset_text(c, longs[i]));
    }
    TAKES(tn_charset_free(c));
}

static void odd_datasets(tn_tensor *t) {
    int32_t tokens[4] = {0};
    size_t bytes;
    TAKES(tn_dataset_free(NULL));
    NOTHING(tn_tensor_dataset(t, t));
    NOTHING(tn_tensor_dataset(tn_scalar(1.0, TN_F32), NULL));
    NOTHING(tn_token_dataset(NULL, 4, 2));
    NOTHING(tn_token_shards(NULL, 4, 2));
    NOTHING(tn_token_shards("/nowhere/*.bin", 4, 2));
    NOTHING(tn_token_shards("/nowhere/*.bin", 0, 2));
    NOTHING(tn_token_shards("/nowhere/*.bin", 4, -1));
    NOTHING(tn_token_shards_vocab(NULL));
    NOTHING(tn_token_shards_vocab("/nowhere/*.bin"));
    NOTHING(tn_sliding_shards(NULL, 4, 2, 2));
    NOTHING(tn_sliding_shards("/nowhere/*.bin", 4, 5, 2));
    NOTHING(tn_sliding_shards("/nowhere/*.bin", 4, 2, 2));
    for (int i = 0; i < LONGS; i++) {
        if (longs[i] != 3) {
            NOTHING(tn_token_dataset(tokens, 4, longs[i]));
        }
        if (longs[i] < 3) {
            NOTHING(tn_token_dataset(tokens, longs[i], 2));
        }
    }
    NOTHING(tn_mnist(NULL, true));
    NOTHING(tn_mnist("", true));
    NOTHING(tn_mnist("/nowhere", false));
    files_of_examples();
    odd_charsets();
    NOTHING(tn_text_read(NULL, &bytes));
    NOTHING(tn_text_read("", &bytes));
    NOTHING(tn_text_read("/", NULL));
    TAKES(tn_text_free(NULL));
}

static void shards_writers(void) {
    int32_t token = 0;
    tn_shards_options o = tn_shards_defaults();
    NOTHING(tn_shards_writer_new(NULL, o));
    NOTHING(tn_shards_writer_new("", o));
    for (int i = 0; i < LONGS; i++) {
        o.vocab = o.shard_tokens = longs[i];
        tn_shards_writer *w = tn_shards_writer_new("/nowhere/w", o);
        TAKES(tn_shards_writer_add(w, NULL, longs[i]));
        TAKES(tn_shards_writer_add(w, &token, 1));
        TAKES(tn_shards_writer_free(w));
        o.pairs = true;
        w = tn_shards_writer_new("/nowhere/w", o);
        TAKES(tn_shards_writer_add_pair(w, NULL, longs[i], 0));
        TAKES(tn_shards_writer_add_pair(w, &token, 1, longs[i]));
        TAKES(tn_shards_writer_finish(w));
        TAKES(tn_shards_writer_free(w));
        o.pairs = false;
    }
    FAILS(tn_shards_writer_add(NULL, &token, 1));
    FAILS(tn_shards_writer_add_pair(NULL, &token, 1, 0));
    FAILS(tn_shards_writer_finish(NULL));
    QUIET(tn_shards_writer_shards(NULL), 0);
    QUIET(tn_shards_writer_tokens(NULL), 0);
    TAKES(tn_shards_writer_free(NULL));
}

static void odd_corpora(tn_tensor *t) {
    const char *paths[] = {NULL, "/nowhere"};
    tn_document d;
    tn_corpus_options o = tn_corpus_defaults();
    NOTHING(tn_corpus_open(NULL, 1, o));
    NOTHING(tn_corpus_open(paths, 0, o));
    NOTHING(tn_corpus_open(paths, -1, o));
    NOTHING(tn_corpus_open(paths, 1, o));
    NOTHING(tn_corpus_open(paths + 1, 1, o));
    o.key = NULL;
    NOTHING(tn_corpus_open(paths + 1, 1, o));
    TAKES(tn_corpus_next(NULL, &d));
    TAKES(tn_corpus_next(NULL, NULL));
    TAKES(tn_corpus_where(NULL));
    TAKES(tn_corpus_free(NULL));
    shards_writers();
}

/* ---- tokenizer.h ----------------------------------------------------------------------------- */

static void tokens_made(void) {
    const char *paths[] = {"/nowhere", NULL};
    tn_tokens_options o = tn_tokens_defaults();
    tn_tokens_made made;
    FAILS(tn_tokens_make(NULL, paths, 1, "/nowhere/out", o, &made));
    FAILS(tn_tokens_make(NULL, NULL, 0, NULL, o, NULL));
    FAILS(tn_token_shards_check("/nowhere/*.bin", NULL));
    FAILS(tn_token_shards_check(NULL, NULL));
}

static void odd_tokenizers(tn_tensor *t) {
    char text[TN_UTF8_BOUND(1)];
    int32_t ids[] = {0};
    tn_ids out = {0};
    NOTHING(tn_tokenizer_load(NULL));
    NOTHING(tn_tokenizer_load(""));
    NOTHING(tn_tokenizer_load("/nowhere"));
    NOTHING(tn_tokenizer_load("/"));
    tn_tiktoken_options o = tn_tiktoken_defaults();
    NOTHING(tn_tokenizer_load_tiktoken(NULL, o));
    NOTHING(tn_tokenizer_load_tiktoken("/nowhere", o));
    o.special_count = 1;
    NOTHING(tn_tokenizer_load_tiktoken("/nowhere", o));
    o.special_count = -1;
    NOTHING(tn_tokenizer_load_tiktoken("/nowhere", o));
    TAKES(tn_tokenizer_free(NULL));
    QUIET(tn_tokenizer_size(NULL), 0);
    QUIET(tn_tokenizer_special(NULL, "a"), -1);
    FAILS(tn_tokenizer_encode(NULL, "a", 1, false, &out));
    FAILS(tn_tokenizer_encode_framed(NULL, "a", 1, false, &out));
    NOTHING(tn_tokenizer_decode(NULL, ids, 1, NULL));
    NOTHING(tn_tokenizer_decode(NULL, NULL, 1, NULL));
    NOTHING(tn_tokenizer_decode(NULL, ids, -1, NULL));
    for (int i = 0; i < LONGS; i++) {
        NOTHING(tn_tokenizer_bytes(NULL, longs[i], NULL));
    }
    const char *texts[] = {NULL};
    size_t bytes[] = {1};
    TAKES(tn_rows_defaults());
    INERT(tn_tokenizer_encode_rows(NULL, texts, 1, tn_rows_defaults(), NULL));
    tn_tokenizer_train_options train = tn_tokenizer_train_defaults();
    NOTHING(tn_tokenizer_train(NULL, NULL, 1, train));
    NOTHING(tn_tokenizer_train(texts, bytes, 1, train));
    NOTHING(tn_tokenizer_train(texts, bytes, -1, train));
    for (int i = 0; i < LONGS; i++) {
        train.vocab = longs[i];
        TAKES(tn_tokenizer_free(tn_tokenizer_train(texts, NULL, 1, train)));
    }
    FAILS(tn_tokenizer_save(NULL, "/nowhere"));
    tn_utf8_stream stream = {.count = 0};
    QUIET(tn_utf8_put(&stream, NULL, 0, text), 0);
    QUIET(tn_utf8_end(&stream, text), 0);
    TAKES(tn_ids_free(NULL));
    TAKES(tn_ids_free(&out));
    tokens_made();
}

/* ---- Loaders, again data.h ------------------------------------------------------------------- */

static tn_status get_nothing(tn_dataset *self, tn_example e, void *x, void *y) {
    return TN_OK;
}

static void odd_samplers(tn_tensor *t) {
    for (int i = 0; i < LONGS; i++) {
        for (int j = 0; j < LONGS; j++) {
            for (int k = 0; k < LONGS; k++) {
                tn_sampler odd = {.kind = (tn_sampler_kind)(i % 6),
                                  .seed = UINT64_MAX,
                                  .part = longs[j],
                                  .parts = longs[k],
                                  .rule = (tn_part_rule)(j % 4)};
                odd.draws = longs[k];
                odd.batch = odd.bucket = longs[j];
                TAKES(tn_sampler_count(&odd, longs[i]));
                TAKES(tn_sampler_is_real(&odd, longs[i], longs[k]));
                TAKES(tn_sampler_at(&odd, longs[i], longs[j], longs[k]));
                tn_sampler s = tn_random_sampler(1);
                TAKES(tn_sampler_at(&s, longs[i], longs[j], longs[k]));
            }
        }
    }
    TAKES(tn_sampler_count(NULL, 4));
    TAKES(tn_sampler_at(NULL, 4, 0, 0));
}

static void odd_loaders(tn_tensor *t) {
    tn_batch batch = {0};
    tn_sampler s = tn_random_sampler(1);
    NOTHING(tn_loader_new(NULL, tn_replacement_sampler(1), tn_loader_defaults()));
    TAKES(tn_loader_free(NULL));
    QUIET(tn_loader_next(NULL, &batch), false);
    TAKES(tn_loader_where(NULL));
    TAKES(tn_loader_seek(NULL, (tn_loader_place){0}));
    QUIET(tn_loader_has(NULL, (tn_loader_place){0}), false);
    QUIET(tn_loader_batches(NULL), 0);
    TAKES(tn_loader_options_of(NULL));
    TAKES(tn_loader_sampler(NULL));
    QUIET(tn_loader_dataset(NULL), NULL);
    static tn_dataset zero, no_get = {.kind = "odd", .size = 4, .y_dims = {-1, {0}}};
    static tn_dataset endless = {
        .kind = "odd", .size = INT64_MAX, .y_dims = {-1, {0}}, .get = get_nothing};
    static tn_dataset huge = {
        .kind = "odd", .size = 4, .x_dims = {2, {INT64_MAX, INT64_MAX}}, .get = get_nothing};
    static tn_dataset deep = {
        .kind = "odd", .size = 4, .x_dims = {99, {0}}, .y_dims = {99, {0}}, .get = get_nothing};
    tn_dataset *const odd[] = {&zero, &no_get, &endless, &huge, &deep};
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < LONGS; j++) {
            tn_loader_options o =
                TN_WITH(tn_loader, .batch = longs[j], .epochs = longs[j],
                        .threads = ints[j] > 9 ? 9 : ints[j], .prefetch = ints[j]);
            tn_loader *l = tn_loader_new(odd[i], s, o);
            check_call(__LINE__, "tn_loader_new", true, i < 2 || i == 4);
            for (int k = 0; k < LONGS; k++) {
                TAKES(tn_loader_seek(l, (tn_loader_place){longs[k], longs[LONGS - 1 - k]}));
                TAKES(tn_loader_has(l, (tn_loader_place){longs[k], longs[k]}));
            }
            TAKES(tn_loader_next(l, NULL));
            TAKES(tn_loader_free(l));
        }
    }
}

static void composed_datasets(tn_tensor *t) {
    tn_dataset *pieces[2] = {0};
    for (int i = 0; i < LONGS; i++) {
        TAKES(tn_example_generator((tn_example){longs[i], longs[i], longs[i]}, UINT64_MAX));
        FAILS(tn_dataset_get(NULL, longs[i], NULL, NULL));
        NOTHING(tn_subset(NULL, &longs[i], 1));
        NOTHING(tn_sequence_dataset(NULL, NULL, longs[i]));
        FAILS(tn_random_split(NULL, (double[]){1}, ints[i % INTS], 1, NULL));
    }
    QUIET(tn_dataset_keep(NULL), NULL);
    INERT(tn_dataset_lengths(NULL));
    NOTHING(tn_concat_dataset(NULL, 2));
    NOTHING(tn_sequence_dataset(&t, &t, 1));
    FAILS(tn_random_split(NULL, NULL, 2, 1, pieces));
}

/* ---- transforms.h ---------------------------------------------------------------------------- */

static void odd_transforms(tn_tensor *t) {
    const tn_batch batch = {.x = t, .y = t};
    for (int i = 0; i < LONGS; i++) {
        for (int j = 0; j < REALS; j++) {
            const tn_transform odd[] = {tn_random_crop(longs[i], longs[LONGS - 1 - i], longs[i]),
                                        tn_center_crop(longs[i], longs[i]),
                                        tn_image_resize(longs[i], longs[i]),
                                        tn_random_resized_crop(longs[i], longs[i], reals[j]),
                                        tn_random_horizontal_flip(reals[j]),
                                        tn_color_jitter(reals[j], 0, reals[REALS - 1 - j]),
                                        tn_image_normalize(ints[i % INTS], NULL, &reals[j]),
                                        {0}};
            NOTHING(tn_transformed(NULL, odd, 8, 1));
            NOTHING(tn_transformed(NULL, NULL, ints[i % INTS], 1));
            INERT(tn_mixup(batch, longs[i], reals[j], 1).x);
            INERT(tn_weighted_sampler(t, longs[i], 1).table);
            INERT(tn_bucket_sampler(t, longs[i], 3, 1).table);
        }
    }
}

/* ---- The parts ------------------------------------------------------------------------------- */

PART(odd_datasets)
PART(odd_corpora)
PART(odd_samplers)
PART(odd_loaders)
PART(composed_datasets)
PART(odd_transforms)
PART(odd_tokenizers)

int main(int argc, char **argv) {
    return RUN_PARTS(argc, argv);
}
