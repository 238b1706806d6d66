/* A program that any launcher may start: sums the ranks and prints which rank it is. */
#include <tern/tern.h>

#include <stdio.h>

int main(void) {
    tn_on_error(tn_error_exit);
    tn_group *world = tn_dist_init(tn_dist_defaults());
    TN_SCOPE;
    tn_tensor *sum = tn_full(TN_DIMS(1), tn_group_rank(world) + 1, TN_F64);
    if (tn_work_wait(tn_all_reduce(world, sum, TN_SUM), 0) != TN_OK) { return 1; }
    printf("rank %d of %d, local %d, sum %g\n", tn_group_rank(world), tn_group_size(world),
           tn_local_rank(), tn_item(sum));
    tn_dist_finish();
    return 0;
}
