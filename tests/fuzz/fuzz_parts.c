/* The input is model.safetensors.index.json next to the parts of a small gpt. It is refused with an
 * error that says where, or the model is loaded. */
#include "tests/fuzz/folder.h"

static const char *parts_folder;

/* A gpt in parts of at most 700 bytes. */
static void make_parts_folder(void) {
    TN_SCOPE;
    parts_folder = fuzz_folder_new();
    fuzz_folder_gpt(parts_folder, TN_WITH(tn_lm_save, .max_part_bytes = 700));
}

FUZZ(parts, make_parts_folder) {
    fuzz_folder_write(parts_folder, "model.safetensors.index.json", data, bytes);
    fuzz_folder_load(parts_folder);
}
