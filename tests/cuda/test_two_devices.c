/* A model whose blocks are on the emulator's two devices: every optimiser, clipping, the loss
 * scale, precision, averages and checkpoints give the bits that they give on one. */

#include "device_ranks.h"
#include "tests/parallel/train.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

enum { STEPS = 4, ROWS = 8, IN = 6, WIDTH = 16, CLASSES = 5 };

/* ---- The model ------------------------------------------------------------------------------- */

typedef struct two_blocks {
    tn_module base;
    tn_sequential *first, *second;
    tn_device there;
} two_blocks;

static tn_tensor *two_forward(tn_module *self, tn_tensor *x) {
    two_blocks *m = (two_blocks *)self;
    return tn_call(m->second, tn_to(tn_call(m->first, x), m->there));
}

/* The default device is the first block's. */
static void two_init(two_blocks *m, tn_device there) {
    TN_SCOPE;
    tn_seed(5);
    *m = (two_blocks){.there = there};
    tn_module_init(m, "two_blocks", two_forward);
    TN_OWN(m, first,
           TN_SEQUENTIAL(tn_linear_new(IN, WIDTH), tn_batch_norm1d_new(WIDTH), TN_FN(tn_tanh),
                         tn_dropout_new(0.2)));
    TN_OWN(m, second,
           TN_SEQUENTIAL(tn_linear_new(WIDTH, WIDTH), tn_layer_norm_new(WIDTH), tn_dropout_new(0.2),
                         TN_FN(tn_gelu), tn_linear_new(WIDTH, CLASSES)));
    assert_int_equal(tn_module_to(m->second, there), TN_OK);
    assert_int_equal(tn_device_of(tn_module_get(m, "first.0.weight")).index,
                     tn_default_device().index);
    assert_int_equal(tn_device_of(tn_module_get(m, "second.0.weight")).index, there.index);
}

static tn_tensor *two_loss(two_blocks *m, int step) {
    int64_t labels[ROWS];
    tn_generator g = {.seed = 9, .stream = (uint64_t)step};
    for (int i = 0; i < ROWS; i++) {
        labels[i] = tn_random_below(&g, CLASSES);
    }
    tn_tensor *x = tn_normal_(tn_empty(TN_DIMS(ROWS, IN), TN_F32), 0, 1, &g);
    return tn_cross_entropy(tn_call(m, x), tn_to(TN_FROM(labels, TN_DIMS(ROWS), TN_I64), m->there),
                            TN_MEAN);
}

/* ---- The optimisers -------------------------------------------------------------------------- */

#define OPTIMISERS(X) \
    X(sgd)            \
    X(adam)           \
    X(adamw)          \
    X(rmsprop)        \
    X(adagrad)        \
    X(adadelta)       \
    X(adamax)         \
    X(nadam)          \
    X(radam)          \
    X(asgd)           \
    X(lion)           \
    X(lamb)           \
    X(adafactor)      \
    X(muon)

#define MAKER(name)                                  \
    static tn_optim *make_##name(void *m) {          \
        return tn_##name(m, tn_##name##_defaults()); \
    }
OPTIMISERS(MAKER)

#define POINTER(name) make_##name,
static tn_optim *(*const makers[])(void *m) = {OPTIMISERS(POINTER)};
enum { MAKERS = sizeof(makers) / sizeof(*makers) };

/* ---- A run ----------------------------------------------------------------------------------- */

typedef enum clip { CLIP_NONE, CLIP_OPTIM, CLIP_MODULE, CLIP_VALUE } clip;

typedef struct course {
    tn_optim *(*make)(void *m);
    tn_dtype compute; /* TN_F32: no policy */
    tn_dtype param;   /* of the policy */
    clip clip;
    bool recompute, average, frozen;
    double scale;            /* above 0: with a scaler, which begins there */
    const char *load, *save; /* a checkpoint before the first step, or after the last; NULL */
    int from;                /* the first step */
} course;

typedef struct outcome {
    double losses[STEPS], norms[STEPS], scale;
    train_bits weights, average;
} outcome;

static bool append_entry(const tn_entry *entry, void *user) {
    train_bits *bits = user;
    size_t bytes = (size_t)tn_count(*entry->field) * tn_dtype_size(tn_dtype_of(*entry->field));
    bits->data = realloc(bits->data, bits->bytes + bytes);
    tn_copy_out(*entry->field, bits->data + bits->bytes);
    bits->bytes += bytes;
    return true;
}

static train_bits all_bits(void *m) {
    train_bits bits = {0};
    tn_module_each(m, (tn_walk){.buffers = true}, append_entry, &bits);
    return bits;
}

static void run_step(two_blocks *m, tn_optim *opt, tn_scaler *scaler, const course *c, int step,
                     outcome *out) {
    TN_SCOPE;
    tn_tensor *loss = two_loss(m, step);
    tn_backward(scaler ? tn_scaler_scale(scaler, loss) : loss);
    if (c->clip == CLIP_VALUE) { tn_clip_grad_value(m, 0.01); }
    out->losses[step] = tn_item(loss);
    out->norms[step] = c->clip == CLIP_MODULE            ? tn_clip_grad_norm(m, 0.1)
                       : c->clip == CLIP_OPTIM && scaler ? tn_scaler_clip(scaler, opt, 0.1)
                       : c->clip == CLIP_OPTIM           ? tn_optim_clip(opt, 0.1)
                                                         : 0;
    if (scaler) {
        tn_scaler_step(scaler, opt);
        tn_scaler_update(scaler);
    } else {
        tn_optim_step(opt);
    }
    tn_optim_zero_grad(opt);
}

/* The second block is on `there`, the first on cuda:0. */
static outcome run_on(tn_device there, const course *c) {
    TN_SCOPE;
    outcome out = {.scale = 0};
    tn_set_default_device(tn_cuda(0));
    two_blocks m;
    two_init(&m, there);
    if (c->compute != TN_F32) {
        tn_module_set_precision(&m,
                                TN_WITH(tn_precision, .compute = c->compute, .param = c->param));
    }
    if (c->frozen) { tn_freeze(&m, "first.0 second.4.bias"); }
    tn_module_set_recompute(m.first, c->recompute);
    tn_module_set_recompute(m.second, c->recompute);
    tn_optim *opt = c->make(&m);
    tn_scaler *scaler = c->scale > 0 ? tn_scaler_new(TN_WITH(tn_scaler, .scale = c->scale)) : NULL;
    tn_average *average = c->average ? tn_ema(&m, 0.5) : NULL;
    tn_checkpoint point = {.model = &m,
                           .optim = opt,
                           .scaler = scaler,
                           .average = average,
                           .generator = tn_default_generator()};
    if (c->load) { assert_int_equal(tn_checkpoint_load(&point, c->load), TN_OK); }
    for (int step = c->from; step < (c->save ? STEPS / 2 : STEPS); step++) {
        run_step(&m, opt, scaler, c, step, &out);
        if (average) { tn_average_update(average); }
    }
    if (c->save) { assert_int_equal(tn_checkpoint_save(&point, c->save), TN_OK); }
    out.weights = all_bits(&m);
    if (average) {
        TN_AVERAGED(average);
        out.average = all_bits(&m);
    }
    out.scale = scaler ? tn_scaler_where(scaler).scale : 0;
    tn_average_free(average);
    tn_scaler_free(scaler);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_set_default_device(tn_cpu());
    assert_string_equal(tn_error_message(), "");
    return out;
}

static void outcome_free(outcome *o) {
    free(o->weights.data);
    free(o->average.data);
}

static void assert_same(const outcome *a, const outcome *b, int from) {
    size_t steps = (size_t)(STEPS - from) * sizeof(double);
    assert_memory_equal(a->losses + from, b->losses + from, steps);
    assert_memory_equal(a->norms + from, b->norms + from, steps);
    assert_true(a->losses[STEPS - 1] > 0 && a->scale == b->scale);
    assert_true(train_same(a->weights, b->weights));
    assert_true(!a->average.data || train_same(a->average, b->average));
}

/* On two devices as on one. Returns the scaler's scale. */
static double assert_alike(course c) {
    outcome one = run_on(tn_cuda(0), &c), two = run_on(tn_cuda(1), &c);
    double scale = one.scale;
    assert_same(&one, &two, 0);
    outcome_free(&one);
    outcome_free(&two);
    return scale;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

TEST(every_optimiser) {
    for (int i = 0; i < MAKERS; i++) {
        assert_alike((course){.make = makers[i], .compute = TN_F32, .clip = CLIP_OPTIM});
        assert_alike((course){.make = makers[i],
                              .compute = TN_BF16,
                              .param = TN_BF16, /* with master copies */
                              .clip = CLIP_MODULE});
    }
}

TEST(all_around_a_step) {
    course plain = {.make = make_adamw, .compute = TN_F32}, c = plain;
    c.clip = CLIP_VALUE;
    assert_alike(c);
    c = plain;
    c.recompute = true;
    outcome stored = run_on(tn_cuda(1), &plain), again = run_on(tn_cuda(1), &c);
    assert_same(&stored, &again, 0);
    outcome_free(&stored);
    outcome_free(&again);
    c.compute = TN_BF16;
    assert_alike(c);
    c = plain;
    c.average = c.frozen = true;
    assert_alike(c);
}

TEST(scaled_losses) {
    course c = {.make = make_adamw, .compute = TN_F16, .scale = 1024, .clip = CLIP_OPTIM};
    assert_true(assert_alike(c) == 1024);
    c.clip = CLIP_NONE;
    assert_alike(c);
    c.scale = 0x1p40; /* gradients overflow: those steps are skipped */
    assert_true(assert_alike(c) == 0x1p36);
}

/* A file says nothing of devices: saved on two and continued on one, and the other way round. */
TEST(checkpoints_move) {
    course c = {
        .make = make_adamw, .compute = TN_F16, .average = true, .scale = 64, .clip = CLIP_OPTIM};
    outcome whole = run_on(tn_cuda(0), &c);
    unsigned char *bytes[2];
    size_t sizes[2];
    for (int from = 0; from < 2; from++) {
        course half = c;
        half.save = temp_path(from ? "two" : "one");
        outcome first = run_on(tn_cuda(from), &half);
        outcome_free(&first);
        bytes[from] = temp_read(half.save, &sizes[from]);
        half.load = half.save;
        half.save = NULL;
        half.from = STEPS / 2;
        for (int to = 0; to < 2; to++) {
            outcome second = run_on(tn_cuda(to), &half);
            assert_same(&whole, &second, STEPS / 2);
            outcome_free(&second);
        }
    }
    assert_true(sizes[0] == sizes[1] && memcmp(bytes[0], bytes[1], sizes[0]) == 0);
    free(bytes[0]);
    free(bytes[1]);
    outcome_free(&whole);
}

TEST(saved_weights_and_the_tree) {
    two_blocks two, one;
    tn_set_default_device(tn_cuda(0));
    two_init(&two, tn_cuda(1));
    two_init(&one, tn_cuda(0));
    {
        TN_NO_GRAD;
        tn_fill_(tn_module_get(&one, "second.0.weight"), 3.0);
    }
    assert_int_equal(tn_save(&two, temp_path("weights")), TN_OK);
    assert_int_equal(tn_load(&one, temp_path("weights")), TN_OK);
    train_bits a = all_bits(&one), b = all_bits(&two);
    assert_true(train_same(a, b));
    free(a.data);
    free(b.data);
    char *text[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        size_t size;
        FILE *file = open_memstream(&text[i], &size);
        tn_module_print(i ? &two : &one, file);
        fclose(file);
    }
    assert_string_equal(text[0], text[1]);
    assert_contains(text[0], "second sequential: 389 parameters");
    free(text[0]);
    free(text[1]);
    tn_module_finish(&two);
    tn_module_finish(&one);
    tn_set_default_device(tn_cpu());
}

/* A parameter with two names cannot be on two devices: it would be two parameters. */
TEST(ties_stay_together) {
    tn_sequential *net = TN_SEQUENTIAL(tn_linear_new(4, 4), TN_SEQUENTIAL(tn_linear_new(4, 4)));
    tn_module_tie(net, "1.0.weight", "0.weight");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tn_module_to(tn_module_at(net, i), tn_cuda(1)), TN_ESTATE);
        assert_error(TN_ESTATE, i ? "0.weight is tied to a parameter that would move to cuda:1"
                                  : "1.0.weight is tied to a parameter that would move to cuda:1");
        assert_int_equal(tn_device_of(tn_module_get(net, "1.0.bias")).kind, TN_CPU);
    }
    assert_int_equal(tn_module_count(net), 24);
    assert_int_equal(tn_module_to(net, tn_cuda(1)), TN_OK);
    assert_int_equal(tn_module_count(net), 24);
    tn_module_free(net);
}

int main(int argc, char **argv) {
    if (!device_main(argc, argv)) { return 0; }
    return tests_run(NULL, NULL);
}
