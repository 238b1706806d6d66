/* tiny: a deep learning framework in one file, to be read from top to bottom in an evening. It needs the C library and
 * POSIX, and trains on one rank or several, replicated (DDP) or sharded (FSDP).
 *
 *     1. Tensors        numbers in memory, and views of them
 *     2. The tape       what was computed, so that it can be differentiated
 *     3. Operations     a formula each, and its derivative
 *     4. Modules        operations with parameters: linear, embedding, layer norm, a GPT
 *     5. Ranks          processes that work together, and what they say to each other
 *     6. Data parallel  the same parameters on every rank (DDP), or a part of them on each (FSDP)
 *     7. Optimisers     SGD, Adam, AdamW
 *     8. Data           which rank sees which sample
 *     9. Checkpoints    a run in a file
 *
 * Each part begins with its idea and the files of Tern that do the same in earnest. docs/tiny.md says what they add.
 * A program includes this file and is compiled alone: line.c, mlp.c and gpt.c are three.
 *     cc -O3 -march=native gpt.c -lm && ./a.out shakespeare.txt --ranks 2 --fsdp
 */
#define _DEFAULT_SOURCE
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Every error ends the program: there is nothing to clean up. */
void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("tiny: ", stderr), vfprintf(stderr, format, args), fputs("\n", stderr);
    va_end(args);
    exit(1);
}
void *allocate(long n, size_t size) {
    void *memory = calloc((size_t)n, size);
    if (n > 0 && !memory) { die("no memory for %ld times %zu bytes", n, size); }
    return memory;
}
float *floats(long n) { return allocate(n, sizeof(float)); }
float *copy_floats(float *to, const float *from, long n) { return memcpy(to, from, (size_t)n * sizeof(float)); }
void clear(float *x, long n) { memset(x, 0, (size_t)n * sizeof(float)); }
/* Memory that is made once and then used again and again, wherever it is large enough. */
typedef struct {
    float *mem;
    long room;
} store;
float *with_room(store *s, long n) {
    if (s->room < n) { free(s->mem), s->mem = floats(n), s->room = n; }
    return s->mem;
}

/* ---- 1. Tensors ----------------------------------------------------------------------------------------------------
 * A tensor is an array of numbers with up to four dimensions. The numbers lie in a row in memory. A stride says how
 * far apart neighbours along a dimension are, so that one row can be seen in several ways:
 *
 *     memory   1 2 3 4 5 6
 *     shape (2, 3), strides (3, 1)     1 2 3      the same transposed: shape (3, 2), strides (1, 3)     1 4
 *                                      4 5 6      element (i, j) is memory[i * stride 0 + j * stride 1]  2 5
 *                                                                                                        3 6
 *
 * A tensor that looks at another's memory is a view; the other is its base. A gradient lies as the values do, so what
 * a view is given goes straight to its base: views need no rules. A stride of 0 repeats an element: broadcasting.
 * Tern: tensor/tensor.c, tensor/dims.c, core/allocator.c (memory that is used again).
 */
/* Dimensions are counted from the right, and missing ones are 1: (2, 3) is d = {1, 1, 2, 3} with n = 2. */
typedef struct {
    int n, d[4];
} shape;
#define S(...) shape_of((int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})
typedef struct tensor {
    shape s;
    long stride[4], offset;        /* element (i, j, k, l) is base->mem[offset + i * stride[0] + … + l * stride[3]] */
    struct tensor *base;           /* whose memory it is: its own, or that of the tensor that it is a view of */
    float *mem, *grad;             /* of a base; a view has base->mem and base->grad */
    store kept[2];                 /* their memory, for tensors on the tape */
    bool needs;                    /* a gradient is wanted */
    void (*rule)(struct tensor *); /* part 2: gives the inputs their gradients */
    struct tensor *in[2];
    float number; /* of mean: the sum; of enter and leave: the unit */
} tensor;
shape shape_of(int n, const int *d) {
    shape s = {n, {1, 1, 1, 1}};
    if (n > 4) { die("a tensor has at most 4 dimensions"); }
    for (int i = 0; i < n; i++) { s.d[4 - n + i] = d[i]; }
    return s;
}
long count_of(shape s) { return (long)s.d[0] * s.d[1] * s.d[2] * s.d[3]; }
/* The strides of numbers without gaps: the last dimension is 1 apart, each other as far as what is behind it. */
void set_strides(tensor *t) {
    t->stride[3] = 1;
    for (int i = 2; i >= 0; i--) { t->stride[i] = t->stride[i + 1] * t->s.d[i + 1]; }
}
bool contiguous(const tensor *t) {
    long step = 1;
    for (int i = 3; i >= 0; step *= t->s.d[i--]) {
        if (t->s.d[i] != 1 && t->stride[i] != step) { return false; }
    }
    return true;
}
/* Numbers that an operation or a rule needs for itself. The next one takes their memory. */
store temporaries[16];
int temporary_count;
float *temporary(long n) {
    if (temporary_count == 16) { die("an operation needs more than 16 temporary arrays"); }
    return with_room(&temporaries[temporary_count++], n);
}
/* Walks a view: `at` becomes the place in the base's memory of each element in turn. */
#define EACH_ELEMENT(t, at)                                                                                           \
    for (long i_ = 0; i_ < (t)->s.d[0]; i_++)                                                                         \
        for (long j_ = 0; j_ < (t)->s.d[1]; j_++)                                                                     \
            for (long k_ = 0; k_ < (t)->s.d[2]; k_++)                                                                 \
                for (long l_ = 0, at = (t)->offset + i_ * (t)->stride[0] + j_ * (t)->stride[1] + k_ * (t)->stride[2]; \
                     l_ < (t)->s.d[3]; l_++, at += (t)->stride[3])
/* The numbers of `t` without gaps: its own where they lie so, else a copy. */
const float *values(const tensor *t) {
    if (contiguous(t)) { return t->base->mem + t->offset; }
    float *copy = temporary(count_of(t->s)), *next = copy;
    EACH_ELEMENT (t, at) { *next++ = t->base->mem[at]; }
    return copy;
}

/* Adds `rows` rows of `columns` numbers into the first one, by halves: (a + b) + (c + d). The sum of a half does not
 * depend on the other half. So two ranks that sum half of the rows each, and then add, get the same bits as one. */
void sum_rows(float *x, long rows, long columns) {
    long step = rows % 2 == 0 ? rows / 2 : 1; /* what cannot be halved is added in turn */
    if (step > 1) { sum_rows(x, step, columns), sum_rows(x + step * columns, step, columns); }
    for (long r = step; r < rows; r += step) {
        for (long c = 0; c < columns; c++) { x[c] += x[r * columns + c]; }
    }
}

/* Adds `g`, which has the shape of `t` and no gaps, to the gradient of `t`. What was broadcast is summed. */
void give(tensor *t, const float *g) {
    if (!t->needs) { return; }
    tensor one = *t; /* `t` without the dimensions in front along which it repeats */
    long rows = 1, n = count_of(t->s);
    if (contiguous(t)) {
        for (long i = 0; i < n; i++) { t->base->grad[t->offset + i] += g[i]; }
        return;
    }
    for (int i = 0; i < 4 && (t->stride[i] == 0 || t->s.d[i] == 1); i++) { rows *= t->s.d[i], one.s.d[i] = 1; }
    float *sums = copy_floats(temporary(n), g, n);
    sum_rows(sums, rows, n / rows);
    EACH_ELEMENT (&one, at) { t->base->grad[at] += *sums++; }
}

/* ---- 2. The tape ---------------------------------------------------------------------------------------------------
 * Let y = f(x) be one step on the way to a loss L. If dL/dy is known, the chain rule gives dL/dx = dL/dy · f'(x). So
 * each operation leaves its result on a tape, with its inputs and its rule. backward() walks the tape from the end to
 * the beginning. When it comes to a result, everything that used it has already added to its gradient.
 *
 *     tape:       x·w  ->  + b  ->  relu  ->  loss
 *     backward:   <------------------------------- dL/dL = 1
 *
 * The tape owns inputs and results, not parameters. After tape_clear() the next step takes the same memory again.
 * Tern: autograd/engine.c. Its tape is a graph, and what a gradient no longer needs is freed on the way.
 */
enum { TAPE = 1 << 16 };
tensor *tape[TAPE];
int tape_length;
bool recording = true; /* false: nothing will be differentiated */
tensor *tape_push(void) {
    if (tape_length == TAPE) { die("a tape has at most %d tensors; does the program call tape_clear()?", TAPE); }
    if (!tape[tape_length]) { tape[tape_length] = allocate(1, sizeof(tensor)); }
    tensor *t = tape[tape_length++];
    *t = (tensor){.kept = {t->kept[0], t->kept[1]}};
    return t;
}
void tape_clear(void) { tape_length = 0; }
/* The result of an operation, to be filled in. `rule` will find its gradient in y->grad. */
tensor *result(shape s, void (*rule)(tensor *), tensor *a, tensor *b) {
    tensor *y = tape_push();
    y->s = s, y->base = y, y->in[0] = a, y->in[1] = b;
    set_strides(y);
    y->mem = with_room(&y->kept[0], count_of(s));
    y->needs = recording && ((a && a->needs) || (b && b->needs));
    if (y->needs) { y->rule = rule, y->grad = with_room(&y->kept[1], count_of(s)), clear(y->grad, count_of(s)); }
    temporary_count = 0;
    return y;
}
/* The program's own numbers, copied. */
tensor *input(shape s, const float *numbers) {
    tensor *t = result(s, NULL, NULL, NULL);
    return copy_floats(t->mem, numbers, count_of(s)), t;
}
/* From the loss, one number, to everything that it was computed from; once for a tape. */
void parallel_wait(void); /* part 6: until the gradients of the backward before have been sent */
void backward(tensor *loss) {
    if (count_of(loss->s) != 1 || !loss->grad) { die("backward begins with one number that has a gradient"); }
    parallel_wait(), loss->grad[0] = 1;
    for (int i = tape_length - 1; i >= 0; i--) {
        temporary_count = 0;
        if (tape[i]->rule) { tape[i]->rule(tape[i]); }
    }
}

/* ---- 3. Operations -------------------------------------------------------------------------------------------------
 * Views first. They cost nothing: a new shape and new strides for the same memory.
 * Tern: ops/ (a file for each, with its formula and rule), backends/cpu/ (the loops, vectorised and on all cores).
 */
tensor *view_of(tensor *t) {
    tensor *v = tape_push();
    memcpy(v->stride, t->stride, sizeof(v->stride));
    v->s = t->s, v->offset = t->offset, v->base = t->base, v->needs = t->needs && recording;
    return v;
}
/* Exchanges two dimensions, counted from the right: transpose(t, 0, 1) exchanges the last two. */
void swap_dims(tensor *t, int a, int b) {
    tensor old = *t;
    t->s.d[3 - a] = old.s.d[3 - b], t->stride[3 - a] = old.stride[3 - b];
    t->s.d[3 - b] = old.s.d[3 - a], t->stride[3 - b] = old.stride[3 - a];
}
tensor *transpose(tensor *t, int a, int b) {
    tensor *v = view_of(t);
    return swap_dims(v, a, b), v;
}
/* The elements from, …, from + n - 1 along a dimension, counted from the right. */
tensor *narrow(tensor *t, int dim, int from, int n) {
    tensor *v = view_of(t);
    if (from < 0 || n < 0 || from + n > t->s.d[3 - dim]) { die("narrow: %d + %d of %d", from, n, t->s.d[3 - dim]); }
    v->s.d[3 - dim] = n, v->offset += from * t->stride[3 - dim];
    return v;
}
/* Repeats what has one element along a dimension. */
tensor *expand(tensor *t, shape s) {
    tensor *v = view_of(t);
    v->s = s;
    for (int i = 0; i < 4; i++) {
        if (t->s.d[i] != 1 && t->s.d[i] != s.d[i]) { die("expand: %d elements cannot be %d", t->s.d[i], s.d[i]); }
        if (t->s.d[i] != s.d[i]) { v->stride[i] = 0; }
    }
    return v;
}

/* Element by element: z = f(x, y), dx = dz · df/dx, dy = dz · df/dy. What has one element along a dimension where the
 * other has more is repeated. A function of x alone has no b. */
#define ELEMENTWISE(name, f, by_x, by_y)                                                      \
    void name##_rule(tensor *z) {                                                             \
        long n = count_of(z->s);                                                              \
        float *dx = temporary(n), *dy = temporary(n);                                         \
        const float *xs = values(z->in[0]), *ys = z->in[1] ? values(z->in[1]) : xs;           \
        for (long i = 0; i < n; i++) {                                                        \
            float x = xs[i], y = ys[i], dz = z->grad[i];                                      \
            dx[i] = dz * (by_x), dy[i] = dz * (by_y), (void)x, (void)y;                       \
        }                                                                                     \
        give(z->in[0], dx);                                                                   \
        if (z->in[1]) { give(z->in[1], dy); }                                                 \
    }                                                                                         \
    tensor *name##_of(tensor *a, tensor *b) {                                                 \
        shape s = b && b->s.n > a->s.n ? b->s : a->s;                                         \
        for (int i = 0; i < 4; i++) { s.d[i] = b && a->s.d[i] == 1 ? b->s.d[i] : a->s.d[i]; } \
        tensor *z = result(s, name##_rule, expand(a, s), b ? expand(b, s) : NULL);            \
        const float *xs = values(z->in[0]), *ys = b ? values(z->in[1]) : xs;                  \
        for (long i = 0; i < count_of(s); i++) {                                              \
            float x = xs[i], y = ys[i];                                                       \
            z->mem[i] = (f), (void)y;                                                         \
        }                                                                                     \
        return z;                                                                             \
    }
ELEMENTWISE(copy, x, 1, 0)
ELEMENTWISE(add, x + y, 1, 1)
ELEMENTWISE(mul, (x * y), y, x)
ELEMENTWISE(relu, x > 0 ? x : 0, (float)(x > 0), 0)
/* x · Φ(x), where Φ is the normal distribution: Hendrycks and Gimpel 2016, arXiv:1606.08415 */
ELEMENTWISE(gelu, 0.5f * x * (1 + erff(x * 0.70710678f)),
            0.5f * (1 + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x), 0)
tensor *copy(tensor *x) { return copy_of(x, NULL); }
tensor *add(tensor *x, tensor *y) { return add_of(x, y); }
tensor *mul(tensor *x, tensor *y) { return mul_of(x, y); }
tensor *relu(tensor *x) { return relu_of(x, NULL); }
tensor *gelu(tensor *x) { return gelu_of(x, NULL); }
tensor *scale(tensor *x, float by) { return mul(x, input(S(1), &by)); }
/* The same numbers in another shape; copied only if they have gaps. */
tensor *reshape(tensor *t, shape s) {
    if (count_of(s) != count_of(t->s)) { die("reshape: %ld elements cannot become %ld", count_of(t->s), count_of(s)); }
    tensor *v = view_of(contiguous(t) ? t : copy(t));
    v->s = s, set_strides(v);
    return v;
}

/* Adds `rows` rows of b, times their factors, to each of four rows that are `apart` numbers apart. */
static inline void add_rows(float *restrict to, long apart, float f[4][4], const float *restrict b, long n, int rows) {
    for (long j = 0; j < n; j++) {
        for (int r = 0; r < 4; r++) {
            float sum = f[r][0] * b[j];
            for (int p = 1; p < rows; p++) { sum += f[r][p] * b[p * n + j]; }
            to[r * apart + j] += sum;
        }
    }
}
/* c = a · b for a (m, k), b (k, n): row i of c is the sum over p of a[i][p] · row p of b. Element (i, p) of `a` is
 * a[i * row + p * column], and `b` has no gaps. Four rows of c and four of b meet at a time, so each number that is
 * read from memory serves four times. Long sums are made by halves, as in sum_rows. */
void product(float *c, const float *a, long row, long column, const float *b, long m, long n, long k) {
    long leaf = k, last = m - 1;
    while (leaf % 2 == 0 && leaf >= 128) { leaf /= 2; }
    long size = k / leaf * n;
    float *sums = temporary(4 * size), f[4][4];
    for (long i = 0; i < m; i += 4) {
        clear(sums, 4 * size);
        for (long p = 0, step; p < k; p += step) {
            step = p % leaf + 4 <= leaf ? 4 : 1;
            for (long r = 0; r < 4; r++) { /* the last row stands in for those behind it */
                for (long q = 0; q < step; q++) { f[r][q] = a[(i + r < m ? i + r : last) * row + (p + q) * column]; }
            }
            float *to = sums + p / leaf * n;
            if (step == 4) { add_rows(to, size, f, b + p * n, n, 4); }
            if (step == 1) { add_rows(to, size, f, b + p * n, n, 1); }
        }
        for (long r = 0; r < 4 && i + r < m; r++) {
            sum_rows(sums + r * size, k / leaf, n), copy_floats(c + (i + r) * n, sums + r * size, n);
        }
    }
    temporary_count--;
}

/* y = a · b, so da = dy · bᵀ and db = aᵀ · dy. a (…, m, k), b (…, k, n) -> (…, m, n); one b (k, n) may serve all: then
 * the rows of all matrices of `a` are one matrix. The result is how many products that makes. */
long products(const tensor *a, const tensor *b) {
    long count = (long)b->s.d[0] * b->s.d[1];
    bool fit = count == 1 || (a->s.d[0] == b->s.d[0] && a->s.d[1] == b->s.d[1]);
    if (!fit || a->s.d[3] != b->s.d[2]) {
        die("matmul: %d columns by %d rows, or other batches", a->s.d[3], b->s.d[2]);
    }
    return count;
}
void matmul_rule(tensor *y) {
    tensor *a = y->in[0], *b = y->in[1], flipped = *b;
    swap_dims(&flipped, 0, 1);
    const float *pa = values(a), *transposed = values(&flipped), *dy = y->grad;
    float *da = temporary(count_of(a->s)), *db = temporary(count_of(b->s));
    long count = products(a, b), k = b->s.d[2], n = b->s.d[3], m = count_of(a->s) / k / count;
    for (long i = 0; i < count; i++) {
        if (a->needs) { product(da + i * m * k, dy + i * m * n, n, 1, transposed + i * n * k, m, k, n); }
        if (b->needs) { product(db + i * k * n, pa + i * m * k, 1, k, dy + i * m * n, k, n, m); }
    }
    give(a, da), give(b, db);
}
tensor *matmul(tensor *a, tensor *b) {
    long count = products(a, b), k = b->s.d[2], n = b->s.d[3], m = count_of(a->s) / k / count;
    tensor *y = result((shape){a->s.n, {a->s.d[0], a->s.d[1], a->s.d[2], b->s.d[3]}}, matmul_rule, a, b);
    const float *pa = values(a), *pb = values(b);
    for (long i = 0; i < count; i++) { product(y->mem + i * m * n, pa + i * m * k, k, 1, pb + i * k * n, m, n, k); }
    return y;
}
/* The next ones treat each row, along the last dimension, by itself: x, y and so on are its numbers, n of them. */
#define EACH_ROW(t, r, n) for (long n = (t)->s.d[3], r = 0, rows_ = count_of((t)->s) / n; r < rows_; r++)
/* y = exp(x) / sum exp(x), dx = y · (dy - sum(dy · y)). Causal: row i of a square sees columns 0 to i. */
long softmax_row(float *y, const float *x, long n) {
    long most = 0; /* where the largest is: exp(x - x[most]) cannot overflow */
    float sum = 0;
    for (long i = 1; i < n; i++) { most = x[i] > x[most] ? i : most; }
    for (long i = 0; i < n; i++) { sum += y[i] = expf(x[i] - x[most]); }
    for (long i = 0; i < n; i++) { y[i] /= sum; }
    return most;
}
void softmax_rule(tensor *y) {
    float *dx = temporary(count_of(y->s));
    EACH_ROW (y, r, n) {
        const float *p = y->mem + r * n, *dy = y->grad + r * n;
        float sum = 0;
        for (long i = 0; i < n; i++) { sum += dy[i] * p[i]; }
        for (long i = 0; i < n; i++) { dx[r * n + i] = p[i] * (dy[i] - sum); }
    }
    give(y->in[0], dx);
}
tensor *softmax(tensor *x, bool causal) {
    tensor *y = result(x->s, softmax_rule, x, NULL);
    const float *xs = values(x);
    EACH_ROW (x, r, n) {
        long seen = causal && r % x->s.d[2] < n ? r % x->s.d[2] + 1 : n;
        softmax_row(y->mem + r * n, xs + r * n, seen);
        clear(y->mem + r * n + seen, n - seen);
    }
    return y;
}

/* y = (x - mean) / deviation, where deviation = sqrt(variance + 1e-5)          Ba et al. 2016, arXiv:1607.06450
 * dx = (dy - mean(dy) - y · mean(dy · y)) / deviation */
void normalise_rule(tensor *t) {
    float *dx = temporary(count_of(t->s)), *deviations = t->mem + count_of(t->s);
    EACH_ROW (t, r, n) {
        const float *y = t->mem + r * n, *dy = t->grad + r * n;
        float mean = 0, mean_y = 0;
        for (long i = 0; i < n; i++) { mean += dy[i] / (float)n, mean_y += dy[i] * y[i] / (float)n; }
        for (long i = 0; i < n; i++) { dx[r * n + i] = (dy[i] - mean - y[i] * mean_y) / deviations[r]; }
    }
    give(t->in[0], dx);
}
tensor *normalise(tensor *t) {
    tensor *y = result(t->s, normalise_rule, t, NULL);
    y->mem = with_room(&y->kept[0], count_of(t->s) + count_of(t->s) / t->s.d[3]); /* and the deviations */
    const float *xs = values(t);
    EACH_ROW (t, r, n) {
        const float *x = xs + r * n;
        float mean = 0, variance = 0;
        for (long i = 0; i < n; i++) { mean += x[i] / (float)n; }
        for (long i = 0; i < n; i++) { variance += (x[i] - mean) * (x[i] - mean) / (float)n; }
        float deviation = y->mem[count_of(t->s) + r] = sqrtf(variance + 1e-5f);
        for (long i = 0; i < n; i++) { y->mem[r * n + i] = (x[i] - mean) / deviation; }
    }
    return y;
}
/* A row of n zeros for each index, with `value` at the index. */
tensor *one_hot(const int *ids, shape of_ids, int n, float value) {
    tensor *y = result((shape){of_ids.n + 1, {of_ids.d[1], of_ids.d[2], of_ids.d[3], n}}, NULL, NULL, NULL);
    clear(y->mem, count_of(y->s));
    for (long i = 0; i < count_of(of_ids); i++) {
        if (ids[i] < 0 || ids[i] >= n) { die("index %d of %d", ids[i], n); }
        y->mem[i * n + ids[i]] = value;
    }
    return y;
}
/* Row ids[i] of a table for each i: a product with rows that have a single 1. */
tensor *embedding(tensor *table, const int *ids, shape of_ids) {
    return matmul(one_hot(ids, of_ids, table->s.d[2], 1), table);
}
/* The mean of all elements, one number. */
void mean_rule(tensor *y) {
    long n = count_of(y->in[0]->s);
    float *dx = temporary(n);
    for (long i = 0; i < n; i++) { dx[i] = y->grad[0] / (float)n; }
    give(y->in[0], dx);
}
tensor *mean(tensor *x) {
    long n = count_of(x->s);
    tensor *y = result(S(1), mean_rule, x, NULL);
    float *sums = copy_floats(temporary(n), values(x), n);
    sum_rows(sums, n, 1);
    y->number = sums[0], y->mem[0] = sums[0] / (float)n;
    return y;
}
/* y = x - log sum exp(x), dx = dy - exp(y) · sum(dy) */
void log_softmax_rule(tensor *y) {
    float *dx = temporary(count_of(y->s));
    EACH_ROW (y, r, n) {
        float sum = 0;
        for (long i = 0; i < n; i++) { sum += y->grad[r * n + i]; }
        for (long i = r * n; i < (r + 1) * n; i++) { dx[i] = y->grad[i] - expf(y->mem[i]) * sum; }
    }
    give(y->in[0], dx);
}
tensor *log_softmax(tensor *x) {
    tensor *y = result(x->s, log_softmax_rule, x, NULL);
    const float *xs = values(x);
    float *p = temporary(x->s.d[3]);
    EACH_ROW (x, r, n) {
        long most = softmax_row(p, xs + r * n, n); /* log(p[most]) = x[most] - log sum exp(x), and p[most] >= 1 / n */
        for (long i = r * n; i < (r + 1) * n; i++) { y->mem[i] = xs[i] - xs[r * n + most] + logf(p[most]); }
    }
    return y;
}
/* The mean over rows of -log softmax(x)[target] */
tensor *cross_entropy(tensor *x, const int *targets) {
    int n = x->s.d[3];
    shape rows = {3, {1, x->s.d[0], x->s.d[1], x->s.d[2]}};
    return mean(mul(log_softmax(x), one_hot(targets, rows, n, (float)-n)));
}
tensor *mse(tensor *x, tensor *target) {
    tensor *difference = add(x, scale(target, -1));
    return mean(mul(difference, difference));
}

/* ---- 4. Modules ----------------------------------------------------------------------------------------------------
 * A module is operations and the parameters that they need. Here it is a function with a path: linear("h.0.mlp.c_fc",
 * x) finds "h.0.mlp.c_fc.weight", or makes it in the first call. By these names a checkpoint finds them. Those that are
 * made between enter and leave are a unit, and are used only there, once in a step: ranks send them together (part 6).
 * Tern: nn/module.c, nn/walk.c (a module is a struct; a walk finds its parameters), nn/linear.c, models/gpt.c.
 */
enum { VALUE, GRAD, M, V, KINDS }; /* what there is of each parameter; M and V are the optimiser's */
typedef struct {
    char name[64];
    tensor *t;
    int unit;
    long at; /* where it begins in its unit */
} parameter;
parameter params[1024];
int param_count, unit_now;
bool laid_out; /* part 6: parameters have their places */
/* Random numbers in [0, 1): SplitMix64 (Steele et al. 2014). Normal ones, from two of them: Box and Muller 1958. */
uint64_t seed = 1337;
double uniform(void) {
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u, z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}
double normal(void) {
    double u = uniform();
    return sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * uniform());
}
/* The parameter of this name. A new one is uniform between middle - spread and middle + spread. */
tensor *param(const char *path, const char *name, shape s, float middle, float spread) {
    char full[64];
    snprintf(full, sizeof(full), "%s.%s", path, name);
    for (int i = 0; i < param_count; i++) {
        if (strcmp(params[i].name, full) != 0) { continue; }
        if (memcmp(params[i].t->s.d, s.d, sizeof(s.d)) != 0) { die("%s has two shapes", full); }
        return params[i].t;
    }
    if (laid_out || param_count == 1024 || strlen(full) == 63) { die("%s: too late, too many or too long", full); }
    long n = count_of(s);
    float *mem = floats(2 * n);
    parameter *p = &params[param_count++];
    p->t = allocate(1, sizeof(tensor)), p->unit = unit_now;
    memcpy(p->name, full, sizeof(full));
    *p->t = (tensor){.s = s, .base = p->t, .mem = mem, .grad = mem + n, .needs = true};
    set_strides(p->t);
    for (long i = 0; i < n; i++) { mem[i] = middle + spread * (float)(2 * uniform() - 1); }
    return p->t;
}
/* "h.0" and "ln_1" make "h.0.ln_1". The text is good for three more calls. */
const char *under(const char *path, const char *name) {
    static char texts[4][64];
    static int calls;
    char *text = texts[calls++ % 4];
    snprintf(text, 64, "%.40s.%.20s", path, name);
    return text;
}
/* x · weightᵀ + bias, (…, in) -> (…, out). The layer norm below has no bias, as in recipes for characters. */
tensor *linear(const char *path, tensor *x, int out, bool bias) {
    float spread = 1 / sqrtf((float)x->s.d[3]);
    tensor *y = matmul(x, transpose(param(path, "weight", S(out, x->s.d[3]), 0, spread), 0, 1));
    return bias ? add(y, param(path, "bias", S(out), 0, spread)) : y;
}
tensor *layer_norm(const char *path, tensor *x) { return mul(normalise(x), param(path, "weight", S(x->s.d[3]), 1, 0)); }
/* softmax(q · kᵀ / sqrt(D)) · v, for each head by itself: (B, T, C) -> (B, H, T, D) -> (B, T, C), C = H · D. What comes
 * later in the text is not seen.                                             Vaswani et al. 2017, arXiv:1706.03762 */
tensor *attention(const char *path, tensor *x, int H) {
    int B = x->s.d[1], T = x->s.d[2], C = x->s.d[3];
    tensor *all = linear(under(path, "c_attn"), x, 3 * C, false);
    all = transpose(reshape(all, S(B, T, 3 * H, C / H)), 1, 2); /* (B, 3 H, T, D) */
    tensor *q = narrow(all, 2, 0, H), *k = narrow(all, 2, H, H), *v = narrow(all, 2, 2 * H, H);
    tensor *scores = scale(matmul(q, transpose(k, 0, 1)), 1 / sqrtf((float)(C / H)));
    tensor *y = transpose(matmul(softmax(scores, true), v), 1, 2);
    return linear(under(path, "c_proj"), reshape(y, S(B, T, C)), C, false);
}
void enter(const char *path), leave(const char *path); /* part 6 */
tensor *block(const char *path, tensor *x, int heads) {
    enter(path);
    x = add(x, attention(under(path, "attn"), layer_norm(under(path, "ln_1"), x), heads));
    tensor *h = gelu(linear(under(path, "mlp.c_fc"), layer_norm(under(path, "ln_2"), x), 4 * x->s.d[3], false));
    x = add(x, linear(under(path, "mlp.c_proj"), h, x->s.d[3], false));
    leave(path);
    return x;
}

/* GPT-2 (Radford et al. 2019): tokens (B, T) -> blocks -> a score for each next token (B, T, vocab). */
typedef struct {
    int vocab, context, layers, heads, width;
} gpt;
tensor *gpt_call(gpt m, const int *tokens, int B, int T) {
    static int positions[1 << 20];
    if (B * T > 1 << 20) { die("%d tokens at once", B * T); }
    for (int i = 0; i < B * T; i++) { positions[i] = i % T; }
    enter("");
    tensor *wte = param("wte", "weight", S(m.vocab, m.width), 0, 0.04f); /* the classifier's weight too */
    tensor *wpe = param("wpe", "weight", S(m.context, m.width), 0, 0.04f);
    tensor *x = add(embedding(wte, tokens, S(B, T)), embedding(wpe, positions, S(B, T)));
    for (int i = 0; i < m.layers; i++) {
        char path[16];
        snprintf(path, sizeof(path), "h.%d", i);
        x = block(path, x, m.heads);
    }
    x = matmul(layer_norm("ln_f", x), transpose(wte, 0, 1));
    leave("");
    return x;
}

/* ---- 5. Ranks ------------------------------------------------------------------------------------------------------
 * A job is `world` processes, the ranks. They share memory in which each has a slot. A collective is a call that all
 * ranks make together: each fills its slot, all wait, each reads, and all wait again, so that no slot changes too
 * early.
 *
 *     all_reduce        a | b | c   ->   a+b+c | a+b+c | a+b+c
 *     reduce_scatter    a1 a2 | b1 b2   ->   a1+b1 | a2+b2             all_reduce is this one
 *     all_gather        a | b | c   ->   abc | abc | abc               and this one after it
 *     broadcast         a | - | -   ->   a | a | a
 *
 * Tern: distributed/group/work.c (a queue), distributed/group/engine/shm/, distributed/group/engine/nccl.c (GPUs).
 */
enum { SLOT = 1 << 18, RANKS = 16 }; /* floats; longer messages go in pieces */
int rank, world = 1;
static struct {
    pthread_barrier_t barrier;
    float slot[RANKS][SLOT];
} * shared;
/* Waits for the ranks. When one fails the others would wait for it for ever, so they are ended. */
void ranks_wait(const pid_t *ranks, int n) {
    int status = 0;
    pid_t ended = 0;
    for (int left = n; left > 0 && status == 0; left--) { ended = wait(&status); }
    for (int r = 0; r < n && status != 0; r++) {
        if (ranks[r] == ended) { fprintf(stderr, "tiny: rank %d failed; the others are ended\n", r); }
        if (ranks[r] != ended) { kill(ranks[r], SIGKILL); }
    }
    while (wait(NULL) > 0) {}
    exit(status != 0);
}
/* Makes n processes out of one; each returns with its `rank`. The first process only waits for them. */
void ranks_start(int n) {
    if (n < 1 || n > RANKS) { die("1 to %d ranks", RANKS); }
    world = n, shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) { die("no shared memory"); }
    pthread_barrierattr_t between;
    pthread_barrierattr_init(&between), pthread_barrierattr_setpshared(&between, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &between, (unsigned)n);
    pid_t ranks[RANKS];
    fflush(NULL); /* or what was printed so far is printed by each */
    for (rank = 0; rank < n; rank++) {
        if ((ranks[rank] = fork()) == 0) { return; }
        if (ranks[rank] < 0) { die("fork failed"); }
    }
    ranks_wait(ranks, n);
}
void barrier(void) { pthread_barrier_wait(&shared->barrier); }
/* Cuts x[0 … n) in pieces that fit in a slot: at + i is its place, `piece` its length. */
#define EACH_PIECE(n, most, at, piece) \
    for (long at = 0, piece; piece = (n)-at < (most) ? (n)-at : (most), at < (n); at += piece)
/* x has world · n numbers. Rank r gets the sums over the ranks of the r-th n of them. */
void reduce_scatter(float *out, const float *x, long n) {
    EACH_PIECE (n, SLOT / world, at, piece) {
        for (int r = 0; r < world; r++) { copy_floats(shared->slot[rank] + r * piece, x + r * n + at, piece); }
        barrier();
        for (long i = 0; i < piece; i++) {
            float each[RANKS] = {0};
            for (int r = 0; r < world; r++) { each[r] = shared->slot[r][rank * piece + i]; }
            sum_rows(each, world, 1), out[at + i] = each[0];
        }
        barrier();
    }
}
/* Each rank gives `n` numbers, and gets those of all ranks, one after the other. */
void all_gather(float *out, const float *x, long n) {
    EACH_PIECE (n, SLOT, at, piece) {
        copy_floats(shared->slot[rank], x + at, piece);
        barrier();
        for (int r = 0; r < world; r++) { copy_floats(out + r * n + at, shared->slot[r], piece); }
        barrier();
    }
}
/* Of a multiple of `world` numbers. */
void all_reduce(float *x, long n) {
    if (n % world) { die("all_reduce: %ld numbers on %d ranks", n, world); }
    long share = n / world;
    reduce_scatter(x + rank * share, x, share);
    all_gather(x, x + rank * share, share);
}
void broadcast(float *x, long n) {
    EACH_PIECE (n, SLOT, at, piece) {
        if (rank == 0) { copy_floats(shared->slot[0], x + at, piece); }
        barrier();
        copy_floats(x + at, shared->slot[0], piece);
        barrier();
    }
}

/* ---- 6. Data parallel ----------------------------------------------------------------------------------------------
 * Each rank computes a part of the batch. The gradient of the whole is the mean of the ranks' gradients. The parameters
 * of a unit lie in one array, so that one collective carries them all.
 *
 *     DDP     every rank has all parameters. When backward comes to a unit's enter, its gradients are complete: a
 *             thread averages them over the ranks, while backward goes on with what came earlier in the model.
 *     FSDP    every rank has 1 / world of each unit: of its values, its gradients and the optimiser's numbers.
 *                 enter       gather the values            backward:   average the gradients, keep one's own part
 *                 leave       drop the values              backward:   gather the values
 *
 * enter and leave are operations without a result on the tape: backward meets leave first. Units nest in unit 0 only.
 * Tern: distributed/parallel/ddp/ (buckets of any size), distributed/parallel/fsdp/ (gathers one unit ahead).
 */
typedef struct {
    char path[64];
    long n, share;     /* numbers in it, a multiple of `world`; this rank's: all, or those from rank * share on */
    float *own[KINDS]; /* this rank's share */
    float *all[2];     /* all values and gradients. DDP: the same memory as own */
    pthread_t before;  /* the thread that sends the unit before it; this one waits for it first */
    bool behind;
} unit;
unit units[64];
int unit_count = 1; /* unit 0, "": the parameters of no other; the whole model stands between its enter and leave */
bool sharded, sending;
pthread_t sender; /* of the last unit that was sent */
#define EACH_PARAMETER(p, u)                                   \
    for (parameter *p = params; p < params + param_count; p++) \
        if (&units[p->unit] == (u))
/* Points the parameters of a unit at its arrays. */
void point(const unit *u) {
    EACH_PARAMETER (p, u) {
        p->t->mem = u->all[VALUE] ? u->all[VALUE] + p->at : NULL;
        p->t->grad = u->all[GRAD] ? u->all[GRAD] + p->at : NULL;
    }
}
void gather(unit *u, bool gradients) {
    u->all[VALUE] = floats(u->n), u->all[GRAD] = gradients ? floats(u->n) : NULL;
    all_gather(u->all[VALUE], u->own[VALUE], u->share);
    point(u);
}
void drop(unit *u) {
    free(u->all[VALUE]), free(u->all[GRAD]), u->all[VALUE] = u->all[GRAD] = NULL;
    point(u);
}
/* Lays the parameters out in units, with rank 0's values. Without ranks_start() there will be one rank. */
void parallel(bool fsdp) {
    if (laid_out || !param_count) { die("parallel() is called once, after the model has made its parameters"); }
    if (!shared) { ranks_start(1); }
    sharded = fsdp, laid_out = true;
    for (unit *u = units; u < units + unit_count; u++) {
        EACH_PARAMETER (p, u) { p->at = u->n, u->n += count_of(p->t->s); }
        u->n = (u->n + world - 1) / world * world;
        u->share = fsdp ? u->n / world : u->n;
        for (int k = 0; k < KINDS; k++) { u->own[k] = floats(u->share); }
        for (int k = VALUE; k <= GRAD; k++) { u->all[k] = fsdp ? floats(u->n) : u->own[k]; }
        EACH_PARAMETER (p, u) { copy_floats(u->all[VALUE] + p->at, p->t->mem, count_of(p->t->s)), free(p->t->mem); }
        broadcast(u->all[VALUE], u->n);
        if (fsdp) { copy_floats(u->own[VALUE], u->all[VALUE] + rank * u->share, u->share), drop(u); }
        point(u);
    }
}
/* An operation without a result: `rule` runs when backward comes to this place. */
void on_tape(void (*rule)(tensor *), int u) {
    tensor *t = tape_push();
    if (recording) { t->rule = rule, t->number = (float)u; }
}
/* Sends a unit's gradients, after the unit that was sent before it: collectives come in the same order on every rank.
 */
void *send(void *argument) {
    unit *u = argument;
    if (u->behind) { pthread_join(u->before, NULL); }
    all_reduce(u->own[GRAD], u->n);
    for (long i = 0; i < u->n; i++) { u->own[GRAD][i] /= (float)world; }
    return NULL;
}
/* Until all gradients have come. */
void parallel_wait(void) {
    if (sending) { pthread_join(sender, NULL); }
    sending = false;
}
void ddp_complete(tensor *t) {
    unit *u = &units[(int)t->number];
    u->before = sender, u->behind = sending, sending = true;
    if (pthread_create(&sender, NULL, send, u) != 0) { die("no thread"); }
}
void fsdp_complete(tensor *t) {
    unit *u = &units[(int)t->number];
    float *mean = temporary(u->share);
    reduce_scatter(mean, u->all[GRAD], u->share);
    for (long i = 0; i < u->share; i++) { u->own[GRAD][i] += mean[i] / (float)world; }
    drop(u);
}
void fsdp_return(tensor *t) { gather(&units[(int)t->number], true); }
int unit_of(const char *path) {
    int u = 0;
    while (u < unit_count && strcmp(units[u].path, path) != 0) { u++; }
    if (u == 64) { die("more than 64 units"); }
    if (u == unit_count) { snprintf(units[unit_count++].path, 64, "%s", path); }
    return u;
}
void enter(const char *path) {
    unit_now = unit_of(path);
    if (sharded) { gather(&units[unit_now], false); }
    if (laid_out) { on_tape(sharded ? fsdp_complete : ddp_complete, unit_now); }
}
void leave(const char *path) {
    if (sharded) { drop(&units[unit_of(path)]), on_tape(fsdp_return, unit_of(path)); }
    unit_now = 0;
}
/* The mean of a loss, which mean() made, over all ranks: from their sums, to the same bits on 1, 2, 4 … ranks. */
float mean_of_ranks(const tensor *loss) {
    float sums[RANKS] = {loss->number};
    if (loss->s.n != 1 || !loss->in[0]) { die("mean_of_ranks takes what mean() has made"); }
    parallel_wait(); /* one collective at a time */
    all_reduce(sums, world);
    return sums[0] / (float)(count_of(loss->in[0]->s) * world);
}

/* ---- 7. Optimisers -------------------------------------------------------------------------------------------------
 *     SGD      w -= lr · g
 *     Adam     m, v: running means of g and g². w -= lr · m̂ / (sqrt(v̂) + eps), where m̂ = m / (1 - beta1^t) corrects
 *              that the means began with 0                                     Kingma and Ba 2015, arXiv:1412.6980
 *     AdamW    besides, matrices shrink: w -= lr · decay · w        Loshchilov and Hutter 2019, arXiv:1711.05101
 *
 * They go through this rank's share of each unit, whatever that is: DDP and FSDP need nothing of their own here.
 * Tern: optim/adam.c (the formula), optim/step.c (one pass over many parameters).
 */
typedef struct {
    enum { SGD, ADAM, ADAMW } kind;
    float lr, beta1, beta2, eps, decay;
    long t; /* steps so far */
} optimiser;
void optimiser_step(optimiser *o) {
    if (!laid_out) { die("parallel() comes before the first step"); }
    parallel_wait(), o->t++;
    float correct1 = (float)(1 - pow(o->beta1, (double)o->t)), correct2 = (float)sqrt(1 - pow(o->beta2, (double)o->t));
    for (parameter *p = params; p < params + param_count; p++) {
        unit *u = &units[p->unit];
        float decay = o->kind == ADAMW && p->t->s.n > 1 ? o->decay : 0;
        long begin = p->at - (sharded ? rank * u->share : 0), end = begin + count_of(p->t->s); /* in this share */
        for (long i = begin > 0 ? begin : 0; i < end && i < u->share; i++) {
            float *w = &u->own[VALUE][i], *m = &u->own[M][i], *v = &u->own[V][i], g = u->own[GRAD][i];
            float change = o->lr * g;
            if (o->kind != SGD) {
                *m += (1 - o->beta1) * (g - *m);
                *v = o->beta2 * *v + (1 - o->beta2) * g * g;
                change = o->lr / correct1 * *m / (sqrtf(*v) / correct2 + o->eps);
            }
            *w -= o->lr * decay * *w, *w -= change;
        }
    }
    for (unit *u = units; u < units + unit_count; u++) { clear(u->own[GRAD], u->share); }
}

/* ---- 8. Data -------------------------------------------------------------------------------------------------------
 * In each epoch every sample comes once, in an order that depends on the seed alone. So all ranks know it without
 * talking, and of each batch rank r takes the r-th part. What does not fill a batch at an epoch's end is left out.
 * Tern: data/sampler.c, data/loader.c (reads ahead in threads), distributed/parallel/sampler.c.
 */
typedef struct {
    long count; /* samples */
    int batch;  /* of all ranks together */
    uint64_t seed;
    long epoch, at; /* the place: samples of this epoch that have been given out */
    long *order;
} loader;
void shuffle(loader *l) {
    uint64_t kept = seed;
    seed = l->seed + (uint64_t)l->epoch * 0x9e3779b9u;
    if (!l->order) { l->order = allocate(l->count, sizeof(long)); }
    for (long i = 0; i < l->count; i++) { /* Fisher and Yates, inside out */
        long j = (long)(uniform() * (double)(i + 1));
        l->order[i] = l->order[j], l->order[j] = i;
    }
    seed = kept;
}
/* This rank's samples of the next batch: batch / world numbers. Epochs follow each other without end. */
const long *loader_next(loader *l) {
    if (l->batch % world || l->batch > l->count) { die("%d of %ld samples for %d ranks", l->batch, l->count, world); }
    if (l->at + l->batch > l->count) { l->epoch++, l->at = 0; }
    if (l->at == 0 || !l->order) { shuffle(l); }
    const long *mine = l->order + l->at + rank * (l->batch / world);
    l->at += l->batch;
    return mine;
}

/* ---- 9. Checkpoints ------------------------------------------------------------------------------------------------
 * A run is its parameters, the optimiser's numbers and its place in the data. The file has a line of text and the
 * numbers for each array of each parameter. Every rank calls; rank 0 writes, under another name first, so that a crash
 * leaves the old file. What N ranks saved, M can load, with DDP or FSDP.
 * Tern: io/checkpoint/checkpoint.c, distributed/parallel/save/ (each rank writes its part).
 */
enum { NAMED = 200 }; /* bytes of a line */
void line_of(char *line, const parameter *p, int kind) {
    memset(line, 0, NAMED);
    const int *d = p->t->s.d;
    snprintf(line, NAMED, "%d %.63s: %d x %d x %d x %d\n", kind, p->name, d[0], d[1], d[2], d[3]);
}
/* Writes (rank 0) or reads (every rank) all arrays. What is read must have the lines that would be written. */
void each_array(FILE *f, bool load) {
    char line[NAMED], found[NAMED];
    for (int i = 0; i < unit_count * KINDS; i++) {
        unit *u = &units[i / KINDS];
        float *own = u->own[i % KINDS], *all = floats(u->n);
        if (!load && sharded) { all_gather(all, own, u->share); }
        if (!load && !sharded) { copy_floats(all, own, u->n); }
        EACH_PARAMETER (p, f ? u : NULL) {
            size_t n = (size_t)count_of(p->t->s);
            line_of(line, p, i % KINDS);
            bool ok = load ? fread(found, NAMED, 1, f) && !memcmp(line, found, NAMED) : fwrite(line, NAMED, 1, f) != 0;
            ok = ok && (load ? fread(all + p->at, 4, n, f) : fwrite(all + p->at, 4, n, f)) == n;
            if (!ok) { die(load ? "cut off, or of another model: no %s" : "not written: %s", line); }
        }
        if (load) { copy_floats(own, all + (sharded ? rank * u->share : 0), u->share); }
        free(all);
    }
}
void checkpoint_save(const char *path, const optimiser *o, const loader *l) {
    char new[4096];
    snprintf(new, sizeof(new), "%s.new", path);
    int64_t place[] = {o->t, l->epoch, l->at, (int64_t)seed};
    parallel_wait();
    FILE *f = rank == 0 ? fopen(new, "w") : NULL;
    if (rank == 0 && (!f || fwrite(place, sizeof(place), 1, f) != 1)) { die("%s cannot be written", new); }
    each_array(f, false);
    if (f && (fflush(f) || fsync(fileno(f)) || fclose(f) || rename(new, path))) { die("%s is not written", path); }
    barrier(); /* then the file is there for all */
}
void checkpoint_load(const char *path, optimiser *o, loader *l) {
    int64_t place[4];
    FILE *f = fopen(path, "r");
    if (!f || !laid_out || fread(place, sizeof(place), 1, f) != 1) { die("%s cannot be read", path); }
    o->t = place[0], l->epoch = place[1], l->at = place[2], seed = (uint64_t)place[3];
    free(l->order), l->order = NULL;
    each_array(f, true);
    if (getc(f) != EOF) { die("%s is of another model, which has more parameters", path); }
    fclose(f);
}
