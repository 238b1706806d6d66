/* Units of sharding under a policy of mixed precision, where something is wrong: a copy that nobody
 * fills, or in another dtype, or a policy that comes too late. (What goes well is in
 * tests/parallel/test_fsdp*.c.) */
#include "tests/support/test.h"

#include "autograd/leaf.h"
#include "nn/module.h"
#include "precision_net.h"

/* ---- A unit: a linear whose bf16 copy is in a flat buffer that is empty between uses --------- */

typedef struct unit {
    tn_tensor *flat; /* what is lent */
    int64_t used;
} unit;

static tn_values fill_before(tn_module *m, tn_values in, void *user) {
    tn_storage_refill(((unit *)user)->flat);
    return in;
}

static void unit_take(unit *u, tn_tensor *param) {
    param->leaf->copy = tn_keep(tn_alias(u->flat, u->used, tn_shape(param)));
    param->leaf->copy_given = true;
    u->used += tn_count(param);
    assert_int_equal(tn_storage_empty(param), TN_OK);
}

static void unit_init(unit *u, tn_linear *m) {
    TN_SCOPE;
    *u = (unit){.flat = tn_keep(tn_zeros(TN_DIMS(tn_module_count(m)), TN_BF16))};
    unit_take(u, m->weight);
    unit_take(u, m->bias);
    tn_storage_empty(u->flat);
    m->base.lists->unit = true;
    tn_module_hook(m, (tn_module_hooks){.before = fill_before, .user = u});
}

/* If nothing gathers, an error says where; no crash, no old numbers. */
TEST(empty_where_it_is_read) {
    net n;
    unit u;
    net_init(&n);
    set_compute(&n, TN_BF16);
    unit_init(&u, &n.fc2);
    tn_module_unhook(&n.fc2, 1);
    tn_tensor *x = tn_ones(TN_DIMS(ROWS, IN), TN_F32);
    assert_inert(tn_call(&n, x), TN_ESTATE, "in net.fc2");
    assert_inert(tn_add(n.fc2.weight, n.fc2.weight), TN_ESTATE,
                 "the storage of [8, 40] is empty (of a sharded model: TN_WHOLE");
    tn_optim *opt = tn_sgd(&n, tn_sgd_defaults());
    tn_set_grad(n.fc2.bias, tn_ones(TN_DIMS(OUT), TN_F32));
    assert_int_equal(tn_optim_step(opt), TN_ESTATE);
    assert_error(TN_ESTATE, "is empty");
    tn_optim_free(opt);
    tn_module_finish(&n);
    tn_release(u.flat);
}

/* A copy in another dtype than the policy's is not lent; the parameter, which is empty, would
 * be. */
TEST(given_in_another_dtype) {
    net n;
    unit u;
    net_init(&n);
    set_compute(&n, TN_F16);
    unit_init(&u, &n.fc2);
    assert_inert(tn_call(&n, tn_ones(TN_DIMS(ROWS, IN), TN_F32)), TN_ESTATE, "is empty");
    tn_module_finish(&n);
    tn_release(u.flat);
}

static void assert_too_late(void *m) {
    assert_int_equal(tn_module_set_precision(m, tn_precision_defaults()), TN_ESTATE);
    assert_error(TN_ESTATE, "is sharded, or around or below a sharded module: set precision first");
}

TEST(precision_is_set_first) {
    net n;
    net_init(&n);
    n.base.lists->unit = true;
    assert_too_late(&n.fc1); /* below */
    n.base.lists->unit = false;
    n.fc1.base.lists->unit = true;
    assert_too_late(&n); /* around */
    n.fc1.base.lists->unit = false;
    assert_int_equal(tn_module_set_precision(&n.fc1, tn_precision_defaults()), TN_OK);
    tn_layout all = {TN_DIMS(HIDDEN), -1, 1, 0, 1, 0, HIDDEN};
    tn_module_set_part(&n, "scale", tn_ones(TN_DIMS(HIDDEN), TN_F32), all, NULL);
    assert_too_late(&n);
    tn_module_finish(&n);
}
