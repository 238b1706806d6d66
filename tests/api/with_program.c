/* TN_WITH, as test_with.sh compiles it: as C and as C++, without a warning. With -DBAD=n one use of
 * it is wrong. Exit status 0: all values are where they belong. */
#include <tern/tensor.h>

typedef struct small_options {
    double lr, beta;
    int list[3];
    tn_dims dims;
    const int *numbers;
    int (*call)(int a, int b);
    bool bias;
} small_options;

typedef struct large_options {
    small_options small;
    int batch, epochs;
} large_options;

/* A copy of the library's, so that nothing need be linked. */
tn_dims tn_dims_from(int ndim, const int64_t *size) {
    tn_dims dims;
    dims.ndim = ndim;
    for (int i = 0; i < TN_MAX_DIMS; i++) {
        dims.size[i] = i < ndim ? size[i] : 0;
    }
    return dims;
}

static int defaults_made; /* options are made once for each TN_WITH */

static inline small_options small_defaults(void) {
    small_options o;
    o.lr = 1e-3;
    o.beta = 0.9;
    o.list[0] = o.list[1] = o.list[2] = 7;
    o.dims = TN_DIMS(1);
    o.numbers = NULL;
    o.call = NULL;
    o.bias = true;
    defaults_made++;
    return o;
}

static inline large_options large_defaults(void) {
    large_options o;
    o.small = small_defaults();
    o.batch = 1;
    o.epochs = 1;
    return o;
}

static int failures;

#define CHECK(condition)                         \
    do {                                         \
        if (!(condition)) {                      \
            fprintf(stderr, "%s\n", #condition); \
            failures++;                          \
        }                                        \
    } while (0)

static int add_numbers(int a, int b) {
    return a + b;
}

static int double_count(int *calls) {
    return 2 * ++*calls;
}

static double lr_of(small_options o) {
    return o.lr;
}

/* The caller's variables may have the names that the macro uses. */
static void captures_nothing(void) {
    large_options o = TN_WITH(large, .batch = 5), options = TN_WITH(large, .batch = o.batch + 1);
    CHECK(options.batch == 6 && options.epochs == 1);
    options = TN_WITH(large, .epochs = options.batch, .batch = o.batch);
    CHECK(options.epochs == 6 && options.batch == 5);
    int what = 3, check = 4, more = 5, a = 6;
    o = TN_WITH(large, .batch = what + check, .epochs = more + a);
    CHECK(o.batch == 7 && o.epochs == 11);
}

static void sets_members(void) {
    small_options o = TN_WITH(small);
    CHECK(o.lr == 1e-3 && o.beta == 0.9 && o.bias && o.numbers == NULL);
    o = TN_WITH(small, .lr = 0, .bias = false);
    CHECK(o.lr == 0 && o.beta == 0.9 && !o.bias);
    o = TN_WITH(small, .list[0] = 1, .list[2] = add_numbers(1, 2), .dims = TN_DIMS(2, 3), );
    CHECK(o.list[0] == 1 && o.list[1] == 7 && o.list[2] == 3);
    CHECK(o.dims.ndim == 2 && o.dims.size[1] == 3);
    o = TN_WITH(small, .dims.size[0] = 4, .call = add_numbers);
    CHECK(o.dims.ndim == 1 && o.dims.size[0] == 4 && o.call(1, 1) == 2);
    static const int numbers[] = {1, 2};
    o = TN_WITH(small, .numbers = numbers);
    CHECK(o.numbers[1] == 2);
#ifndef __cplusplus
    o = TN_WITH(small, .dims = ((tn_dims){.ndim = 2, .size = {8, 9}}));
    CHECK(o.dims.size[1] == 9);
#endif
    CHECK(lr_of(TN_WITH(small, .lr = 5)) + lr_of(TN_WITH(small, .lr = 6)) == 11);
}

static void nests_options(void) {
    defaults_made = 0;
    large_options o = TN_WITH(large, .small = TN_WITH(small, .lr = 2, .beta = 3), .batch = 4);
    CHECK(o.small.lr == 2 && o.small.beta == 3 && o.small.bias && o.batch == 4 && o.epochs == 1);
    CHECK(defaults_made == 2);
    int calls = 0;
    o = TN_WITH(large, .batch = double_count(&calls),
                .small.lr = TN_WITH(small, .lr = double_count(&calls)).lr);
    CHECK(calls == 2 && o.batch == 2 && o.small.lr == 4);
}

/* As many as fit: the last one counts. */
static void sets_many(void) {
    large_options o =
        TN_WITH(large, .batch = 1, .batch = 2, .batch = 3, .batch = 4, .batch = 5, .batch = 6,
                .batch = 7, .batch = 8, .batch = 9, .batch = 10, .batch = 11, .batch = 12,
                .batch = 13, .batch = 14, .batch = 15, .batch = 16, .batch = 17, .batch = 18,
                .batch = 19, .batch = 20, .batch = 21, .batch = 22, .batch = 23, .batch = 24);
    CHECK(o.batch == 24 && o.epochs == 1);
}

#if BAD == 1
small_options wrong_name(void) {
    return TN_WITH(small, .lr = 1, .betta = 2);
}
#elif BAD == 2
small_options gone_array(void) {
    return TN_WITH(small, .numbers = (const int[]){1});
}
#elif BAD == 3
large_options too_many(void) {
    return TN_WITH(large, .batch = 1, .batch = 2, .batch = 3, .batch = 4, .batch = 5, .batch = 6,
                   .batch = 7, .batch = 8, .batch = 9, .batch = 10, .batch = 11, .batch = 12,
                   .batch = 13, .batch = 14, .batch = 15, .batch = 16, .batch = 17, .batch = 18,
                   .batch = 19, .batch = 20, .batch = 21, .batch = 22, .batch = 23, .batch = 24,
                   .batch = 25);
}
#endif

int main(void) {
    sets_members();
    nests_options();
    captures_nothing();
    sets_many();
    return failures != 0;
}
