/* Runs a tokenizer for scripts. TEXTS is a list: for each text the number of bytes (u32) and the
 * bytes; IDS likewise, the number of ids and the ids.
 *
 *     tokenizer_program encode TOKENIZER TEXTS IDS [special|framed]
 *     tokenizer_program decode TOKENIZER IDS TEXTS
 *     tokenizer_program train TEXTS FOLDER VOCAB PATTERN
 *     tokenizer_program save TOKENIZER FOLDER
 *     tokenizer_program unassigned NUMBERS     code points that PCRE2 does not know (u32)
 */
#include <tern/tern.h>

#include "text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail_with(const char *what) {
    fprintf(stderr, "tokenizer_program: %s\n", what);
    exit(1);
}

static void put_list(FILE *to, const void *items, size_t size, size_t count) {
    uint32_t head = (uint32_t)count;
    if (fwrite(&head, 4, 1, to) != 1 || fwrite(items, size, count, to) != count) {
        fail_with("cannot write");
    }
}

/* The list at *at, of items of `size` bytes; false at the end. */
static bool next_list(const char **at, const char *end, size_t size, const char **items,
                      size_t *count) {
    uint32_t head;
    if (*at == end) { return false; }
    memcpy(&head, *at, 4);
    *count = head;
    *items = *at + 4;
    *at += 4 + size * head;
    return true;
}

static void encode_lists(const tn_tokenizer *t, const char *at, const char *end, const char *how,
                         FILE *to) {
    bool framed = strcmp(how, "framed") == 0, special = framed || strcmp(how, "special") == 0;
    const char *text;
    size_t bytes;
    tn_ids ids = {0};
    while (next_list(&at, end, 1, &text, &bytes)) {
        ids.count = 0;
        tn_status done = framed ? tn_tokenizer_encode_framed(t, text, bytes, special, &ids)
                                : tn_tokenizer_encode(t, text, bytes, special, &ids);
        if (done == TN_OK) { put_list(to, ids.ids, sizeof(int32_t), (size_t)ids.count); }
    }
    tn_ids_free(&ids);
}

static void decode_lists(const tn_tokenizer *t, const char *at, const char *end, FILE *to) {
    const char *ids;
    size_t count, bytes;
    while (next_list(&at, end, sizeof(int32_t), &ids, &count)) {
        char *text =
            tn_tokenizer_decode(t, (const int32_t *)(const void *)ids, (int64_t)count, &bytes);
        put_list(to, text, 1, bytes);
        tn_text_free(text);
    }
}

static FILE *open_output(const char *path) {
    FILE *to = fopen(path, "wb");
    if (!to) { fail_with("cannot open the output"); }
    return to;
}

static void close_output(FILE *to) {
    if (fclose(to) != 0) { fail_with("cannot write"); }
}

static void run_tokenizer(const char *what, const char *path, const char *input, const char *output,
                          const char *how) {
    size_t bytes;
    tn_tokenizer *t = tn_tokenizer_load(path);
    char *in = tn_text_read(input, &bytes);
    FILE *to = open_output(output);
    if (strcmp(what, "encode") == 0) {
        encode_lists(t, in, in + bytes, how, to);
    } else {
        decode_lists(t, in, in + bytes, to);
    }
    close_output(to);
    tn_text_free(in);
    tn_tokenizer_free(t);
}

static void train_tokenizer(const char *input, const char *folder, const char *vocab,
                            const char *pattern) {
    enum { MOST = 100000 };
    static const char *texts[MOST];
    static size_t bytes[MOST];
    int64_t n = 0;
    size_t all;
    char *in = tn_text_read(input, &all);
    const char *at = in;
    while (n < MOST && next_list(&at, in + all, 1, &texts[n], &bytes[n])) {
        n++;
    }
    tn_tokenizer_train_options o =
        TN_WITH(tn_tokenizer_train, .vocab = atoll(vocab), .pattern = pattern);
    tn_tokenizer *t = tn_tokenizer_train(texts, bytes, n, o);
    if (tn_tokenizer_save(t, folder) != TN_OK) { fail_with("cannot save"); }
    tn_tokenizer_free(t);
    tn_text_free(in);
}

static void save_tokenizer(const char *path, const char *folder) {
    tn_tokenizer *t = tn_tokenizer_load(path);
    if (tn_tokenizer_save(t, folder) != TN_OK) { fail_with("cannot save"); }
    tn_tokenizer_free(t);
}

static void list_unassigned(const char *output) {
    int wrong;
    size_t at;
    FILE *to = open_output(output);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR) "\\p{Cn}", PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &wrong, &at, NULL);
    pcre2_match_data *found = pcre2_match_data_create(1, NULL);
    if (!code || !found) { fail_with("no PCRE2"); }
    for (uint32_t c = 0; c < 0x110000; c += c == 0xd7ff ? 0x801 : 1) {
        char text[4];
        size_t bytes = (size_t)tn__utf8_encode(c, text);
        if (pcre2_match(code, (PCRE2_SPTR)text, bytes, 0, 0, found, NULL) > 0) {
            fwrite(&c, 4, 1, to);
        }
    }
    pcre2_match_data_free(found);
    pcre2_code_free(code);
    close_output(to);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    const char *what = argc > 2 ? argv[1] : "";
    if ((strcmp(what, "encode") == 0 || strcmp(what, "decode") == 0) && argc >= 5) {
        run_tokenizer(what, argv[2], argv[3], argv[4], argc > 5 ? argv[5] : "");
    } else if (strcmp(what, "train") == 0 && argc == 6) {
        train_tokenizer(argv[2], argv[3], argv[4], argv[5]);
    } else if (strcmp(what, "save") == 0 && argc == 4) {
        save_tokenizer(argv[2], argv[3]);
    } else if (strcmp(what, "unassigned") == 0) {
        list_unassigned(argv[2]);
    } else {
        fail_with("encode, decode, train, save or unassigned");
    }
    return 0;
}
