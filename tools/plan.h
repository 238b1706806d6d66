/* `tern plan`, its parts. */
#ifndef TERN_TOOLS_PLAN_H
#define TERN_TOOLS_PLAN_H

#include <tern/tern.h>

int plan_main(int argc, char **argv);

/* ---- tools/plan_options.c -------------------------------------------------------------------- */

typedef struct plan_command {
    const char *model;      /* by name, or a folder */
    tn_gpt_options gpt;     /* where it is no folder, */
    tn_llama_options llama; /* or this one, if it has layers */
    const char *device;
    double price;                             /* per rank and hour; 0: not given */
    double all_tokens;                        /* of the whole training; 0: not given */
    bool search, measure, draw, json, folder; /* folder: model is one */
    tn_plan_options plan;
} plan_command;

/* Exits with 64 if the command line is wrong; another error is pending afterwards. sequences: the
 * plan's tokens count sequences, as a file of DeepSpeed's does. */
tn_status plan_parse(plan_command *c, bool *sequences, int argc, char **argv);

#endif
