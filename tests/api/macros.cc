// Every public macro as a C++ program writes it, for test_cxx.sh. Exits with status 0 if each does
// what it does in C.
#include <tern/sys/backend.h>
#include <tern/sys/device.h>
#include <tern/sys/group.h>
#include <tern/sys/object.h>
#include <tern/sys/op.h>
#include <tern/sys/optim.h>
#include <tern/sys/store.h>
#include <tern/sys/tensor.h>
#include <tern/tern.h>
#include <tern/tokenizer.h>

#include <cmath>
#include <cstdio>
#include <cstring>

// What else the headers define: numbers, and attributes of declarations.
static const long long numbers[] = {
    TN_BACKEND_VERSION, TN_DEVICE_VERSION, TN_DEVICE_WHY,
    TN_ENGINE_VERSION,  TN_ENGINE_WHY,     TN_MAX_DIMS,
    TN_MAX_VALUES,      TN_MESH_DIMS,      TN_MODULE_NAME,
    TN_OP_FIELDS,       TN_OP_INPUTS,      TN_OP_OUTPUTS,
    TN_SPAN_STATES,     TN_STORE_KEY,      TN_STORE_TIMEOUT,
    TN_STORE_VALUE,     TN_STORE_WHY,      (long long)TN_UTF8_BOUND(4),
    TN_VERSION_MAJOR,   TN_VERSION_MINOR,  TN_VERSION_PATCH};
TN_API int exported(const char *format, ...) TN_PRINTF(1, 2);

static int failures;

static void check_macro(bool fine, const char *what) {
    if (!fine || tn_error()) {
        std::printf("%s: %s\n", what, tn_error_message());
        tn_error_clear();
        failures++;
    }
}

static double item_of(tn_tensor *t) {
    return tn_item(t);
}

// ---- Tensors ----

static void check_tensors() {
    const float data[] = {1, 2, 3, 4, 5, 6};
    const int64_t rows = 2;
    tn_tensor *a = TN_FROM(data, TN_DIMS(rows, 3), TN_F32);
    check_macro(tn_ndim(a) == 2 && tn_size(a, 1) == 3, "TN_FROM, TN_DIMS");
    check_macro(tn_ndim(tn_zeros(TN_DIMS(), TN_F32)) == 0, "TN_DIMS()");
    tn_tensor *b = tn_ones(TN_DIMS(3, 4), TN_F32);
    check_macro(item_of(tn_sum_all(TN_EINSUM("ij,jk->ik", a, b))) == 84, "TN_EINSUM of two");
    check_macro(item_of(tn_sum_all(TN_EINSUM("ij->j", a))) == 21, "TN_EINSUM of one");
    check_macro(tn_size(TN_CAT(1, a, a), 1) == 6 && tn_size(TN_STACK(0, a, a, a), 0) == 3,
                "TN_CAT, TN_STACK");
    check_macro(tn_size(TN_CAT(0, a), 0) == rows, "TN_CAT of one");
    tn_values values = TN_VALUES(a, NULL, b);
    check_macro(values.n == 3 && values.v[0] == a && !values.v[1], "TN_VALUES");
    int64_t before = tn_live_tensors();
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        TN_NO_GRAD;
        TN_PROFILE_REGION("loop");
        tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2), TN_F32), true);
        check_macro(!tn_requires_grad(tn_exp(x)), "TN_NO_GRAD");
    }
    check_macro(tn_live_tensors() == before, "TN_SCOPE");
}

static void check_options() {
    tn_adamw_options o = TN_WITH(tn_adamw, .lr = 0.5, .weight_decay = 0.25);
    check_macro(o.from_defaults && o.lr == 0.5 && o.weight_decay == 0.25 &&
                    o.eps == tn_adamw_defaults().eps,
                "TN_WITH");
}

// ---- Modules ----

struct net {
    tn_module base;
    tn_linear first;
    tn_linear *second;
};

static tn_tensor *net_forward(tn_module *self, tn_tensor *x) {
    net *n = reinterpret_cast<net *>(self);
    return tn_call(n->second, tn_relu(tn_call(&n->first, x)));
}

static tn_values both_forward(tn_module *, tn_values in, void *) {
    return TN_VALUES(tn_add(in.v[0], in.v[1]));
}

static void check_modules() {
    net n;
    {
        TN_DEFER_INIT;
        tn_module_init(&n, "net", net_forward);
        tn_linear_init(&n.first, 4, 8, tn_linear_defaults());
        TN_ADD(&n, first);
        TN_OWN(&n, second, tn_linear_new(8, 2));
    }
    check_macro(tn_module_materialize(&n) == TN_OK && tn_module_count(&n) == 4 * 8 + 8 + 8 * 2 + 2,
                "TN_ADD, TN_OWN, TN_DEFER_INIT");
    tn_tensor *x = tn_ones(TN_DIMS(5, 4), TN_F32);
    {
        TN_NO_SYNC(&n);
        TN_WHOLE(&n);
        check_macro(tn_size(tn_call(&n, x), 1) == 2, "TN_NO_SYNC, TN_WHOLE");
    }
    tn_average *ema = tn_ema(&n, 0.5);
    {
        TN_AVERAGED(ema);
        check_macro(tn_size(tn_call(&n, x), 1) == 2, "TN_AVERAGED");
    }
    tn_average_free(ema);
    tn_module_finish(&n);
    tn_sequential *s =
        TN_SEQUENTIAL(tn_linear_new(4, 4), TN_FN(tn_relu), TN_FN_WITH(tn_mul_scalar, 0.5),
                      TN_FN([](tn_tensor *t) { return tn_abs(t); }), tn_linear_new(4, 1));
    check_macro(tn_module_children(s) == 5 && tn_size(tn_call(s, x), 1) == 1,
                "TN_SEQUENTIAL, TN_FN, TN_FN_WITH");
    tn_module_free(s);
    tn_module *both =
        static_cast<tn_module *>(tn_module_new_values(sizeof(tn_module), "both", both_forward));
    check_macro(item_of(tn_sum_all(TN_CALL(both, x, x))) == 40, "TN_CALL");
    tn_module_free(both);
}

static void check_data() {
    tn_dataset *d = TN_TRANSFORMED(tn_tensor_dataset(tn_ones(TN_DIMS(3, 1, 4, 4), TN_F32), NULL), 1,
                                   tn_center_crop(2, 2), tn_random_horizontal_flip(0.5));
    check_macro(d && d->x_dims.size[2] == 2, "TN_TRANSFORMED");
    tn_dataset_free(d);
}

// ---- A program's own operations ----

struct scale_args {
    double k;
    int64_t wholes[3];
    int64_t whole;
    bool on;
    int count;
    tn_reduction how;
    tn_dims dims;
};

static const tn_field fields[] = {TN_FIELD(scale_args, k),     TN_FIELD(scale_args, wholes),
                                  TN_FIELD(scale_args, whole), TN_FIELD(scale_args, on),
                                  TN_FIELD(scale_args, count), TN_FIELD(scale_args, how),
                                  TN_FIELD(scale_args, dims)};

struct scale {
    const char *kind;
    char name[8];
    struct {
        uint64_t seed;
        bool off;
    } options;
    tn_digest digest;
};

static const tn_field of_scale[] = {TN_FIELD_AS("type", scale, kind), TN_FIELD(scale, name),
                                    TN_FIELD_OPTION(scale, seed), TN_FIELD(scale, digest)};

static void check_operations() {
    static const tn_field_kind kinds[] = {TN_FIELD_DOUBLE, TN_FIELD_INT64, TN_FIELD_INT64,
                                          TN_FIELD_BOOL,   TN_FIELD_INT,   TN_FIELD_INT,
                                          TN_FIELD_DIMS};
    for (int i = 0; i < 7; i++) {
        check_macro(fields[i].kind == kinds[i] && fields[i].bytes > 0, fields[i].name);
    }
    check_macro(fields[1].offset == offsetof(scale_args, wholes) &&
                    fields[1].bytes == 3 * sizeof(int64_t),
                "TN_FIELD");
    static const tn_field_kind others[] = {TN_FIELD_TEXT, TN_FIELD_CHARS, TN_FIELD_UINT64,
                                           TN_FIELD_DIGEST};
    for (int i = 0; i < 4; i++) {
        check_macro(of_scale[i].kind == others[i] && !of_scale[i].names, of_scale[i].name);
    }
    check_macro(strcmp(of_scale[0].name, "type") == 0 && strcmp(of_scale[2].name, "seed") == 0 &&
                    of_scale[2].offset == offsetof(scale, options.seed),
                "TN_FIELD_AS, TN_FIELD_OPTION");
    check_macro(TN_UNLESS(scale, options.off) == offsetof(scale, options.off) + 1, "TN_UNLESS");
    tn_op op = tn_op();
    op.name = "twice";
    op.saves = TN_SAVES_INPUT(0) | TN_SAVES_OUTPUT(0) | TN_SAVES_INPUTS;
    op.x_rows[0] = TN_ROWS(1);
    op.shape = [](tn_op_call *c) { return tn_op_out_like(c, 0); };
    op.compose = [](tn_op_call *c) { return tn_mul_scalar(c->in[0], 2); };
    check_macro(item_of(tn_sum_all(tn_apply1(&op, NULL, tn_ones(TN_DIMS(3), TN_F32)))) == 6,
                "tn_op");
}

int main() {
    TN_SCOPE;
    check_macro(numbers[0] > 0, "numbers");
    check_tensors();
    check_options();
    check_modules();
    check_data();
    check_operations();
    return failures != 0;
}
