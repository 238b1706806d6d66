/* The input is model.safetensors.index.json next to the parts of a small gpt. It is refused with an
 * error that says where, or the model is loaded. */
#define _GNU_SOURCE
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char parts_folder[] = "/tmp/tern_fuzz_parts_XXXXXX";

static void remove_parts_folder(void) {
    fuzz_folder_remove(parts_folder);
}

/* A gpt in parts of at most 700 bytes. */
static void make_parts_folder(void) {
    TN_SCOPE;
    fuzz_folder_make(parts_folder);
    atexit(remove_parts_folder);
    tn_lm_save_options options = TN_WITH(tn_lm_save, .max_part_bytes = 700);
    fuzz_folder_gpt(parts_folder, options);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static bool made;
    if (!made) {
        make_parts_folder();
        made = true;
    }
    int64_t live = tn_live_tensors();
    fuzz_folder_write(parts_folder, "model.safetensors.index.json", data, bytes);
    fuzz_folder_load(parts_folder);
    must_hold(tn_live_tensors() == live, "a leak");
    return 0;
}
