/* A run's event files for TensorBoard: its numbers, and now and then the distribution of the
 * weights. */
#include "core/error.h"
#include "train/run.h"

#include <stdio.h>

/* When a run continues, or starts over, TensorBoard drops what earlier files have from there on. */
void tn__run_board_open(tn_run *r) {
    const tn_run_options *o = &r->options;
    if (o->tensorboard && r->first_rank) {
        int64_t purge = o->overwrite ? 0 : r->start > 0 ? r->start : -1;
        r->board = tn_summary_writer_new(o->out, purge);
    }
}

void tn__run_put(tn_run *r, const char *name, double value) {
    if (tn_history_put(r->history, name, value) == TN_OK) {
        tn_summary_add_scalar(r->board, name, value, r->parts.step);
    }
}

/* Writes a parameter that this rank has whole. */
static bool put_weight(const tn_entry *entry, void *user) {
    tn_run *r = user;
    const tn_tensor *t = entry->stored;
    if (entry->parts || !t || tn_is_inert(t) || tn_count(t) == 0) { return true; }
    char tag[TN_MODULE_NAME + 16];
    snprintf(tag, sizeof(tag), "weights/%s", entry->path);
    return tn_summary_add_histogram(r->board, tag, t, r->parts.step) == TN_OK;
}

void tn__run_board_weights(tn_run *r) {
    if (r->board) {
        tn_module_each(r->parts.model, (tn_walk){0}, put_weight, r);
        tn_summary_flush(r->board);
    }
}

tn_summary_writer *tn_run_board(const tn_run *r) {
    return r && tn__run_here(r, "run_board") ? r->board : NULL;
}
