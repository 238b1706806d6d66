/* Prints every rank's examples, without shuffling, for test_sampler_torch.py: "size ranks drop
 * rank: 0 2 4". A minus marks an example that is only padding. */
#include <tern/tern.h>

#include <stdio.h>

int main(void) {
    for (int64_t size = 1; size <= 23; size++) {
        for (int ranks = 1; ranks <= 9; ranks++) {
            for (int drop = 0; drop < 2; drop++) {
                for (int rank = 0; rank < ranks; rank++) {
                    tn_sampler s = tn_sequential_sampler();
                    s.part = rank;
                    s.parts = ranks;
                    s.rule = drop ? TN_PARTS_DROP : TN_PARTS_PAD;
                    printf("%lld %d %d %d:", (long long)size, ranks, drop, rank);
                    for (int64_t i = 0; i < tn_sampler_count(&s, size); i++) {
                        printf(" %s%lld", tn_sampler_is_real(&s, size, i) ? "" : "-",
                               (long long)tn_sampler_at(&s, size, 3, i));
                    }
                    printf("\n");
                }
            }
        }
    }
    return tn_error() != TN_OK;
}
