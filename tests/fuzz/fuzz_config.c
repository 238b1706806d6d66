/* The input is the config.json of a folder with weights: of a small gpt, and of a small llama. It
 * is refused with an error that says where, or a model that can be called is loaded. */
#include "tests/fuzz/folder.h"

static const char *config_folders[2];

static void make_config_folders(void) {
    TN_SCOPE;
    fuzz_folder_gpt(config_folders[0] = fuzz_folder_new(), tn_lm_save_defaults());
    fuzz_folder_llama(config_folders[1] = fuzz_folder_new());
}

FUZZ(config, make_config_folders) {
    for (int i = 0; i < 2; i++) {
        fuzz_folder_write(config_folders[i], "config.json", data, bytes);
        fuzz_folder_load(config_folders[i]);
    }
}
