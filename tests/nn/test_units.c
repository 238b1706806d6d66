/* Units of sharding under a policy of mixed precision: hooks fill their copies, after the calls
 * around them began and before the copies are lent. */
#include <string.h>

#include "tests/support/test.h"

#include "autograd/leaf.h"
#include "nn/module.h"
#include "precision_net.h"

/* ---- A unit: a linear whose bf16 copy is in a flat buffer that is empty between uses --------- */

typedef struct unit {
    tn_linear *module;
    tn_tensor *flat, *kept; /* what is lent, and its bytes, as if from other ranks */
    int64_t used;
    int gathers;
    tn_dtype seen; /* dtype of the weight in the `before` hook */
} unit;

static void unit_gather(unit *u) {
    if (tn_storage_is_empty(u->flat)) {
        tn_storage_refill(u->flat);
        memcpy(tn_data_mut(u->flat), tn_data(u->kept), (size_t)u->used * sizeof(uint16_t));
        u->gathers++;
    }
}

static tn_values gather_before(tn_module *m, tn_values in, void *user) {
    unit *u = user;
    u->seen = tn_dtype_of(((tn_linear *)m)->weight);
    unit_gather(u);
    return in;
}

static tn_values empty_after(tn_module *m, tn_values in, tn_values out, void *user) {
    tn_storage_empty(((unit *)user)->flat);
    return out;
}

static void gather_backward(tn_module *m, void *user) {
    unit_gather(user);
}

static void empty_backward(tn_module *m, tn_values grads, void *user) {
    tn_storage_empty(((unit *)user)->flat);
}

static void unit_take(unit *u, tn_tensor *param) {
    tn_tensor *values = tn_alias(u->kept, u->used, tn_shape(param));
    tn_copy_(values, tn_detach(param));
    param->leaf->copy = tn_keep(tn_alias(u->flat, u->used, tn_shape(param)));
    param->leaf->copy_given = true;
    u->used += tn_count(param);
    assert_int_equal(tn_storage_empty(param), TN_OK);
}

static void unit_init(unit *u, tn_linear *m) {
    TN_SCOPE;
    TN_NO_GRAD;
    int64_t count = tn_module_count(m);
    *u = (unit){.module = m};
    u->flat = tn_keep(tn_zeros(TN_DIMS(count), TN_BF16));
    u->kept = tn_keep(tn_zeros(TN_DIMS(count), TN_BF16));
    unit_take(u, m->weight);
    unit_take(u, m->bias);
    tn_storage_empty(u->flat);
    m->base.lists->unit = true;
    tn_module_hook(m, (tn_module_hooks){.before = gather_before,
                                        .after = empty_after,
                                        .backward_before = gather_backward,
                                        .backward_after = empty_backward,
                                        .user = u});
}

static void unit_finish(unit *u) {
    tn_release(u->flat);
    tn_release(u->kept);
}

/* ---- The net of precision_net.h, whose linears are units ------------------------------------- */

typedef struct outcome {
    tn_tensor *y, *grads[8];
    int count;
} outcome;

static bool take_gradient(const tn_entry *entry, void *user) {
    outcome *o = user;
    assert_int_equal(tn_dtype_of(tn_grad_of(*entry->field)), TN_F32);
    o->grads[o->count++] = tn_grad_of(*entry->field);
    return true;
}

static outcome train_once(net *n, tn_tensor *x) {
    outcome o = {.y = tn_call(n, x)};
    tn_backward(tn_mean_all(tn_square(o.y)));
    assert_int_equal(tn_error(), TN_OK);
    tn_module_each(n, (tn_walk){0}, take_gradient, &o);
    return o;
}

/* The same bits as without units, with and without recompute. */
TEST(same_bits_as_whole) {
    for (int recompute = 0; recompute < 2; recompute++) {
        tn_tensor *x = tn_randn(TN_DIMS(ROWS, IN), TN_F32);
        net whole, cut;
        unit units[2];
        tn_seed(5);
        net_init(&whole);
        tn_seed(5);
        net_init(&cut);
        set_compute(&whole, TN_BF16);
        set_compute(&cut, TN_BF16);
        unit_init(&units[0], &cut.fc1);
        unit_init(&units[1], &cut.fc2);
        tn_module_set_recompute(&whole.fc1, recompute);
        tn_module_set_recompute(&cut.fc1, recompute);
        outcome a = train_once(&whole, x), b = train_once(&cut, x);
        assert_true(tn_equal(a.y, b.y));
        assert_int_equal(a.count, b.count);
        for (int i = 0; i < a.count; i++) {
            expect_same_bits(a.grads[i], b.grads[i]);
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(units[i].gathers, 2); /* forward and backward */
            assert_int_equal(units[i].seen, TN_F32);
            assert_true(tn_storage_is_empty(units[i].flat));
        }
        /* outside of calls the field has the parameter, as always */
        assert_true(cut.fc1.weight->leaf->copy_given && tn_storage_is_empty(cut.fc1.weight));
        tn_module_finish(&whole);
        tn_module_finish(&cut);
        unit_finish(&units[0]);
        unit_finish(&units[1]);
    }
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
    unit_finish(&u);
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
    unit_finish(&u);
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
