/* llm.c's checkpoints: written as llm.c itself would write them, and refused if damaged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/temp.h"

#include "tern/tern.h"

enum { VOCAB = 7, CONTEXT = 5, WIDTH = 6, LAYERS = 2, PADDED = 128, HEADER = 1024 };
enum { COUNT = (PADDED + CONTEXT) * WIDTH + LAYERS * (12 * WIDTH + 13) * WIDTH + 2 * WIDTH };

static tn_gpt_options small_options(tn_dtype dtype) {
    return TN_WITH(tn_gpt, .vocab = VOCAB, .context = CONTEXT, .layers = LAYERS, .heads = 2,
                   .width = WIDTH, .dtype = dtype);
}

static bool draw_entry(const tn_entry *entry, void *user) {
    tn_normal_(*entry->field, 0.0, 1.0, tn_default_generator());
    return true;
}

static void init_small(tn_gpt *m, tn_gpt_options o) {
    TN_NO_GRAD;
    tn_gpt_init(m, o);
    tn_module_each(m, (tn_walk){0}, draw_entry, NULL);
}

static bool compare_entry(const tn_entry *entry, void *user) {
    tn_tensor *other = tn_module_get(user, entry->path);
    assert_int_equal(tn_dtype_of(other), tn_dtype_of(*entry->field));
    assert_memory_equal(tn_data(*entry->field), tn_data(other),
                        (size_t)tn_count(other) * tn_dtype_size(tn_dtype_of(other)));
    return true;
}

TEST(round_trip) {
    const tn_dtype dtypes[] = {TN_F32, TN_BF16};
    for (int i = 0; i < 2; i++) {
        tn_gpt m, got;
        const char *path = temp_path("model.bin");
        init_small(&m, small_options(dtypes[i]));
        assert_int_equal(tn_gpt_save_llmc(&m, path), TN_OK);
        assert_int_equal(tn_gpt_load_llmc(&got, path, tn_lm_load_defaults()), TN_OK);
        tn_module_each(&m, (tn_walk){0}, compare_entry, &got);
        tn_module_finish(&got);

        tn_lm_load_options other = TN_WITH(tn_lm_load, .dtype = TN_F64, .as_stored = false);
        assert_int_equal(tn_gpt_load_llmc(&got, path, other), TN_OK);
        tn_tensor *want = tn_cast(tn_module_get(&m, "h.1.mlp.c_fc.weight"), TN_F64);
        assert_memory_equal(tn_data(want), tn_data(tn_module_get(&got, "h.1.mlp.c_fc.weight")),
                            4 * WIDTH * WIDTH * 8);
        tn_module_finish(&got);
        TN_NO_GRAD;
        tn_fill_(tn_detach(m.top.ln_f.bias), 1e5);
        assert_int_equal(tn_gpt_save_llmc(&m, path), TN_OK);
        other.dtype = TN_F16;
        assert_int_equal(tn_gpt_load_llmc(&got, path, other), TN_EVALUE);
        assert_error(TN_EVALUE, "\"ln_f.bias\" has a number of size");
        tn_module_finish(&m);
    }
}

/* Parameters are where llm.c's fill_in_parameter_sizes puts them. */
TEST(bytes_of_the_file) {
    tn_gpt m;
    init_small(&m, small_options(TN_F32));
    const char *path = temp_path("model.bin");
    assert_int_equal(tn_gpt_save_llmc(&m, path), TN_OK);
    size_t bytes;
    unsigned char *data = temp_read(path, &bytes);
    assert_int_equal(bytes, HEADER + COUNT * sizeof(float));
    const int32_t *h = (const int32_t *)(void *)data,
                  want[] = {20240326, 3, CONTEXT, VOCAB, LAYERS, 2, WIDTH, PADDED};
    assert_memory_equal(h, want, sizeof(want));
    for (int i = 8; i < 256; i++) {
        assert_int_equal(h[i], 0);
    }
    const float *p = (const float *)(void *)(data + HEADER);
    assert_memory_equal(p, tn_data(tn_module_get(&m, "wte.weight")), VOCAB * WIDTH * 4);
    for (int i = VOCAB * WIDTH; i < PADDED * WIDTH; i++) {
        assert_true(p[i] == 0.0f);
    }
    p += PADDED * WIDTH;
    assert_memory_equal(p, tn_data(tn_module_get(&m, "wpe.weight")), CONTEXT * WIDTH * 4);
    p += CONTEXT * WIDTH;
    p += LAYERS * 2 * WIDTH; /* ln1w, ln1b */
    const size_t c_attn = 3 * WIDTH * WIDTH;
    assert_memory_equal(p + c_attn, tn_data(tn_module_get(&m, "h.1.attn.c_attn.weight")),
                        c_attn * 4);
    p = (const float *)(void *)(data + bytes) - WIDTH;
    assert_memory_equal(p, tn_data(tn_module_get(&m, "ln_f.bias")), WIDTH * 4);
    p -= WIDTH + LAYERS * WIDTH; /* ln_f.weight; the biases of mlp.c_proj */
    assert_memory_equal(p, tn_data(tn_module_get(&m, "h.0.mlp.c_proj.bias")), WIDTH * 4);
    free(data);
    tn_module_finish(&m);
}

TEST(without_biases) {
    tn_gpt m, got;
    tn_gpt_options o = small_options(TN_F32);
    o.bias = false;
    init_small(&m, o);
    const char *path = temp_path("model.bin");
    assert_int_equal(tn_gpt_save_llmc(&m, path), TN_OK);
    assert_int_equal(tn_gpt_load_llmc(&got, path, tn_lm_load_defaults()), TN_OK);
    TN_NO_GRAD;
    tn_tensor *tokens = TN_FROM(((int64_t[]){1, 2, 3}), TN_DIMS(1, 3), TN_I64);
    assert_memory_equal(tn_data(tn_call(&m, tokens)), tn_data(tn_call(&got, tokens)),
                        3 * VOCAB * 4);
    tn_module_finish(&got);
    tn_module_finish(&m);
}

TEST(models_that_llmc_has_not) {
    tn_gpt m;
    const char *path = temp_path("none.bin");
    tn_gpt_options o = small_options(TN_F32);
    o.activation = TN_ACT_RELU;
    init_small(&m, o);
    assert_int_equal(tn_gpt_save_llmc(&m, path), TN_EUNSUPPORTED);
    assert_error(TN_EUNSUPPORTED, "activation");
    tn_module_finish(&m);
    init_small(&m, small_options(TN_F16));
    assert_int_equal(tn_gpt_save_llmc(&m, path), TN_EUNSUPPORTED);
    assert_error(TN_EUNSUPPORTED, "is f16");
    tn_module_finish(&m);
    init_small(&m, small_options(TN_F32));
    m.h[1].ln_2.eps = 1e-6;
    assert_int_equal(tn_gpt_save_llmc(&m, path), TN_EUNSUPPORTED);
    assert_error(TN_EUNSUPPORTED, "h.1.ln_2 has eps 1e-06");
    tn_module_finish(&m);
    assert_int_equal(temp_count(), 1); /* model.bin */
}

TEST(headers_that_lie) {
    static const struct {
        int at;
        int32_t is;
        const char *error;
    } wrong[] = {
        {0, 20240327, "model.bin is not an llm.c checkpoint; it is an llm.c training state"},
        {1, 2, "header field 1 is 2 but must be the version, 3 (f32) or 5 (bf16)"},
        {1, 5, "not the size of a gpt with vocab 7 (padded to 128)"},
        {2, 0, "header field 2 is 0 but must be at least 1"},
        {2, 6, "context 6"},
        {3, 129, "header field 7 is 128 but must be at least field 3, the vocabulary"},
        {4, -1, "header field 4 is -1"},
        {4, 2147483647, "layers 2147483647"},
        {5, 4, "header field 6 is 6 but must be a multiple of field 5, the heads"},
        {6, 2147483646, "width 2147483646"},
        {7, 2147483647, "padded to 2147483647"},
    };
    tn_gpt m, got;
    init_small(&m, small_options(TN_F32));
    const char *path = temp_path("model.bin");
    assert_int_equal(tn_gpt_save_llmc(&m, path), TN_OK);
    size_t bytes;
    unsigned char *data = temp_read(path, &bytes);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        int32_t was;
        memcpy(&was, data + 4 * wrong[i].at, 4);
        memcpy(data + 4 * wrong[i].at, &wrong[i].is, 4);
        temp_write(path, data, bytes);
        assert_int_equal(tn_gpt_load_llmc(&got, path, tn_lm_load_defaults()), TN_EFORMAT);
        assert_contains(tn_error_message(), "model.bin");
        assert_error(TN_EFORMAT, wrong[i].error);
        tn_module_finish(&got);
        memcpy(data + 4 * wrong[i].at, &was, 4);
    }
    const size_t lengths[] = {0, 1, 1023, 1024, bytes - 1, bytes + 1};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        temp_write(path, data, lengths[i] < bytes ? lengths[i] : bytes);
        if (lengths[i] > bytes) {
            FILE *file = fopen(path, "ab");
            fputc(0, file);
            fclose(file);
        }
        assert_int_equal(tn_gpt_load_llmc(&got, path, tn_lm_load_defaults()), TN_EFORMAT);
        assert_error(TN_EFORMAT, "bytes");
        tn_module_finish(&got);
    }
    free(data);
    tn_module_finish(&m);
}
