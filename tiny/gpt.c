/* A GPT that learns to write, one character at a time: the model of Tern's examples/04_char_gpt.c.
 *     cc -O3 -march=native gpt.c -lm && ./a.out FILE [--ranks N] [--fsdp] [--steps N] [--save FILE]
 * DDP and FSDP give the same bits, 1, 2 and 4 ranks nearly (docs/tiny.md). --save goes on from FILE if it is there. */
#include "tiny.c"
enum { CONTEXT = 64, BATCH = 12 };
int ids[1 << 24], count, vocab;
unsigned char letters[256];
void read_text(const char *path) {
    int id_of[256] = {0}, c;
    FILE *f = fopen(path, "r");
    if (!f) { die("%s cannot be read", path); }
    while (count < 1 << 24 && (c = getc(f)) != EOF) { ids[count++] = c, id_of[c] = 1; }
    for (c = 0; c < 256; c++) { id_of[c] = id_of[c] ? letters[vocab] = (unsigned char)c, vocab++ : 0; }
    for (int i = 0; i < count; i++) { ids[i] = id_of[ids[i]]; }
    fclose(f);
}

void write_sample(gpt m, int n) {
    int text[1024] = {ids[0]}, i = 0;
    for (recording = false; i < n; i++, tape_clear()) {
        int T = i < CONTEXT ? i + 1 : CONTEXT, *next = &text[i + 1];
        tensor *p = softmax(scale(narrow(gpt_call(m, next - T, 1, T), 1, T - 1, 1), 1 / 0.8f), false);
        for (double left = uniform(); *next < vocab - 1 && (left -= p->mem[*next]) > 0;) { ++*next; }
        if (rank == 0) { putchar(letters[*next]); }
    }
}

int main(int argc, char **argv) {
    int ranks = 1, fsdp = 0, steps = 200, x[BATCH * CONTEXT], y[BATCH * CONTEXT];
    const char *save = NULL;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--fsdp") == 0) { fsdp = 1; }
        if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc) { ranks = atoi(argv[++i]); }
        if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc) { steps = atoi(argv[++i]); }
        if (strcmp(argv[i], "--save") == 0 && i + 1 < argc) { save = argv[++i]; }
    }
    if (argc < 2) { die("usage: gpt FILE [--ranks N] [--fsdp] [--steps N] [--save FILE]"); }
    read_text(argv[1]), ranks_start(ranks);
    gpt m = {.vocab = vocab, .context = CONTEXT, .layers = 4, .heads = 4, .width = 128};
    gpt_call(m, ids, 1, 1), tape_clear();                        /* makes the parameters */
    for (parameter *p = params; p < params + param_count; p++) { /* those at a block's end are smaller */
        double deviation = strstr(p->name, "c_proj") ? 0.02 / sqrt(2.0 * m.layers) : 0.02;
        for (long i = 0; p->t->s.n == 2 && i < count_of(p->t->s); i++) { p->t->mem[i] = (float)(deviation * normal()); }
    }
    parallel(fsdp);
    optimiser adamw = {.kind = ADAMW, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .decay = 0.1f};
    loader l = {.count = count - CONTEXT, .batch = BATCH, .seed = 1};
    if (save && access(save, R_OK) == 0) { checkpoint_load(save, &adamw, &l); }
    for (; adamw.t < steps; tape_clear()) {
        const long *starts = loader_next(&l);
        for (int i = 0; i < BATCH / world * CONTEXT; i++) { x[i] = ids[starts[i / CONTEXT] + i % CONTEXT]; }
        for (int i = 0; i < BATCH / world * CONTEXT; i++) { y[i] = ids[starts[i / CONTEXT] + i % CONTEXT + 1]; }
        tensor *loss = cross_entropy(gpt_call(m, x, BATCH / world, CONTEXT), y);
        backward(loss), optimiser_step(&adamw);
        double mean = mean_of_ranks(loss);
        if (rank == 0 && adamw.t % 10 == 0) { printf("step %ld loss %.9g\n", adamw.t, mean); }
    }
    if (save) { checkpoint_save(save, &adamw, &l); }
    write_sample(m, 200);
}
