/* `tern convert FOLDER --to FILE`: a checkpoint in parts as one file, on one machine and without
 * ranks. */
#include "tools/convert.h"

#include "distributed/parallel/save/convert.h"
#include "tools/why.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct conversion {
    const char *from, *to;
    bool weights;
} conversion;

static const struct argp_option option_list[] = {
    {"to", 't', "FILE", 0, "The file to write; one that is there is replaced", 0},
    {"weights", 'w', NULL, 0,
     "The model's weights alone, as tn_save writes them and tn_load reads them", 0},
    {0},
};

static error_t parse_option(int key, char *text, struct argp_state *state) {
    conversion *c = state->input;
    if (key == 't') {
        c->to = text;
    } else if (key == 'w') {
        c->weights = true;
    } else if (key == ARGP_KEY_ARG && !c->from) {
        c->from = text;
    } else if (key == ARGP_KEY_ARG) {
        argp_error(state, "one folder, not \"%s\" and \"%s\"", c->from, text);
    } else if (key == ARGP_KEY_END && (!c->from || !*c->from)) {
        argp_error(state, "no folder to convert");
    } else if (key == ARGP_KEY_END && (!c->to || !*c->to)) {
        argp_error(state, "no file to write: --to FILE");
    } else {
        return key == ARGP_KEY_END ? 0 : ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp description = {
    .options = option_list,
    .parser = parse_option,
    .args_doc = "FOLDER --to FILE",
    .doc = "Writes a checkpoint in parts (tn_saver_save) as a checkpoint of one file, which "
           "tn_checkpoint_load, tn_dist_load and tn_saver_load read.\n\n"
           "FOLDER is the folder of a run, whose newest step is converted, or of one step.\v"
           "Nothing is believed before it is checked, and FILE is there whole or not at all. One "
           "tensor is in memory at a time. The exit status is 1 when it fails, 64 when the "
           "command line is wrong."};

int convert_main(int argc, char **argv) {
    conversion c = {0};
    argp_parse(&description, argc, argv, 0, NULL, &c);
    if (tn__saver_convert(c.from, c.to, c.weights) != TN_OK) {
        fprintf(stderr, "tern convert: %s\n", error_why());
        return 1;
    }
    return 0;
}
