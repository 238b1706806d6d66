/* Precision and the scaler, called as no one should; see test_inert.c. */
#include "inert.h"

static void module_precision(tn_tensor *t) {
    tn_module zeroed = {0};
    bool was = null;
    null = true; /* a bad module is always an error */
    FAILS(tn_module_set_precision(NULL, tn_precision_defaults()));
    FAILS(tn_module_set_precision(&zeroed, tn_precision_defaults()));
    GIVES(tn_module_compute_dtype(NULL, TN_F64), TN_F64);
    GIVES(tn_module_compute_dtype(&zeroed, TN_F64), TN_F64);
    null = was;
    tn_linear m = {0};
    tn_linear_init(&m, 2, 2, tn_linear_defaults());
    tn_precision odd[] = {tn_precision_defaults(), tn_precision_defaults(), tn_precision_defaults(),
                          tn_precision_defaults()};
    odd[0].param = no_dtype;
    odd[1].compute = TN_BOOL;
    odd[2].reduce = TN_I32;
    odd[3].output = no_dtype;
    for (int i = 0; i < 4; i++) {
        FAILS(tn_module_set_precision(&m, odd[i]));
    }
    tn_module_finish(&m);
}

static void loss_scaler(tn_tensor *t) {
    tn_scaler_options odd = tn_scaler_defaults();
    for (int i = 0; i < REALS; i++) {
        odd.scale = reals[i];
        tn_scaler *s = tn_scaler_new(odd);
        TAKES(tn_scaler_free(s));
    }
    odd.growth = NAN;
    NOTHING(tn_scaler_new(odd));
    TAKES(tn_scaler_free(NULL));
    INERT(tn_scaler_scale(NULL, t));
    IS_NAN(tn_scaler_clip(NULL, NULL, 1.0));
    FAILS(tn_scaler_step(NULL, NULL));
    FAILS(tn_scaler_update(NULL));
    FAILS(tn_scaler_seek(NULL, (tn_scaler_state){.scale = 1.0}));
    QUIET(tn_scaler_skipped(NULL), false);
    TAKES(tn_scaler_where(NULL));
    tn_scaler *s = tn_scaler_new(tn_scaler_defaults());
    INERT(tn_scaler_scale(s, t));
    if (s) {
        FAILS(tn_scaler_step(s, NULL));
        IS_NAN(tn_scaler_clip(s, NULL, 1.0));
        FAILS(tn_scaler_update(s));
        FAILS(tn_scaler_seek(s, (tn_scaler_state){.scale = NAN}));
    }
    TAKES(tn_scaler_free(s));
}

PART(module_precision)
PART(loss_scaler)

int main(int argc, char **argv) {
    return RUN_PARTS(argc, argv);
}
