/* Each allocation fails once while a model is saved and loaded, in every file format. */
#include "tests/support/temp.h"

#include "tests/support/no_memory.h"

static void init_model(tn_gpt *m) {
    tn_gpt_init(m, TN_WITH(tn_gpt, .vocab = 5, .context = 4, .layers = 1, .heads = 1, .width = 4,
                           .activation = TN_ACT_GELU_TANH, .bias = false));
}

static void use_folder(void) {
    TN_SCOPE;
    tn_gpt m;
    init_model(&m);
    if (tn_lm_save_with(&m, temp_path("folder"), TN_WITH(tn_lm_save, .max_part_bytes = 900)) ==
        TN_OK) {
        tn_module_free(tn_lm_load(temp_path("folder"),
                                  TN_WITH(tn_lm_load, .as_stored = false, .dtype = TN_BF16)));
    }
    tn_module_finish(&m);
}

static void use_weights(void) {
    TN_SCOPE;
    tn_gpt m;
    init_model(&m);
    if (tn_lm_save_with(&m, temp_path("plain"),
                        TN_WITH(tn_lm_save, .max_part_bytes = 900, .plain = true)) == TN_OK) {
        tn_status status = tn_lm_load_weights(&m, temp_path("plain"));
        (void)status; /* pending */
        tn_module_free(tn_lm_load(temp_path("plain"), TN_WITH(tn_lm_load, .mmap = true)));
    }
    tn_module_finish(&m);
}

PLAIN_TEST(folders_without_memory) {
    every_allocation(use_folder);
}

PLAIN_TEST(weights_without_memory) {
    every_allocation(use_weights);
}
