/* Products by oneDNN: a product is cut into pieces, each piece's shape has a primitive, and threads
 * run pieces. */
#include "backends/cpu/onednn.h"

#include "backends/cpu/onednn_library.h"

#if TN_HAVE_ONEDNN

#include "core/fork.h"
#include "core/memory.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int64_t products;

int64_t tn__onednn_count(void) {
    return atomic_load_explicit(&products, memory_order_relaxed);
}

const char *tn__onednn_reason(void) {
    return tn__onednn_why();
}

static int64_t min_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static int64_t max_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- Primitives ------------------------------------------------------------------------------ */

/* What a primitive is made for. No padding: keys are compared as bytes. */
typedef struct shape {
    int64_t m, n, k, a_row, a_col, b_row, b_col, ldc;
    int32_t in, out, bias;
    float beta;
} shape;
_Static_assert(sizeof(shape) == 8 * 8 + 4 * 4, "padding");

typedef struct entry {
    shape key;
    dnnl_memory_desc_t a, b, bias, c, scratch;
    dnnl_primitive_t primitive; /* NULL: oneDNN refuses, or would be slow */
    size_t scratch_bytes;
    int users;
    uint64_t used; /* when, for eviction */
    struct entry *next;
} entry;

/* Shapes that are cached: a training step has a few dozen, generating text brings new ones all the
 * time. */
enum { KEPT = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry *entries;
static int entry_count;
static uint64_t now;

__attribute__((constructor)) static void care_for_fork(void) {
    tn__fork_takes(&lock);
}

static void describe_matrix(dnnl_memory_desc_t *d, tn_dtype dtype, int64_t rows, int64_t cols,
                            int64_t row, int64_t col) {
    dnnl_dims_t size = {rows, cols}, stride = {row, col};
    dnnl_data_type_t type = dtype == TN_F32 ? dnnl_f32 : dnnl_bf16;
    if (tn__onednn()->memory_desc_init_by_strides(d, 2, size, type, stride) != dnnl_success) {
        memset(d, 0, sizeof(*d)); /* which no primitive accepts */
    }
}

/* Scratch memory is ours, so that several threads can run one primitive at the same time. */
static dnnl_primitive_attr_t make_attributes(float beta) {
    const tn__onednn_library *dnn = tn__onednn();
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t after = NULL;
    bool ok =
        dnn->primitive_attr_create(&attr) == dnnl_success &&
        dnn->primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success &&
        dnn->post_ops_create(&after) == dnnl_success &&
        (beta == 0 || dnn->post_ops_append_sum(after, beta) == dnnl_success) &&
        dnn->primitive_attr_set_post_ops(attr, after) == dnnl_success;
    if (after) {
        dnn->post_ops_destroy(after);
    }
    if (!ok && attr) {
        dnn->primitive_attr_destroy(attr);
    }
    return ok ? attr : NULL;
}

/* oneDNN has a plain loop for what its fast code does not handle. */
static bool is_fast(const_dnnl_primitive_desc_t description) {
    const char *name = "";
    tn__onednn()->primitive_desc_query(description, dnnl_query_impl_info_str, 0, &name);
    return strncmp(name, "ref", 3) != 0;
}

/* TN_OK even if there is no primitive. */
static tn_status fill_entry(entry *e) {
    const tn__onednn_library *dnn = tn__onednn();
    const shape *s = &e->key;
    describe_matrix(&e->a, (tn_dtype)s->in, s->m, s->k, s->a_row, s->a_col);
    describe_matrix(&e->b, (tn_dtype)s->in, s->k, s->n, s->b_row, s->b_col);
    describe_matrix(&e->c, (tn_dtype)s->out, s->m, s->n, s->ldc, 1);
    describe_matrix(&e->bias, TN_F32, 1, s->n, s->n, 1);
    dnnl_matmul_desc_t d;
    if (dnn->matmul_desc_init(&d, &e->a, &e->b, s->bias ? &e->bias : NULL, &e->c) != dnnl_success) {
        return TN_OK;
    }
    dnnl_primitive_attr_t attr = make_attributes(s->beta);
    if (!attr) {
        return TN_ENOMEM;
    }
    dnnl_primitive_desc_t description = NULL;
    dnnl_status_t status = dnn->primitive_desc_create(&description, &d, attr, dnn->engine, NULL);
    if (status == dnnl_success && is_fast(description)) {
        e->scratch = *dnn->primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
        e->scratch_bytes = dnn->memory_desc_get_size(&e->scratch);
        status = dnn->primitive_create(&e->primitive, description);
    }
    if (description) {
        dnn->primitive_desc_destroy(description);
    }
    dnn->primitive_attr_destroy(attr);
    return status == dnnl_out_of_memory ? TN_ENOMEM : TN_OK;
}

/* If the cache is full, evicts the least recently used entry that is not in use. Under the lock. */
static void evict_entry(void) {
    entry **oldest = NULL;
    for (entry **e = &entries; *e; e = &(*e)->next) {
        if ((*e)->users == 0 && (!oldest || (*e)->used < (*oldest)->used)) {
            oldest = e;
        }
    }
    if (entry_count < KEPT || !oldest) {
        return;
    }
    entry *gone = *oldest;
    *oldest = gone->next;
    entry_count--;
    if (gone->primitive) {
        tn__onednn()->primitive_destroy(gone->primitive);
    }
    free(gone);
}

/* Under the lock. */
static tn_status find_entry(const shape *key, entry **found) {
    entry *e = entries;
    while (e && memcmp(&e->key, key, sizeof(*key)) != 0) {
        e = e->next;
    }
    if (!e) {
        e = tn__malloc(sizeof(*e));
        if (!e) {
            return TN_ENOMEM;
        }
        memset(e, 0, sizeof(*e));
        e->key = *key;
        if (fill_entry(e) != TN_OK) {
            free(e);
            return TN_ENOMEM;
        }
        evict_entry();
        e->next = entries;
        entries = e;
        entry_count++;
    }
    e->users++;
    e->used = ++now;
    *found = e;
    return e->primitive ? TN_OK : TN_EUNSUPPORTED;
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* A piece has at most `rows` x `cols`. entry[1][] is for the last pieces down, entry[][1] for the
 * last to the right: they may be smaller. */
typedef struct plan {
    const tn__onednn_job *job;
    int64_t rows, cols, down, right;
    entry *entry[2][2];
} plan;

/* Large enough to hide the few microseconds of a call, small enough for many threads. */
static void plan_cut(plan *p) {
    enum { ROWS = 512, COLS = 64, WORK = 1 << 25 };
    const tn__onednn_job *job = p->job;
    p->rows = min_of(job->m, ROWS);
    int64_t cols = WORK / (p->rows * job->k) / COLS * COLS;
    p->cols = min_of(job->n, max_of(cols, COLS));
    p->down = (job->m + p->rows - 1) / p->rows;
    p->right = (job->n + p->cols - 1) / p->cols;
}

static int64_t rows_of(const plan *p, int64_t i) {
    return min_of(p->rows, p->job->m - i * p->rows);
}
static int64_t cols_of(const plan *p, int64_t j) {
    return min_of(p->cols, p->job->n - j * p->cols);
}

/* The primitive of every kind of piece. On failure those that were found stay for `plan_clear`. */
static tn_status plan_prepare(plan *p) {
    const tn__onednn_job *job = p->job;
    tn_status status = TN_OK;
    int threads = omp_get_max_threads();
    omp_set_num_threads(1); /* a primitive runs on the number of threads set when it is made */
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 2 && status == TN_OK; i++) {
        for (int j = 0; j < 2 && status == TN_OK; j++) {
            shape key = {.m = rows_of(p, i ? p->down - 1 : 0),
                         .n = cols_of(p, j ? p->right - 1 : 0),
                         .k = job->k,
                         .a_row = job->a.row,
                         .a_col = job->a.col,
                         .b_row = job->b.row,
                         .b_col = job->b.col,
                         .ldc = job->ldc,
                         .in = job->in,
                         .out = job->out,
                         .bias = job->bias != NULL,
                         .beta = (float)job->beta};
            status = find_entry(&key, &p->entry[i][j]);
        }
    }
    pthread_mutex_unlock(&lock);
    omp_set_num_threads(threads);
    return status;
}

static void plan_clear(plan *p) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 4; i++) {
        if (p->entry[i / 2][i % 2]) {
            p->entry[i / 2][i % 2]->users--;
        }
    }
    pthread_mutex_unlock(&lock);
}

static const void *moved_data(const void *data, tn_dtype dtype, int64_t elements) {
    return (const char *)data + elements * (dtype == TN_F32 ? 4 : 2);
}

/* One piece with this thread's stream and scratch memory. */
static bool run_piece(const plan *p, int64_t i, int64_t j, dnnl_stream_t stream, void *scratch) {
    enum { ARGS = 5 };
    const tn__onednn_library *dnn = tn__onednn();
    const tn__onednn_job *job = p->job;
    entry *e = p->entry[i == p->down - 1][j == p->right - 1];
    int64_t row = i * p->rows, col = j * p->cols;
    const void *const data[ARGS] = {
        moved_data(job->a.data, job->in, row * job->a.row),
        moved_data(job->b.data, job->in, col * job->b.col),
        moved_data(job->c, job->out, row * job->ldc + col),
        scratch,
        job->bias ? job->bias + col : NULL,
    };
    static const int names[ARGS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                    DNNL_ARG_SCRATCHPAD, DNNL_ARG_BIAS};
    const dnnl_memory_desc_t *const descs[ARGS] = {&e->a, &e->b, &e->c, &e->scratch, &e->bias};
    dnnl_exec_arg_t args[ARGS];
    int count = 0, wanted = job->bias ? ARGS : ARGS - 1;
    bool ok = true;
    while (ok && count < wanted) {
        args[count].arg = names[count];
        ok = dnn->memory_create(&args[count].memory, descs[count], dnn->engine,
                                (void *)(uintptr_t)data[count]) == dnnl_success;
        count += ok;
    }
    ok = ok && dnn->primitive_execute(e->primitive, stream, count, args) == dnnl_success &&
         dnn->stream_wait(stream) == dnnl_success;
    while (count > 0) {
        dnn->memory_destroy(args[--count].memory);
    }
    return ok;
}

/* Takes pieces until there are none: called by every thread of the team. */
static bool run_pieces(const plan *p, int64_t *next, void *scratch) {
    const tn__onednn_library *dnn = tn__onednn();
    dnnl_stream_t stream;
    if (dnn->stream_create(&stream, dnn->engine, dnnl_stream_default_flags) != dnnl_success) {
        return false;
    }
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    bool ok = true;
    for (int64_t t;
         ok && (t = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < p->down * p->right;) {
        ok = run_piece(p, t % p->down, t / p->down, stream, scratch);
    }
    omp_set_num_threads(threads);
    dnn->stream_destroy(stream);
    return ok;
}

static tn_status plan_run(tn_context *ctx, const plan *p) {
    enum { LINE = 64 };
    size_t each = 0;
    for (int i = 0; i < 4; i++) {
        size_t bytes = p->entry[i / 2][i % 2]->scratch_bytes;
        each = bytes > each ? bytes : each;
    }
    each = (each + LINE - 1) / LINE * LINE;
    int threads = (int)max_of(1, min_of(p->job->threads, p->down * p->right));
    size_t bytes = each * (size_t)threads + LINE;
    char *memory = ctx->workspace(ctx, bytes);
    if (!memory) {
        return TN_ENOMEM;
    }
    char *first = memory + (LINE - (uintptr_t)memory % LINE) % LINE;
    int64_t next = 0;
    int failed = 0;
    if (threads == 1) {
        failed = !run_pieces(p, &next, first);
    } else {
#pragma omp parallel num_threads(threads) reduction(+ : failed)
        failed += !run_pieces(p, &next, first + each * (size_t)omp_get_thread_num());
    }
    ctx->workspace_free(ctx, memory, bytes);
    return failed ? TN_ENOMEM : TN_OK;
}

/* ---- A product ------------------------------------------------------------------------------- */

/* Below about a million multiply-adds our own product is as fast. */
static bool job_wanted(const tn__onednn_job *job, int level) {
    if (job->m < 1 || job->n < 1 || job->k < 1 || !tn__onednn_profits()) {
        return false;
    }
    bool bf16 = job->in == TN_BF16 && (job->out == TN_BF16 || job->out == TN_F32);
    if (tn__onednn_always()) {
        return level >= 3 && (bf16 || (job->in == TN_F32 && job->out == TN_F32));
    }
    return level >= 4 && bf16 && job->m * job->n * job->k >= 1 << 20;
}

/* Whether a primitive can take this operand: one dimension is contiguous, and no element occurs
 * twice. The stride of a single row or column has no meaning and is set to the usual one. */
static bool side_by_side(tn__onednn_side *s, int64_t rows, int64_t cols) {
    if (cols == 1) {
        s->col = 1;
    }
    if (rows == 1) {
        s->row = s->col == 1 ? cols : 1;
    }
    return (s->col == 1 && s->row >= cols) || (s->row == 1 && s->col >= rows);
}

tn_status tn__onednn_product(tn_context *ctx, const tn__onednn_job *job, int level) {
    if (!job_wanted(job, level) || !tn__onednn()) {
        return TN_EUNSUPPORTED;
    }
    tn__onednn_job clean = *job;
    tn__onednn_side c = {job->c, job->ldc, 1};
    if (!side_by_side(&clean.a, job->m, job->k) || !side_by_side(&clean.b, job->k, job->n) ||
        !side_by_side(&c, job->m, job->n) || c.col != 1) {
        return TN_EUNSUPPORTED;
    }
    clean.ldc = c.row;
    plan p = {.job = &clean};
    plan_cut(&p);
    tn_status status = plan_prepare(&p);
    if (status == TN_OK) {
        status = plan_run(ctx, &p);
        atomic_fetch_add_explicit(&products, status == TN_OK, memory_order_relaxed);
    }
    plan_clear(&p);
    return status;
}

#else

tn_status tn__onednn_product(tn_context *ctx, const tn__onednn_job *job, int level) {
    (void)ctx, (void)job, (void)level;
    return TN_EUNSUPPORTED;
}

int64_t tn__onednn_count(void) {
    return 0;
}

const char *tn__onednn_reason(void) {
    return "this build has no oneDNN";
}

#endif
