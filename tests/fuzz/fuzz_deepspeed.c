/* The input is a file in DeepSpeed's format. It is refused with a reason, or what it says makes
 * sense. */
#include "tests/fuzz/bytes.h"

#include "train/deepspeed/file.h"

#include <math.h>
#include <string.h>

static void check_file(const tn__ds_file *f, int ranks) {
    must_hold(strlen(f->unread) < sizeof(f->unread), "a text without an end");
    must_hold(f->micro_batch >= 1 && f->accumulation >= 1 &&
                  f->batch == f->micro_batch * f->accumulation * ranks,
              "batch sizes");
    must_hold(f->clipping >= 0 && f->stage >= 0 && f->stage <= 3, "clipping and stage");
    must_hold(f->optimizer.lr >= 0 && f->optimizer.betas[0] < 1 && f->optimizer.betas[1] < 1 &&
                  f->optimizer.weight_decay >= 0,
              "the optimiser");
    for (int64_t steps = 0; steps < 3000; steps = 2 * steps + 1) {
        double lr = tn__ds_lr(&f->schedule, f->optimizer.lr, steps);
        must_hold(lr >= 0, "a learning rate");
    }
}

FUZZ(deepspeed, NULL) {
    int ranks = bytes ? data[0] + 1 : 1;
    size_t head = bytes ? 1 : 0;
    char *text = malloc(bytes - head + 1); /* its end is the end of what may be read */
    must_hold(text != NULL, "no memory");
    memcpy(text, data + head, bytes - head);
    tn__ds_file f;
    bool read = tn__ds_read(&f, "deepspeed", "ds.json", text, bytes - head, ranks);
    must_hold(read == (tn_error() == TN_OK), "read with an error, or neither");
    must_hold(read || strstr(tn_error_message(), "ds.json"), "an error without the file");
    tn_error_clear();
    if (read) { check_file(&f, ranks); }
    free(text);
}
