/* The smallest program: finds the line y = 3 x - 1 from points on it.     cc line.c -lm && ./a.out */
#include "tiny.c"

tensor *model(tensor *x) {
    enter(""); /* what stands between is averaged over the ranks, if ranks_start() makes several */
    x = linear("line", x, 1, true);
    leave("");
    return x;
}

int main(void) {
    float zero = 0;
    model(input(S(1, 1), &zero)); /* makes the parameters */
    parallel(false);
    optimiser sgd = {.kind = SGD, .lr = 0.1f};
    for (int step = 0; step <= 200; step++) {
        float x[8], y[8];
        for (int i = 0; i < 8; i++) { x[i] = (float)(2 * uniform() - 1), y[i] = 3 * x[i] - 1; }
        tensor *loss = mse(model(input(S(8, 1), x)), input(S(8, 1), y));
        backward(loss);
        optimiser_step(&sgd);
        if (step % 40 == 0) {
            printf("step %3d: loss %.6f, y = %.4f x + %.4f\n", step, (double)loss->mem[0], (double)params[0].t->mem[0],
                   (double)params[1].t->mem[0]);
        }
        tape_clear();
    }
    return 0;
}
