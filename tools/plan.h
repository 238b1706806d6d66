/* `tern plan`, its parts. */
#ifndef TERN_TOOLS_PLAN_H
#define TERN_TOOLS_PLAN_H

#include <tern/tern.h>

int plan_main(int argc, char **argv);

/* ---- tools/plan_options.c -------------------------------------------------------------------- */

typedef struct plan_command {
    const char *model;                   /* by name, or a folder */
    int64_t layers, heads, width, vocab; /* of a GPT of another size; 0: not given */
    double price;                        /* per rank and hour; 0: not given */
    double all_tokens;                   /* of the whole training; 0: not given */
    bool search, json;
    tn_plan_options plan;
} plan_command;

/* Exits with 64 if the command line is wrong. */
tn_status plan_parse(plan_command *c, int argc, char **argv);

/* The model, without elements. Exits with 64 if there is none; NULL after an error. To be freed
 * with tn_module_free. */
tn_module *plan_model(const plan_command *c);

#endif
