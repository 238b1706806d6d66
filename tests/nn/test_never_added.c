/* A layer that a forward calls but that was never added learns nothing: an error in debug builds.
 * Also calls that look like this but are intended. */
#include "tests/support/test.h"

#include <tern/tern.h>

/* A layer of its own, and another that the test chooses. */
typedef struct net {
    tn_module base;
    tn_linear fc;
    void *other;
    bool without_grad;
} net;

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *n = (net *)self;
    x = tn_call(&n->fc, x);
    if (n->without_grad) {
        TN_NO_GRAD;
        return tn_call(n->other, x);
    }
    return n->other ? tn_call(n->other, x) : x;
}

static void net_init(net *n, void *other) {
    *n = (net){.other = other};
    tn_module_init(n, "net", net_forward);
    tn_linear_init(&n->fc, 3, 3, tn_linear_defaults());
    tn_module_add(n, "fc", &n->fc);
}

static void calls_well(net *n) {
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    assert_false(tn_is_inert(tn_call(n, x)));
    assert_int_equal(tn_error(), TN_OK);
}

#ifdef TN_DEBUG_TENSORS
static const bool looked_for = true;
#else
static const bool looked_for = false;
#endif

/* Only debug builds check. */
static void is_refused(net *n, const char *message) {
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    if (looked_for) {
        assert_inert(tn_call(n, x), TN_ESTATE, message);
    } else {
        calls_well(n);
    }
}

TEST(never_added) {
    net n;
    tn_linear layer;
    tn_linear_init(&layer, 3, 3, tn_linear_defaults());
    net_init(&n, &layer);
    is_refused(&n, "(in net.linear): net: the forward calls a linear that was never added, whose "
                   "parameter \"weight\" no optimiser would step (tn_module_add it to the net");
    net outer;
    net_init(&outer, &n);
    tn_module_add(&outer, "inner", &n);
    is_refused(&outer, "(in net.inner.linear): net: the forward calls a linear that was never");
    tn_module_set_recompute(&n, true);
    tn_backward(tn_sum_all(tn_call(&outer, tn_ones(TN_DIMS(2, 3), TN_F32))));
    if (looked_for) {
        assert_error(TN_ESTATE, "was never added"); /* when recompute runs and records it */
    }
    tn_module_add(&n, "layer", &layer);
    calls_well(&outer);
    tn_module_finish(&outer);
}

TEST(learns_nothing) {
    net n;
    tn_linear layer;
    tn_linear_init(&layer, 3, 3, tn_linear_defaults());
    net_init(&n, &layer);
    n.without_grad = true; /* a teacher */
    calls_well(&n);
    n.without_grad = false;
    is_refused(&n, "linear");
    tn_module_requires_grad(&layer, false);
    calls_well(&n);
    tn_module_requires_grad(&layer, true);
    is_refused(&n, "linear");
    tn_dropout drop;
    tn_dropout_init(&drop, 0.5);
    n.other = &drop; /* no parameters to step */
    calls_well(&n);
    tn_module_finish(&drop);
    tn_module_finish(&layer);
    tn_module_finish(&n);
}

/* A layer with its own optimiser may be called. */
TEST(is_stepped_elsewhere) {
    net n;
    tn_linear layer;
    tn_linear_init(&layer, 3, 3, tn_linear_defaults());
    net_init(&n, &layer);
    tn_optim *opt = tn_sgd(&layer, tn_sgd_defaults());
    calls_well(&n);
    tn_optim_free(opt);
    is_refused(&n, "linear");
    tn_module_finish(&layer);
    tn_module_finish(&n);
}

TEST(is_added_elsewhere) {
    net n, owner, shares;
    tn_linear layer;
    net_init(&owner, NULL);
    net_init(&n, &owner.fc); /* a part of another network */
    calls_well(&n);
    tn_linear_init(&layer, 3, 3, tn_linear_defaults());
    net_init(&shares, &layer);
    is_refused(&shares, "linear");
    tn_tensor *weight = NULL, *bias = NULL; /* the layer's, registered in this network, too */
    tn_module_param(&shares, "weight", &weight, layer.weight);
    tn_module_param(&shares, "bias", &bias, layer.bias);
    calls_well(&shares);
    tn_module_finish(&layer);
    tn_module_finish(&shares);
    tn_module_finish(&owner);
    tn_module_finish(&n);
}

/* A layer in a list that was never added is refused, too. */
TEST(in_a_list) {
    net n;
    tn_module_list *list = tn_module_list_new();
    tn_module_append(list, tn_linear_new(3, 3));
    net_init(&n, tn_module_at(list, 0));
    is_refused(&n,
               "(in net.0): net: the forward calls \"0\" of a module_list that was never added, "
               "whose parameter \"weight\" no optimiser would step");
    tn_module_add(&n, "list", list);
    calls_well(&n);
    tn_module_finish(&n);
}

/* A part of another model is fine, unless this model is trained and the other is not. */
TEST(is_part_of_another) {
    net n, owner;
    net_init(&owner, NULL);
    net_init(&n, &owner.fc);
    calls_well(&n);
    tn_optim *opt = tn_sgd(&n, tn_sgd_defaults());
    is_refused(&n, "net: the forward calls \"fc\" of a net that was never added, whose parameter "
                   "\"weight\" no optimiser would step");
    tn_optim *other = tn_sgd(&owner, tn_sgd_defaults());
    calls_well(&n);
    tn_optim_free(other);
    tn_module_requires_grad(&owner, false);
    calls_well(&n);
    tn_optim_free(opt);
    tn_module_finish(&owner);
    tn_module_finish(&n);
}

TEST(is_meant) {
    net n, owner;
    net_init(&owner, NULL);
    net_init(&n, &owner);
    is_refused(&n, "if it is meant so, tn_module_set_apart)");
    tn_module_set_apart(&owner, true);
    calls_well(&n);
    n.other = &owner.fc; /* modules below it, too */
    tn_optim *opt = tn_sgd(&n, tn_sgd_defaults());
    calls_well(&n);
    tn_module_set_apart(&owner, false);
    is_refused(&n, "\"fc\" of a net");
    tn_optim_free(opt);
    tn_module_finish(&owner);
    tn_module_finish(&n);
}

static tn_values call_probe(tn_module *m, tn_values in, tn_values out, void *user) {
    assert_false(tn_is_inert(tn_call(user, out.v[0])));
    return out;
}

/* A hook may call any layer. */
TEST(is_called_by_a_hook) {
    net n;
    tn_linear probe;
    tn_linear_init(&probe, 3, 3, tn_linear_defaults());
    net_init(&n, NULL);
    tn_module_hook(&n.fc, (tn_module_hooks){.after = call_probe, .user = &probe});
    calls_well(&n);
    n.other = &probe;
    is_refused(&n, "linear"); /* and after the hook the forward still runs */
    tn_module_finish(&probe);
    tn_module_finish(&n);
}
