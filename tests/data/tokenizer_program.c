/* What a script asks of a tokenizer. Texts are lists: as often as there are some, the number of
 * bytes (u32) and the bytes; ids likewise, the number of ids and the ids.
 *
 *     tokenizer_program encode TOKENIZER TEXTS IDS [special]
 *     tokenizer_program decode TOKENIZER IDS TEXTS
 */
#include <tern/tern.h>

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
    if (*at == end) {
        return false;
    }
    memcpy(&head, *at, 4);
    *count = head;
    *items = *at + 4;
    *at += 4 + size * head;
    return true;
}

static void encode_lists(const tn_tokenizer *t, const char *at, const char *end, bool special,
                         FILE *to) {
    const char *text;
    size_t bytes;
    tn_ids ids = {0};
    while (next_list(&at, end, 1, &text, &bytes)) {
        ids.count = 0;
        if (tn_tokenizer_encode(t, text, bytes, special, &ids) == TN_OK) {
            put_list(to, ids.ids, sizeof(int32_t), (size_t)ids.count);
        }
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

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    if (argc < 5) {
        fail_with("encode TOKENIZER TEXTS IDS [special] or decode TOKENIZER IDS TEXTS");
    }
    size_t bytes;
    tn_tokenizer *t = tn_tokenizer_load(argv[2]);
    char *in = tn_text_read(argv[3], &bytes);
    FILE *to = fopen(argv[4], "wb");
    if (!to) {
        fail_with("cannot open the output");
    }
    if (strcmp(argv[1], "encode") == 0) {
        encode_lists(t, in, in + bytes, argc > 5, to);
    } else {
        decode_lists(t, in, in + bytes, to);
    }
    if (fclose(to) != 0) {
        fail_with("cannot write");
    }
    tn_text_free(in);
    tn_tokenizer_free(t);
    return 0;
}
