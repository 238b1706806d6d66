/* The options of `tern generate`. */
#ifndef TERN_TOOLS_GENERATE_H
#define TERN_TOOLS_GENERATE_H

#include <tern/tern.h>

enum { GENERATE_STOPS = 16, GENERATE_SAMPLES = 1000 }; /* maxima */

typedef struct generate_options {
    const char *model, *tokenizer, *prompt, *device, *mesh; /* NULL: not given */
    int dtype;                /* f32, bf16, int8; -1: as in the files */
    int64_t samples, threads; /* threads 0: not given */
    bool echo, stats, ignore_end;
    const char *stops[GENERATE_STOPS];
    tn_generate_options sampling; /* and stop_text_count */
} generate_options;

/* Exits with 64 if the command line is wrong; may return TN_ENOMEM. */
tn_status generate_parse(generate_options *g, int argc, char **argv);

#endif
