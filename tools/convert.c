/* `tern convert SOURCE TARGET`: converts a model from one file format to another. `tern convert
 * FOLDER --to FILE`: writes a checkpoint in parts as one file. Both on one machine, without
 * ranks. */
#include "tools/verbs.h"

#include "core/folder.h"
#include "distributed/parallel/save/convert.h"
#include "io/checkpoint/parts.h"
#include "models/weights/hf.h"
#include "text/text.h"
#include "tools/inputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/io.h>
#include <tern/models.h>
#include <tern/train.h>

typedef struct conversion {
    const char *from, *target, *to;
    bool weights, plain, int8;
    tn_lm_load_options load;
} conversion;

/* ---- Options --------------------------------------------------------------------------------- */

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
static const char *const dtype_names[] = {"f32", "bf16", "f16", NULL};

static void add_path(const char *text, void *to) {
    conversion *c = to;
    if (c->target) { tn_options_refuse("unexpected \"%s\" after a source and a target", text); }
    *(c->from ? &c->target : &c->from) = text;
}

/* Refuses arguments that make neither of the two commands. */
static void check_command(const conversion *c) {
    if (!c->from || !*c->from) {
        tn_options_refuse("no source to convert");
    } else if (c->to && c->target) {
        tn_options_refuse("--to takes one folder, not \"%s\" and \"%s\"", c->from, c->target);
    } else if (c->to && (c->plain || !c->load.as_stored)) {
        tn_options_refuse("--to FILE writes a checkpoint as it is: no --dtype, --int8, --plain");
    } else if (c->to ? !*c->to : !c->target || !*c->target) {
        tn_options_refuse("no target to write: SOURCE TARGET, or FOLDER --to FILE");
    } else if (c->weights && !c->to) {
        tn_options_refuse("--weights needs --to FILE");
    }
}

static const char about[] =
    "Converts a language model to another format.\n\n"
    "SOURCE is a Hugging Face folder, a one-file checkpoint, a tn_save file, or a run's folder, "
    "which means its newest step. TARGET is a folder that transformers and tn_lm_load can read. "
    "From folder to folder, tokenizer files are copied too.\n\n"
    "With --to, FOLDER is a run's folder, whose newest step is converted, or one step's; FILE "
    "becomes a one-file checkpoint, which tn_checkpoint_load and tn_dist_load read.\v"
    "Everything read is checked, a FILE is written whole or not at all, and neither an input nor a "
    "run's lock file is ever replaced. The exit status is 1 when it fails, 64 when the command "
    "line is wrong.";

static tn_status parse_options(conversion *c, int argc, char **argv) {
    int dtype = -1;
    const tn_option table[] = {
        {.value = "SOURCE TARGET\nFOLDER --to FILE", .read = add_path, .to = c},
        {"dtype", 0, "DTYPE", "Of the weights (default: as stored)", .choice = &dtype,
         .choices = dtype_names},
        {"int8", 0, NULL,
         "Weights of linears and embeddings as bytes with a scale per row (tn_quantize): a quarter "
         "of the memory of f32; implies --plain",
         .flag = &c->int8},
        {"plain", 0, NULL,
         "Weights in Tern's own layout (tern.safetensors), so that loading transposes nothing; "
         "transformers cannot read such a folder",
         .flag = &c->plain},
        {"to", 't', "FILE", "A checkpoint in parts as one file, which is replaced if it exists",
         .text = &c->to},
        {"weights", 'w', NULL,
         "With --to: only the model's weights, as tn_save writes them and tn_load reads them",
         .flag = &c->weights},
        {0},
    };
    tn_status status = tn_options_parse(argc, argv, about, table);
    c->plain = c->plain || c->int8;
    c->load.as_stored = dtype < 0;
    c->load.dtype = dtype < 0 ? c->load.dtype : dtypes[dtype];
    if (status == TN_OK) { check_command(c); }
    return status;
}

/* ---- Models ---------------------------------------------------------------------------------- */

static tn_module *load_source(const conversion *c) {
    return tn__hf_has_model(c->from) ? tn_lm_load(c->from, c->load)
                                     : tn__saver_model(c->from, c->load);
}

/* The folder with the source's tokenizer: for a step, its run's. NULL: none, or after raising. */
static char *words_folder(const char *from) {
    if (!tn__folder_has(from, ".")) { return NULL; }
    return tn__folder_path(from, tn__folder_has(from, TN__INDEX_NAME) ? ".." : ".", "convert");
}

static tn_status save_target(const conversion *c, tn_module *m) {
    tn_lm_save_options options = tn_lm_save_defaults();
    char *words = words_folder(c->from);
    options.plain = c->plain;
    options.tokenizer = words;
    tn_status status = tn_lm_save_with(m, c->target, options);
    free(words);
    return status;
}

static tn_status convert_model(const conversion *c) {
    tn_module *m = load_source(c);
    if (m && (!c->int8 || tn_quantize(m) == TN_OK)) {
        tn_status status = save_target(c, m);
        (void)status; /* pending */
    }
    tn_module_free(m);
    return tn_error();
}

/* ---- The command ----------------------------------------------------------------------------- */

/* Whether a file of this name may belong to a model's folder or a checkpoint's step. */
static bool is_read(const char *name) {
    return tn__ends_with(name, ".safetensors") || tn__ends_with(name, ".json");
}

/* Refuses to replace an input or a run's lock file. */
static tn_status check_apart(const conversion *c) {
    bool checkpoint = c->to || (!tn__hf_has_model(c->from) && tn__folder_has(c->from, "."));
    char *step = checkpoint ? tn__saver_find_step(c->from) : NULL;
    if (checkpoint && !c->to && tn_error() == TN_EIO) {
        tn_error_clear();
        return tn_raise(TN_EIO,
                        "%s has neither config.json, as a model's folder has, nor a committed step "
                        "of a checkpoint in parts",
                        c->from);
    }
    const char *input = step ? step : c->from, *output = c->to ? c->to : c->target;
    if (strcmp(basename(output), "lock") == 0) {
        tn_raise(TN_EVALUE, "%s has the name of a run's lock: choose another", output);
    }
    if (tn_error() == TN_OK && check_outputs(&input, 1, is_read, output, NULL) == TN_OK && !c->to) {
        check_outputs(&input, 1, is_read, output, tn__hf_replaces);
    }
    free(step);
    return tn_error();
}

int convert_main(int argc, char **argv) {
    conversion c = {.load = tn_lm_load_defaults()};
    if (parse_options(&c, argc, argv) == TN_OK && check_apart(&c) == TN_OK) {
        tn_status status = c.to ? tn__saver_convert(c.from, c.to, c.weights) : convert_model(&c);
        (void)status; /* pending */
    }
    return 0;
}
