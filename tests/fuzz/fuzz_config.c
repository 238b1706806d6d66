/* The input is the config.json of a folder with weights: of a small gpt, and of a small llama. It
 * is refused with an error that says where, or a model that can be called is loaded. */
#define _GNU_SOURCE
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char config_folders[2][40] = {"/tmp/tern_fuzz_config_XXXXXX",
                                     "/tmp/tern_fuzz_config_XXXXXX"};

static void remove_config_folders(void) {
    fuzz_folder_remove(config_folders[0]);
    fuzz_folder_remove(config_folders[1]);
}

static void make_config_folders(void) {
    TN_SCOPE;
    fuzz_folder_make(config_folders[0]);
    fuzz_folder_make(config_folders[1]);
    atexit(remove_config_folders);
    fuzz_folder_gpt(config_folders[0], tn_lm_save_defaults());
    fuzz_folder_llama(config_folders[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static bool made;
    if (!made) {
        make_config_folders();
        made = true;
    }
    int64_t live = tn_live_tensors();
    for (int i = 0; i < 2; i++) {
        fuzz_folder_write(config_folders[i], "config.json", data, bytes);
        fuzz_folder_load(config_folders[i]);
    }
    must_hold(tn_live_tensors() == live, "a leak");
    return 0;
}
