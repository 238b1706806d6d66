/* Hugging Face folders that a save writes: in one file or several, and nothing of earlier saves
 * stays in them. */
#include "tests/models/hf_folder.h"

TEST(saved_and_loaded) {
    tn_gpt m;
    init_small(&m, small_options());
    const char *folder = temp_path("saved");
    tn_lm_save_options parts = tn_lm_save_defaults(), plain = tn_lm_save_defaults();
    parts.max_part_bytes = 700;
    plain.plain = true;
    const tn_lm_save_options ways[] = {
        tn_lm_save_defaults(), parts, tn_lm_save_defaults(), plain, parts, plain,
        tn_lm_save_defaults()};
    mkdir(folder, 0777);
    temp_write(in_folder(folder, "tokenizer.json"), "{}", 2);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        assert_int_equal(tn_lm_save_with(&m, folder, ways[i]), TN_OK);
        assert_folder(folder, &m);
        bool one = access(in_folder(folder, "model.safetensors"), F_OK) == 0;
        bool index = access(in_folder(folder, "model.safetensors.index.json"), F_OK) == 0;
        bool own = access(in_folder(folder, "tern.safetensors"), F_OK) == 0;
        assert_int_equal(one, !ways[i].plain && ways[i].max_part_bytes > 700);
        assert_int_equal(index, ways[i].max_part_bytes == 700);
        assert_int_equal(own, ways[i].plain);
        assert_int_equal(access(in_folder(folder, "tokenizer.json"), F_OK), 0);
        assert_int_not_equal(access(in_folder(folder, "weights.tmp"), F_OK), 0);
    }
    tn_module_finish(&m);
}

TEST(without_biases) {
    tn_gpt m;
    tn_gpt_options o = small_options();
    o.bias = false;
    init_small(&m, o);
    const char *folder = temp_path("biases");
    assert_int_equal(tn_lm_save(&m, folder), TN_OK);
    tn_gpt *got = (tn_gpt *)tn_lm_load(folder, tn_lm_load_defaults());
    assert_true(got->options.bias);
    assert_same_logits(&m, got);
    tn_module_free(got);
    tn_lm_save_options plain = TN_WITH(tn_lm_save, .plain = true);
    assert_int_equal(tn_lm_save_with(&m, folder, plain), TN_OK);
    assert_folder(folder, &m);
    tn_module_finish(&m);
}

/* As transformers reads it: (in, out), with the prefix, and which program wrote it. */
TEST(what_is_written) {
    tn_gpt m;
    init_small(&m, small_options());
    const char *folder = temp_path("written");
    assert_int_equal(tn_lm_save(&m, folder), TN_OK);
    tn_safetensors *f = tn_safetensors_open(in_folder(folder, "model.safetensors"));
    assert_non_null(f);
    assert_string_equal(tn_safetensors_metadata(f, "format"), "pt");
    assert_int_equal(tn_safetensors_count(f), 2 + 12 * LAYERS + 2);
    TN_NO_GRAD;
    tn_tensor *c_fc = tn_safetensors_get(f, "transformer.h.1.mlp.c_fc.weight");
    assert_int_equal(tn_size(c_fc, 0), WIDTH);
    tn_tensor *back = tn_contiguous(tn_transpose(c_fc, 0, 1));
    assert_memory_equal(tn_data(back), tn_data(m.h[1].mlp.c_fc.weight),
                        4 * WIDTH * WIDTH * sizeof(float));
    tn_safetensors_close(f);
    tn_module_finish(&m);
}
