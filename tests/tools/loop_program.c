/* Ranks that work together until a file named "go" appears: each step is one all-reduce, noted in
 * steps.RANK. */
#include <tern/tern.h>

#include <stdio.h>
#include <unistd.h>

int main(void) {
    tn_on_error(tn_error_exit);
    tn_group *world = tn_dist_init(tn_dist_defaults());
    int rank = tn_group_rank(world), ranks = tn_group_size(world);
    char path[64];
    snprintf(path, sizeof(path), "steps.%d", rank);
    FILE *steps = fopen(path, "a");
    bool go_on = steps != NULL;
    for (int step = 0; go_on; step++) {
        TN_SCOPE;
        tn_tensor *votes = tn_full(TN_DIMS(1000), access("go", F_OK) == 0, TN_F32);
        if (tn_work_wait(tn_all_reduce(world, votes, TN_SUM), 0) != TN_OK) { return 1; }
        go_on = tn_item(tn_select(votes, 0, 999)) == 0;
        fprintf(steps, "%d of %d, restart %d, step %d, %s\n", rank, ranks, tn_restart_count(), step,
                tn_group_engine(world));
        fflush(steps);
        usleep(10000);
    }
    fclose(steps);
    tn_dist_finish();
    return 0;
}
