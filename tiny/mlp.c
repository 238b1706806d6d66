/* A network that reads digits (MNIST): it learns from nine tenths of the images and is tested with the others.
 *     cc -O3 -march=native mlp.c -lm && ./a.out IMAGES LABELS [--ranks N] [--fsdp]          idx files, perhaps in gzip
 * The losses are the same bits on 1, 2 and 4 ranks, with DDP and with FSDP. */
#include "tiny.c"
enum { PIXELS = 28 * 28, BATCH = 256, EPOCHS = 10 };
/* The bytes behind an idx file's header, whose bytes 4 to 7 say how many items of `size` bytes follow. */
unsigned char *read_idx(const char *path, size_t header, size_t size, long *count) {
    unsigned char start[16];
    char command[4096];
    snprintf(command, sizeof(command), "gzip -dc '%s'", path);
    bool packed = strlen(path) > 3 && strcmp(path + strlen(path) - 3, ".gz") == 0 && !strchr(path, '\'');
    FILE *f = packed ? popen(command, "r") : fopen(path, "r");
    if (!f || fread(start, header, 1, f) != 1) { die("%s cannot be read", path); }
    *count = (long)start[4] << 24 | start[5] << 16 | start[6] << 8 | start[7];
    unsigned char *bytes = allocate(*count, size);
    if (fread(bytes, size, (size_t)*count, f) != (size_t)*count) { die("%s is cut off", path); }
    packed ? pclose(f) : fclose(f);
    return bytes;
}

/* The scores of ten digits for each of the images `chosen`; `y` becomes what they show. */
tensor *scores(const unsigned char *images, const unsigned char *labels, const long *chosen, int B, int *y) {
    static float x[BATCH * PIXELS];
    for (int i = 0; i < B; i++) { y[i] = labels[chosen[i]]; }
    for (int i = 0; i < B * PIXELS; i++) { x[i] = images[chosen[i / PIXELS] * PIXELS + i % PIXELS] / 255.0f; }
    enter("");
    tensor *out = linear("out", relu(linear("hidden", input(S(B, PIXELS), x), 128, true)), 10, true);
    leave("");
    return out;
}

int main(int argc, char **argv) {
    if (argc < 3) { die("usage: mlp IMAGES LABELS [--ranks N] [--fsdp]"); }
    int ranks = 1, fsdp = 0, y[BATCH], right = 0;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--fsdp") == 0) { fsdp = 1; }
        if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc) { ranks = atoi(argv[++i]); }
    }
    long count, labelled, zero = 0;
    unsigned char *images = read_idx(argv[1], 16, PIXELS, &count), *labels = read_idx(argv[2], 8, 1, &labelled);
    if (count != labelled || count < BATCH * 2) { die("%ld images, %ld labels", count, labelled); }
    ranks_start(ranks);
    scores(images, labels, &zero, 1, y), tape_clear(), parallel(fsdp); /* the call makes the parameters */
    optimiser adam = {.kind = ADAM, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
    for (loader l = {.count = count * 9 / 10, .batch = BATCH, .seed = 1}; adam.t < EPOCHS * (l.count / BATCH);
         tape_clear()) {
        tensor *loss = cross_entropy(scores(images, labels, loader_next(&l), BATCH / world, y), y);
        backward(loss), optimiser_step(&adam);
        float mean = mean_of_ranks(loss);
        if (rank == 0 && adam.t % 35 == 0) { printf("step %ld loss %.9g\n", adam.t, (double)mean); }
    }
    recording = false;
    for (long i = count * 9 / 10; i < count; i++, tape_clear()) { /* the digit of each, by its largest score */
        const float *out = scores(images, labels, &i, 1, y)->mem;
        right += softmax_row(temporary(10), out, 10) == y[0];
    }
    if (rank == 0) {
        printf("accuracy %.3f on %ld other images\n", right / (double)(count - count * 9 / 10), count - count * 9 / 10);
    }
}
