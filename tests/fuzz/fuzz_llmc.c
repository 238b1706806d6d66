/* The input is a checkpoint of llm.c. It is refused with an error, or a model is loaded. */
#define _GNU_SOURCE
#include "tests/fuzz/bytes.h"

#include "tern/tern.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    int64_t live = tn_live_tensors();
    bytes_file file = bytes_file_open(data, bytes);
    tn_gpt m;
    tn_status status = tn_gpt_load_llmc(&m, file.path, tn_lm_load_defaults());
    must_hold(status == tn_error(), "a status other than the pending error");
    must_hold(status == TN_OK || status == TN_EFORMAT || status == TN_ENOMEM,
              "an unexpected error");
    must_hold(status != TN_OK || tn_module_count(&m) > 0, "no parameters");
    tn_error_clear();
    tn_module_finish(&m);
    bytes_file_close(&file);
    must_hold(tn_live_tensors() == live, "a leak");
    return 0;
}
