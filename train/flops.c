/* The floating-point operations that a token takes, and that devices can do per second. */
#include "core/error.h"
#include "tern/train.h"
#include "text/text.h"

#include <string.h>

/* Dense bf16 operations per second, from the makers' data sheets. */
static const struct {
    const char *part; /* of the device's name */
    double flops;
} peaks[] = {
    {"H200", 989e12}, {"H100", 989e12}, {"B200", 2250e12}, {"A100", 312e12}, {"L40S", 362e12}};
enum { PEAKS = sizeof(peaks) / sizeof(peaks[0]) };

double tn_setup_flops(const tn_setup *s, tn_group *world) {
    double ranks = tn_group_size(world);
    tn_device_info info;
    if (s && s->peak > 0) { return s->peak * 1e12 * ranks; }
    if (!s || tn_device_describe(tn_default_device(), &info) != TN_OK) { return 0; }
    for (int i = 0; i < PEAKS; i++) {
        if (strstr(info.name, peaks[i].part)) { return peaks[i].flops * ranks; }
    }
    return 0;
}

/* Elements of tables that are only read. */
typedef struct tables {
    double positions, tokens;
    bool classifier; /* separate from the token table, which then is only read */
} tables;

static bool count_tables(const tn_entry *entry, void *user) {
    tables *t = user;
    double count = (double)tn_dims_count(entry->layout.whole);
    if (tn__ends_with(entry->path, "wpe.weight")) {
        t->positions += count;
    } else if (tn__ends_with(entry->path, "embed_tokens.weight")) {
        t->tokens += count;
    }
    t->classifier |= tn__ends_with(entry->path, "lm_head.weight");
    return true;
}

double tn_lm_flops(void *m) {
    tn_lm_shape shape;
    if (tn_lm_shape_of(m, &shape) != TN_OK) { return 0; }
    tables t = {0};
    tn_module_each(m, (tn_walk){.absent = true}, count_tables, &t);
    double weights = (double)shape.parameters - t.positions - (t.classifier ? t.tokens : 0);
    return 6 * weights + 6.0 * shape.layers * (double)shape.context * (double)shape.width;
}
