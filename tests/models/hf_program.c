/* What test_pypi_transformers.py compares: a model from a Hugging Face folder, what it computes
 * from BATCH (tokens, targets), 20 steps of AdamW, and the model saved again.
 *
 *     hf_program FOLDER BATCH OUT SAVED [RANKS MESH]
 *
 * OUT gets logits, loss, grad.NAME, losses (20), after.NAME, and greedy (the prompt's
 * continuation). On a mesh, whose ranks are threads with parts of each parameter, grad.NAME and
 * after.NAME are left out.
 */
#include "tern/tern.h"

#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 20, CONTINUED = 8 };

typedef struct dump {
    tn_safetensors_writer *writer;
    const char *prefix;
    bool gradients;
} dump;

static bool add_entry(const tn_entry *entry, void *user) {
    dump *d = user;
    char name[256];
    snprintf(name, sizeof(name), "%s%s", d->prefix, entry->path);
    tn_tensor *t = d->gradients ? tn_grad_of(entry->stored) : tn_detach(tn_copy(entry->stored));
    return tn_safetensors_writer_add(d->writer, name, t) == TN_OK;
}

static void add_losses(tn_safetensors_writer *w, void *m, tn_tensor *tokens, tn_tensor *targets) {
    tn_adamw_options options = TN_WITH(tn_adamw, .lr = 1e-3);
    options.eps = 1e-5; /* gradients that are only rounding errors do not make full steps */
    options.weight_decay = 0.1;
    tn_optim *optim = tn_adamw(m, options);
    float losses[STEPS];
    for (int i = 0; i < STEPS; i++) {
        TN_SCOPE;
        tn_tensor *loss = tn_lm_loss(m, tokens, targets);
        losses[i] = (float)tn_item(loss);
        tn_backward(loss);
        tn_optim_step(optim);
        tn_module_zero_grad(m);
    }
    tn_optim_free(optim);
    tn_safetensors_writer_add(w, "losses", TN_FROM(losses, TN_DIMS(STEPS), TN_F32));
}

/* Greedy tokens; each call reads the whole text. */
static void add_greedy(tn_safetensors_writer *w, void *m, tn_tensor *tokens) {
    TN_NO_GRAD;
    tn_tensor *text = tn_narrow(tokens, 0, 0, 1);
    for (int i = 0; i < CONTINUED; i++) {
        tn_tensor *logits = tn_call(m, text);
        tn_tensor *last = tn_narrow(logits, 1, tn_size(logits, 1) - 1, 1);
        text = tn_cat((tn_tensor *[]){text, tn_argmax(last, -1, false)}, 2, 1);
    }
    tn_safetensors_writer_add(w, "greedy", text);
}

/* Everything that m computes; runs on every rank that has a part of m. */
static void add_all(tn_safetensors_writer *w, void *m, const char *path, bool whole) {
    tn_safetensors *batch = tn_safetensors_open(path);
    tn_tensor *tokens = tn_safetensors_get(batch, "tokens");
    tn_tensor *targets = tn_safetensors_get(batch, "targets");
    tn_safetensors_writer_add(w, "logits", tn_detach(tn_call(m, tokens)));
    add_greedy(w, m, tokens);
    tn_tensor *loss = tn_lm_loss(m, tokens, targets);
    tn_safetensors_writer_add(w, "loss", tn_detach(loss));
    tn_backward(loss);
    dump d = {w, "grad.", true};
    if (whole) { tn_module_each(m, (tn_walk){0}, add_entry, &d); }
    tn_module_zero_grad(m);
    add_losses(w, m, tokens, targets);
    d = (dump){w, "after.", false};
    if (whole) { tn_module_each(m, (tn_walk){0}, add_entry, &d); }
    tn_safetensors_close(batch);
}

static void run_alone(char **argv) {
    TN_SCOPE;
    tn_module *m = tn_lm_load(argv[1], tn_lm_load_defaults());
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    if (tn_error() == TN_OK && tn_lm_save(m, argv[4]) == TN_OK) { add_all(w, m, argv[2], true); }
    tn_safetensors_writer_save(w, argv[3]);
    tn_module_free(m);
}

static tn_module *new_model(const char *folder) {
    TN_DEFER_INIT;
    return tn_lm_new(folder, 0);
}

static void run_rank(tn_group *world, void *user) {
    TN_SCOPE;
    char **argv = user;
    tn_spread_options o = tn_spread_defaults();
    tn_spread_read(&o, argv[6]);
    tn_module *m = new_model(argv[1]);
    tn_spread *spread = tn_spread_new(m, world, o);
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    if (tn_dist_load_lm(world, m, argv[1]) == TN_OK &&
        tn_dist_save_lm(world, m, argv[4], tn_lm_save_defaults()) == TN_OK) {
        add_all(w, m, argv[2], false);
    }
    if (tn_group_rank(world) == 0) {
        tn_safetensors_writer_save(w, argv[3]);
    } else {
        tn_safetensors_writer_free(w);
    }
    tn_module_free(m);
    tn_spread_free(spread);
}

int main(int argc, char **argv) {
    if (argc == 7) {
        tn_set_threads(1);
        tn_local_run(atoi(argv[5]), run_rank, argv);
    } else if (argc == 5) {
        run_alone(argv);
    } else {
        return 2;
    }
    if (tn_error() != TN_OK) { fprintf(stderr, "%s\n", tn_error_message()); }
    return tn_error() != TN_OK;
}
