/* One layer of ../conv.c by oneDNN 2: onednn_conv blocked|plain N C O SIZE KERNEL STRIDE PADDING
 *
 * Steps are in turn the forward direction, the input's gradient, the weight's. `blocked`: operands
 * are laid out as each primitive wants them, and reordering is not counted; `plain`: as Tern has
 * them.
 */
#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PASSES = 3 };

typedef struct pass {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[3];
} pass;

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static void check_status(dnnl_status_t status, const char *what) {
    if (status != dnnl_success) {
        fprintf(stderr, "oneDNN: %s: %d\n", what, (int)status);
        exit(1);
    }
}
#define CHECK(call) check_status(call, #call)

static dnnl_memory_t memory_of(const dnnl_memory_desc_t *desc) {
    dnnl_memory_t memory;
    void *data;
    CHECK(dnnl_memory_create(&memory, desc, engine, DNNL_MEMORY_ALLOCATE));
    CHECK(dnnl_memory_get_data_handle(memory, &data));
    float *x = data;
    for (size_t i = 0; i < dnnl_memory_desc_get_size(desc) / sizeof(float); i++) {
        x[i] = (float)(i % 17) * 0.01f - 0.08f;
    }
    return memory;
}

/* A pass with the descriptor `op`, whose forward direction is `hint`, and its three operands. */
static pass make_pass(const dnnl_convolution_desc_t *op, dnnl_primitive_desc_t hint,
                      dnnl_primitive_desc_t *made, const int *args) {
    dnnl_primitive_desc_t d;
    pass p;
    CHECK(dnnl_primitive_desc_create(&d, op, NULL, engine, hint));
    CHECK(dnnl_primitive_create(&p.primitive, d));
    for (int i = 0; i < 3; i++) {
        const dnnl_memory_desc_t *desc =
            dnnl_primitive_desc_query_md(d, dnnl_query_exec_arg_md, args[i]);
        p.args[i] = (dnnl_exec_arg_t){args[i], memory_of(desc)};
    }
    *made = d;
    return p;
}

static void make_passes(const dnnl_memory_desc_t *x, const dnnl_memory_desc_t *w,
                        const dnnl_memory_desc_t *y, dnnl_dim_t stride, dnnl_dim_t padding,
                        pass *passes) {
    dnnl_dims_t strides = {stride, stride}, paddings = {padding, padding};
    dnnl_convolution_desc_t op;
    dnnl_primitive_desc_t forward, unused;
    CHECK(dnnl_convolution_forward_desc_init(&op, dnnl_forward_training, dnnl_convolution_direct, x,
                                             w, NULL, y, strides, paddings, paddings));
    passes[0] =
        make_pass(&op, NULL, &forward, (int[]){DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST});
    CHECK(dnnl_convolution_backward_data_desc_init(&op, dnnl_convolution_direct, x, w, y, strides,
                                                   paddings, paddings));
    passes[1] = make_pass(&op, forward, &unused,
                          (int[]){DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST});
    CHECK(dnnl_convolution_backward_weights_desc_init(&op, dnnl_convolution_direct, x, w, NULL, y,
                                                      strides, paddings, paddings));
    passes[2] = make_pass(&op, forward, &unused,
                          (int[]){DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST});
}

/* As bench_step_now in bench.h, in ms. */
static double step_now(void) {
    const char *kind = getenv("TERN_BENCH_TIME");
    bool cpu = kind && strcmp(kind, "cpu") == 0;
    struct timespec t;
    clock_gettime(cpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static double run_pass(const pass *p) {
    double start = step_now();
    CHECK(dnnl_primitive_execute(p->primitive, stream, 3, p->args));
    CHECK(dnnl_stream_wait(stream));
    return step_now() - start;
}

int main(int argc, char **argv) {
    if (argc != 9) {
        fprintf(stderr, "usage: see bench/peers/onednn_conv.c   (run bench/conv.py)\n");
        return 2;
    }
    dnnl_dim_t n[7];
    for (int i = 0; i < 7; i++) {
        n[i] = atoll(argv[i + 2]);
    }
    dnnl_dim_t out = (n[3] + 2 * n[6] - n[4]) / n[5] + 1;
    dnnl_format_tag_t tag = strcmp(argv[1], "blocked") == 0 ? dnnl_format_tag_any : dnnl_abcd;
    dnnl_memory_desc_t x, w, y;
    CHECK(dnnl_engine_create(&engine, dnnl_cpu, 0));
    CHECK(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    CHECK(
        dnnl_memory_desc_init_by_tag(&x, 4, (dnnl_dims_t){n[0], n[1], n[3], n[3]}, dnnl_f32, tag));
    CHECK(
        dnnl_memory_desc_init_by_tag(&w, 4, (dnnl_dims_t){n[2], n[1], n[4], n[4]}, dnnl_f32, tag));
    CHECK(dnnl_memory_desc_init_by_tag(&y, 4, (dnnl_dims_t){n[0], n[2], out, out}, dnnl_f32, tag));
    pass passes[PASSES];
    make_passes(&x, &w, &y, n[5], n[6], passes);
    char line[64];
    int steps, turn = 0;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "run %d", &steps) == 1) {
            printf("0");
            for (int i = 0; i < steps; i++) {
                printf(" %.4f", run_pass(&passes[turn++ % PASSES]));
            }
            printf("\n");
            fflush(stdout);
        }
    }
    return 0;
}
