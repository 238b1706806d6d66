/* Where a kernel's gradients go (autograd/target.h). A second backward adds to the gradients of the
 * first: in place, on a device by the kernel that makes them, and with what the program may see
 * unchanged. */
#include <string.h>

#include "tests/support/test.h"

#include <tern/sys/op.h>
#include <tern/tern.h>

enum { ROWS = 3, N = 96 };

typedef struct net {
    tn_linear layer;
    tn_tensor *x;
} net;

static void net_init(net *n, tn_dtype low) {
    tn_seed(4);
    tn_linear_init(&n->layer, N, N, tn_linear_defaults());
    if (low != TN_F32) {
        tn_module_set_precision(&n->layer, TN_WITH(tn_precision, .compute = low));
    }
    n->x = tn_randn(TN_DIMS(ROWS, N), TN_F32);
}

static void run_backward(net *n, double factor) {
    TN_SCOPE;
    tn_tensor *y = tn_call(&n->layer, tn_mul_scalar(n->x, factor));
    tn_backward(tn_sum_all(tn_square(tn_cast(y, TN_F32))));
}

static bool on_device(void) {
    return tn_default_device().kind != TN_CPU;
}

/* The same tensors, and in them the sum of what each backward makes alone; on a device without
 * memory for a second gradient. */
TEST(gradients_are_summed) {
    for (int low = 0; low < 2; low++) {
        TN_SCOPE;
        net n;
        net_init(&n, low ? TN_BF16 : TN_F32);
        tn_tensor *w = n.layer.weight, *b = n.layer.bias;
        run_backward(&n, 0.5);
        tn_tensor *first = tn_copy(tn_grad_of(w)), *first_b = tn_copy(tn_grad_of(b));
        tn_zero_grad(w);
        tn_zero_grad(b);
        run_backward(&n, 2.0);
        const tn_tensor *grad = tn_grad_of(w);
        tn_tensor *sum = tn_add(tn_grad_of(w), first), *sum_b = tn_add(tn_grad_of(b), first_b);
        int64_t now = tn_device_memory(tn_default_device()).allocated;
        tn_device_memory_reset_peak(tn_default_device());
        run_backward(&n, 0.5);
        int64_t more = tn_device_memory(tn_default_device()).peak - now;
        assert_ptr_equal(tn_grad_of(w), grad);
        assert_true(tn_all_close(tn_grad_of(w), sum, 1e-6, 1e-6));
        assert_true(tn_all_close(tn_grad_of(b), sum_b, 1e-6, 1e-6));
        assert_true(!on_device() || more < N * N * (int64_t)sizeof(float));
        tn_module_finish(&n.layer);
    }
}

/* ---- Each target ----------------------------------------------------------------------------- */

/* y of x and w has dy as both gradients. What the last kernel was given: */
static struct {
    const void *dx[2];
    unsigned adds;
} given;
static tn_tensor *own_memory; /* NULL: the operation has none */

static bool like_first(tn_op_call *c) {
    return tn_op_out_like(c, 0);
}

static tn_status copy_first(const tn_op_call *c) {
    return c->kernels->copy(c->ctx, c->y[0], c->x[0]);
}

static tn_status give_dy(const tn_op_back *b) {
    tn_status status = TN_OK;
    given.adds = b->adds;
    for (int i = 0; i < 2 && status == TN_OK; i++) {
        given.dx[i] = b->dx[i] ? b->dx[i]->data : NULL;
        if (!b->dx[i]) { continue; }
        status = b->adds >> i & 1 ? b->kernels->binary(b->ctx, TN_ADD, b->dx[i], b->dx[i], b->dy[0])
                                  : b->kernels->copy(b->ctx, b->dx[i], b->dy[0]);
    }
    return status;
}

static tn_tensor *memory_of_first(tn_op_grad *g, int i, tn_tensor *const *made) {
    return i == 0 ? own_memory : NULL;
}

/* Its loops for the host are its kernel, as those of recurrent layers are: the kernel is run. */
static const tn_op giver = {.name = "giver",
                            .shape = like_first,
                            .forward = copy_first,
                            .backward_kernel = give_dy,
                            .host = {copy_first, give_dy},
                            .adds = 3,
                            .dx_out = memory_of_first};

typedef struct target_case {
    const char *name;
    bool x_wanted, before, buffer, twice, swapped, hook, own; /* the setup */
    bool filled, added, continued;                            /* the memory of w's gradient */
} target_case;

static const target_case target_cases[] = {
    {.name = "the first gradient"},
    {"after an earlier backward", .before = true, .continued = true},
    {"after an earlier backward, of one of two", .before = true, .x_wanted = true},
    {"under a hook", .before = true, .hook = true},
    {"the second of two uses", .twice = true, .added = true},
    {"the second of two uses, of one of two", .twice = true, .x_wanted = true},
    {"the same in the other order", .twice = true, .x_wanted = true, .swapped = true},
    {"in the caller's buffer", .buffer = true, .filled = true},
    {"in a buffer with a gradient", .buffer = true, .before = true},
    {"in a buffer that a hook sees", .buffer = true, .hook = true},
    {"in a buffer, twice", .buffer = true, .twice = true, .filled = true, .added = true},
    {"in the operation's memory", .x_wanted = true, .own = true},
};

static tn_tensor *see_nothing(tn_tensor *grad, void *user) {
    return NULL;
}

static void expect_target(const target_case *t) {
    TN_SCOPE;
    tn_tensor *ones = tn_ones(TN_DIMS(5), TN_F32), *in[2], *own = tn_zeros(TN_DIMS(5), TN_F32);
    in[0] = tn_set_requires_grad(tn_copy(ones), t->x_wanted);
    tn_tensor *w = in[1] = tn_set_requires_grad(tn_copy(ones), true);
    tn_tensor *buffer = tn_zeros(TN_DIMS(5), TN_F32), *y;
    if (t->buffer) { tn_set_grad_buffer(w, buffer); }
    if (t->before) { tn_set_grad(w, tn_copy(ones)); }
    if (t->hook) { tn_on_grad(w, see_nothing, NULL); }
    const void *before = t->before ? tn_desc_of(tn_grad_of(w)).data : NULL;
    y = tn_apply(&giver, NULL, t->swapped ? (tn_tensor *[]){w, in[0]} : in, 2);
    if (t->twice) { y = tn_apply(&giver, NULL, (tn_tensor *[]){y, w}, 2); }
    own_memory = t->own ? own : NULL;
    assert_int_equal(tn_backward_from(&y, &ones, 1, false), TN_OK);
    bool continued = t->continued && on_device();
    if ((given.dx[1] == tn_desc_of(buffer).data) != t->filled ||
        given.adds != (t->added || continued ? 2 : 0) ||
        (before && given.dx[1] == before) != continued ||
        (given.dx[0] == tn_desc_of(own).data) != t->own) {
        fail_msg("%s: adds %u", t->name, given.adds);
    }
    tn_tensor *sum = tn_full(TN_DIMS(5), 1 + t->before + t->twice, TN_F32);
    if (!tn_equal(tn_grad_of(w), sum)) { fail_msg("%s: the gradient is wrong", t->name); }
}

TEST(each_target) {
    for (size_t i = 0; i < sizeof target_cases / sizeof *target_cases; i++) {
        expect_target(&target_cases[i]);
    }
    own_memory = NULL;
}

/* ---- Micro-batches --------------------------------------------------------------------------- */

static tn_tensor *note_sum(tn_tensor *grad, void *user) {
    *(double *)user = tn_item(tn_sum_all(grad));
    return NULL;
}

static void count_calls(tn_tensor *leaf, void *user) {
    ++*(int *)user;
}

/* A hook on a leaf is called with what the run adds, not with the sum; one for afterwards in both
 * backwards. */
TEST(hooks_see_one_part) {
    net n;
    net_init(&n, TN_F32);
    double seen[2] = {0};
    int calls = 0;
    tn_on_accumulated(n.layer.bias, count_calls, &calls);
    for (int i = 0; i < 2; i++) {
        tn_hook hook = tn_on_grad(n.layer.weight, note_sum, &seen[i]);
        run_backward(&n, 1.0);
        tn_remove_hook(n.layer.weight, hook);
    }
    assert_float_equal(seen[0], seen[1], 0.0);
    assert_int_equal(calls, 2);
    tn_module_finish(&n.layer);
}

/* A weight that is used twice gets both parts, in each backward. */
TEST(used_twice) {
    net n;
    net_init(&n, TN_BF16);
    tn_tensor *once = NULL;
    for (int i = 0; i < 2; i++) {
        TN_SCOPE;
        tn_tensor *y = tn_call(&n.layer, tn_call(&n.layer, n.x));
        tn_tensor *direct = tn_sum_all(tn_mul_scalar(n.layer.weight, 3.0));
        tn_backward(tn_add(tn_sum_all(tn_cast(y, TN_F32)), direct));
        once = once ? once : tn_return(tn_copy(tn_grad_of(n.layer.weight)));
    }
    assert_true(tn_all_close(tn_grad_of(n.layer.weight), tn_mul_scalar(once, 2.0), 1e-6, 1e-6));
    tn_module_finish(&n.layer);
}

typedef struct doubled {
    tn_tensor *once[64];
    int count;
    bool again;
} doubled;

static bool compare_entry(const tn_entry *entry, void *user) {
    doubled *d = user;
    tn_tensor *grad = tn_grad_of(*entry->field);
    if (!d->again) {
        d->once[d->count++] = tn_copy(grad);
    } else if (!tn_all_close(grad, tn_mul_scalar(d->once[d->count++], 2.0), 1e-6, 1e-7)) {
        fail_msg("%s is not twice its gradient", entry->path);
    }
    return true;
}

/* Two backwards of the same loss give twice the gradients of one, for all kernels that add. */
TEST(whole_models) {
    enum { VOCAB = 37, T = 8 };
    for (int low = 0; low < 2; low++) {
        TN_SCOPE;
        tn_gpt gpt;
        tn_lstm lstm;
        tn_seed(5);
        tn_gpt_init(&gpt, TN_WITH(tn_gpt, .vocab = VOCAB, .context = T, .layers = 1, .heads = 2,
                                  .width = 16));
        tn_lstm_init(&lstm, 8, 24, tn_rnn_defaults());
        if (low) { tn_module_set_precision(&gpt, tn_precision_defaults()); }
        tn_tensor *tokens = tn_randint(0, VOCAB, TN_DIMS(2, T), TN_I64),
                  *x = tn_randn(TN_DIMS(3, 2, 8), TN_F32);
        doubled all[2] = {0};
        for (int i = 0; i < 2; i++) {
            tn_backward(tn_lm_loss(&gpt, tokens, tokens));
            tn_backward(tn_sum_all(tn_square(tn_call(&lstm, x))));
            for (int k = 0; k < 2; k++) {
                all[k].again = i == 1;
                all[k].count = 0;
                void *m = k ? (void *)&lstm : (void *)&gpt;
                tn_module_each(m, (tn_walk){0}, compare_entry, &all[k]);
            }
        }
        assert_int_equal(tn_error(), TN_OK);
        tn_module_finish(&gpt);
        tn_module_finish(&lstm);
    }
}

static void zero_other(tn_tensor *leaf, void *user) {
    tn_zero_grad(user);
}

/* Between the kernel and the weight only the input's own hooks can run. If they reset the weight's
 * gradient, what the kernel has added to is gone: an error, not a wrong number. */
TEST(reset_in_between) {
    net n;
    net_init(&n, TN_F32);
    tn_set_requires_grad(n.x, true);
    tn_backward(tn_sum_all(tn_call(&n.layer, n.x)));
    tn_on_accumulated(n.x, zero_other, n.layer.weight);
    tn_status status = tn_backward(tn_sum_all(tn_call(&n.layer, n.x)));
    if (on_device()) {
        assert_error(TN_ESTATE, "was set while a backward added to it");
    } else {
        assert_int_equal(status, TN_OK);
    }
    tn_module_finish(&n.layer);
}

/* The gradient is the rule's own input, or the gradient that it is given: what is read is not added
 * to meanwhile. The emulator's products read before they write, so memory shows it. */
TEST(gradient_is_operand) {
    for (int k = 0; k < 2; k++) {
        TN_SCOPE;
        tn_seed(6);
        tn_tensor *w = tn_set_requires_grad(tn_randn(TN_DIMS(N, N), TN_F32), true),
                  *x = tn_randn(TN_DIMS(N, N), TN_F32);
        tn_backward(tn_sum_all(tn_square(tn_linear_op(x, w, NULL))));
        tn_tensor *grad = tn_grad_of(w), *before = tn_copy(grad), *own = tn_copy(tn_detach(w));
        tn_tensor *left = k ? x : grad, *dy = k ? grad : x, *copy = k ? x : before;
        tn_tensor *y = tn_linear_op(left, w, NULL);
        int64_t now = tn_device_memory(tn_default_device()).allocated;
        tn_device_memory_reset_peak(tn_default_device());
        tn_backward_from(&y, &dy, 1, false);
        int64_t more = tn_device_memory(tn_default_device()).peak - now;
        assert_true(!on_device() || more >= N * N * (int64_t)sizeof(float));
        tn_set_requires_grad(own, true);
        tn_tensor *other = tn_linear_op(copy, own, NULL), *dother = k ? before : x;
        tn_backward_from(&other, &dother, 1, false);
        tn_tensor *sum = tn_add(before, tn_grad_of(own));
        assert_int_equal(tn_error(), TN_OK);
        assert_true(tn_all_close(tn_grad_of(w), sum, 1e-6, 1e-4));
    }
}
