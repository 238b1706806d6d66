/* Raises errors in many ways and checks that the text names the right line; test_place.sh builds it
 * in many ways, also as C++. With an argument it only raises one error and prints its text. */
#include <tern/tensor.h>

#ifdef WITH_MODULES
#include <tern/nn.h>
#endif

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#ifndef FILE_NAME
#define FILE_NAME "place_program.c"
#endif

static int failures;

/* The pending error must name a line from `first` to `last` of this file, followed by `text`. */
static void check_place(const char *name, int first, int last, const char *text) {
    const char *message = tn_error_message();
    size_t length = strlen(FILE_NAME);
    bool right = false;
    if (strncmp(message, FILE_NAME, length) == 0 && message[length] == ':') {
        char *rest;
        long line = strtol(message + length + 1, &rest, 10);
        right = line >= first && line <= last && strncmp(rest, text, strlen(text)) == 0;
    }
    if (!right) {
        printf("# %s: lines %d to %d, but: %s\n", name, first, last, message);
        failures++;
    }
    tn_error_clear();
}

enum { INLINED = __LINE__ + 2 };
static inline int inlined_ndim(const tn_tensor *t) {
    return tn_ndim(t) + 1;
}

#define LOOK(t) tn_item(t)

static void release_with_error(void *data, void *user) {
    tn_item(NULL);
    *(int *)user = __LINE__ - 1; /* last: a tail call would leave no frame */
}

static int compare_with_error(const void *a, const void *b) {
    tn_item(NULL);
    return 0;
}

static void *in_thread(void *record) {
    tn_item(NULL);
    tn_error_take((tn_error_record *)record);
    return NULL;
}

static void simple_calls(void) {
    tn_item(NULL);
    check_place("direct", __LINE__ - 1, __LINE__ - 1, ": item: the tensor is NULL");

    int line = __LINE__;
    /* clang-format off */
    tn_shape_text(
        tn_alias(
            NULL,
            0,
            TN_DIMS(1,
                    2)));
    /* clang-format on */
    check_place("nested over several lines", line + 2, line + 7, ": alias: the tensor is NULL");

    LOOK(NULL);
    check_place("macro", __LINE__ - 1, __LINE__ - 1, ": item");

    int (*volatile pointer)(const tn_tensor *) = tn_ndim;
    pointer(NULL);
    check_place("function pointer", __LINE__ - 1, __LINE__ - 1, ": ndim");

    if (inlined_ndim(NULL) != 1) { failures++; }
    check_place("inlined", INLINED, INLINED, ": ndim");

    tn_raise(TN_EVALUE, "of my own");
    check_place("the program's own", __LINE__ - 1, __LINE__ - 1, ": of my own");
}

static void calls_from_elsewhere(void) {
    float x = 1;
    int line = 0, numbers[2] = {1, 2};
    {
        TN_SCOPE;
        tn_from_memory(&x, TN_DIMS(1), TN_F32, release_with_error, &line);
    }
    check_place("a callback of the library", line, line, ": item");

    qsort(numbers, 2, sizeof(int), compare_with_error);
    check_place("a callback of the C library", 1, 60, ": item");

    tn_error_record record;
    pthread_t thread;
    memset(&record, 0, sizeof(record));
    pthread_create(&thread, NULL, in_thread, &record);
    pthread_join(thread, NULL);
    tn_error_give(&record);
    check_place("a thread", 1, 60, ": item");
}

#ifdef WITH_MODULES
typedef struct mlp {
    tn_module base;
    tn_linear fc1;
} mlp;

static int forwards;
enum { IN_FORWARD = __LINE__ + 2 };
static tn_tensor *mlp_forward(tn_module *self, tn_tensor *x) {
    tn_tensor *y = tn_call(&((mlp *)self)->fc1, x);
    forwards++; /* no tail call */
    return y;
}

static void calls_in_modules(void) {
    TN_SCOPE;
    mlp net;
    tn_module_init(&net, "mlp", mlp_forward);
    tn_linear_init(&net.fc1, 20, 5, tn_linear_defaults());
    tn_module_add(&net, "fc1", &net.fc1.base);
    tn_call(&net, tn_zeros(TN_DIMS(64, 19), TN_F32));
    check_place("inside a module of the library", IN_FORWARD, IN_FORWARD,
                " (in mlp.fc1): linear: ");
    tn_module_finish(&net);
}
#endif

#ifdef __cplusplus
#include <functional>

struct thing {
    int size(const tn_tensor *t) { return tn_ndim(t); }
};

template <typename T> static double item_of(T t) {
    double x = tn_item(t);
    return x + 1;
}

static void cxx_calls(void) {
    int line = __LINE__ + 1;
    std::function<int()> lambda = [] {
        int n = tn_ndim(nullptr);
        return n + 1;
    };
    lambda();
    check_place("a lambda", line, line + 3, ": ndim");
    thing x;
    if (x.size(nullptr) != 0) { failures++; }
    check_place("a method", line - 14, line + 10, ": ndim");
    item_of((const tn_tensor *)nullptr);
    check_place("a template", line - 9, line + 14, ": item");
}
#endif

__attribute__((noinline)) static void raise_one(void) {
    tn_item(NULL);
#ifdef LITTLE_MEMORY
    struct rlimit now = {16 << 20, RLIM_INFINITY}; /* the process has more already */
    setrlimit(RLIMIT_AS, &now);
#endif
    puts(tn_error_message());
}

int main(int argc, char **argv) {
    if (argc > 1) {
        raise_one();
        return 0;
    }
    simple_calls();
    calls_from_elsewhere();
#ifdef WITH_MODULES
    calls_in_modules();
#endif
#ifdef __cplusplus
    cxx_calls();
#endif
    return failures != 0;
}
