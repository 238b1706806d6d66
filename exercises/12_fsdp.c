/* Exercise 12: an FSDP unit: gather, use, scatter. The page is 12_fsdp.md. */
#include "../tiny/tiny.c"
#include "judge.h"

enum { UNITS = 3, WIDTH = 12, BATCH = 4, N = WIDTH * WIDTH };

/* A matrix of which each rank keeps a part. Outside its use w->mem and w->grad are NULL. */
typedef struct {
    tensor *w;
    long share;                  /* numbers that each rank keeps: N / world */
    float *own_value, *own_grad; /* this rank's: [rank * share, (rank + 1) * share) */
} part;
part parts[UNITS];

/* What the ranks leave for the judge, in memory that all processes share. */
struct {
    float gradients[RANKS][UNITS][N], y[RANKS][2][BATCH * WIDTH];
    long peak[RANKS], kept[RANKS], gathers[RANKS];
} * seen;

/* Memory for whole matrices. It is counted, and begins with zeros. */
long borrowed;
float *borrow(long n) {
    borrowed += n;
    seen->peak[rank] = borrowed > seen->peak[rank] ? borrowed : seen->peak[rank];
    return floats(n);
}
void give_back(float *x, long n) {
    if (x) { borrowed -= n, free(x); }
}

#define all_gather(out, x, n) (seen->gathers[rank]++, all_gather(out, x, n))

/* tensor *call(int i, tensor *x): y = x · w of part i. Rules on the tape find i in t->number. */
/* ---- yours ---- */
tensor *call(int i, tensor *x) { return matmul(x, leaf(S(WIDTH, WIDTH), (float)i, 0)); }
/* ---- end ---- */

/* ---- The judge ---- */

/* The results for a batch. The truth (world = 0) has whole matrices in one process. */
tensor *model(int batch) {
    seed = 500 + (uint64_t)batch, tape_clear();
    tensor *y = leaf(S(BATCH, WIDTH), 0, 1);
    for (int i = 0; i < UNITS; i++) { y = gelu(world ? call(i, y) : matmul(y, parts[i].w)); }
    return y;
}

void learn(tensor *y) { backward(scale(mean(mul(y, y)), 100)); }

/* Two steps on `ranks` ranks, in processes of their own. Not 0: it fails. */
int run(int ranks) {
    int status;
    if (fork() != 0) { return wait(&status), status; }
    ranks_start(ranks), alarm(PATIENCE);
    for (part *p = parts; p < parts + UNITS; p++) {
        p->share = N / world, p->own_grad = floats(p->share);
        p->own_value = copy_floats(floats(p->share), p->w->mem + rank * p->share, p->share);
        p->w->mem = p->w->grad = NULL;
    }
    for (int step = 0; step < 2; step++) { /* gradients of two batches add up */
        tensor *y = model(rank + step * RANKS);
        copy_floats(seen->y[rank][step], y->mem, BATCH * WIDTH);
        seen->kept[rank] += borrowed, learn(y), seen->kept[rank] += borrowed;
    }
    for (int i = 0; i < UNITS; i++) {
        copy_floats(seen->gradients[rank][i], parts[i].own_grad, parts[i].share);
    }
    _exit(0);
}

int judge(int ranks) {
    long share = N / ranks;
    memset(seen, 0, sizeof(*seen)), world = 0;
    int status = run(ranks);
    for (part *p = parts; p < parts + UNITS; p++) { clear(p->w->grad, N); }
    for (int i = 0; i < 2 * ranks; i++) {
        int r = i / 2, step = i % 2;
        tensor *y = model(r + step * RANKS);
        learn(y);
        for (long j = 0; j < BATCH * WIDTH; j++) {
            double expected = (double)y->mem[j], got = (double)seen->y[r][step][j];
            if (near(expected, got, 1e-4)) { continue; }
            return differs("rank %d of %d: expected y = %g, got %g%s", r, ranks, expected, got,
                           status ? ", or it crashes before" : "");
        }
        if (status) { return differs("crash or wait in backward: is W there for matmul's rule?"); }
        if (seen->kept[r]) { return differs("%ld borrowed numbers stay borrowed", seen->kept[r]); }
        if (seen->peak[r] == 2 * N && seen->gathers[r] == 4 * UNITS) { continue; }
        return differs("%ld numbers borrowed at once, expected %d; %ld gathers, expected %d",
                       seen->peak[r], 2 * N, seen->gathers[r], 4 * UNITS);
    }
    for (long i = 0; i < UNITS * N; i++) {
        double expected = (double)parts[i / N].w->grad[i % N] / ranks;
        double got = (double)seen->gradients[i % N / share][i / N][i % N % share];
        if (near(expected, got, 1e-4)) { continue; }
        return differs("unit %ld, gradient %ld: expected %g, got %g: %s", i / N, i % N, expected,
                       got,
                       near(expected * ranks, got, 1e-4)
                           ? "the sum, not the mean"
                           : "is this rank's share of the sum, over world, added to own_grad?");
    }
    return 0;
}

int main(void) {
    seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < UNITS; i++) { parts[i].w = leaf(S(WIDTH, WIDTH), 0, 1); }
    return judge(1) || judge(2) || judge(3) || judge(4) || pass();
}
