/* powersgd_program DATA WEIGHTS RANK START: trains on two ranks, with whole gradients and with
 * PowerSGD's. DATA has x and y, WEIGHTS the net's first weights. Prints for each the loss and how
 * many bytes a rank gave to the group. test_powersgd_torch.py compares. */
#include "tests/parallel/powersgd_train.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    if (argc != 5) {
        fprintf(stderr, "usage: %s DATA WEIGHTS RANK START\n", argv[0]);
        return 2;
    }
    tn_safetensors *f = tn_safetensors_open(argv[1]);
    power_run run = {.x = tn_safetensors_get(f, "x"),
                     .y = tn_safetensors_get(f, "y"),
                     .weights = argv[2],
                     .options =
                         TN_WITH(tn_powersgd, .rank = atoi(argv[3]), .start_step = atoi(argv[4]))};
    tn_safetensors_close(f);
    for (int i = 0; i < 2; i++) {
        run.compressed = i == 1;
        tn_local_run(POWER_RANKS, power_rank, &run);
        printf("%s %.9g %lld\n", i ? "powersgd" : "whole", run.loss, (long long)run.sent);
    }
    return 0;
}
