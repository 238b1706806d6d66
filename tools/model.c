#include "tools/model.h"

enum { MODEL_BF16 = 1, MODEL_INT8 = 2 };
const char *const model_dtypes[] = {"f32", "bf16", "int8", NULL};

/* Elements are read when the model is on its ranks: together they may hold what one cannot. */
static tn_module *load_on_mesh(const char *folder, tn_lm_load_options load, const char *mesh,
                               tn_group *world, tn_spread **spread) {
    tn_spread_options o = tn_spread_defaults();
    o.inference = true;
    tn_module *net = NULL;
    if (tn_spread_read(&o, mesh) == TN_OK) {
        TN_DEFER_INIT;
        net = tn_lm_load(folder, load);
    }
    *spread = net ? tn_spread_new(net, world, o) : NULL;
    if (*spread) { tn_lm_load_weights(net, folder); }
    return net;
}

tn_module *model_load(const char *folder, int dtype, const char *mesh, tn_group *world,
                      tn_spread **spread) {
    tn_lm_load_options load = tn_lm_load_defaults();
    load.as_stored = dtype < 0;
    load.dtype = dtype == MODEL_BF16 ? TN_BF16 : TN_F32;
    *spread = NULL;
    tn_module *net =
        mesh ? load_on_mesh(folder, load, mesh, world, spread) : tn_lm_load(folder, load);
    if (net && !tn_error() && dtype == MODEL_INT8) { tn_quantize(net); }
    if (net && !tn_error()) { return net; }
    tn_module_free(net);
    tn_spread_free(*spread);
    *spread = NULL;
    return NULL;
}
