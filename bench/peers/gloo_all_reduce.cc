/* Plain gloo's all-reduce of f32 (its ring) over the loopback interface: `gloo_all_reduce RANK
 * RANKS FOLDER ROUNDS MIB …`; rank 0 prints "private MIB MS" as bench/all_reduce.c does. */
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <vector>

typedef std::shared_ptr<gloo::rendezvous::Context> context;

static double best_of(const context &all, float *x, size_t n, int times) {
    double best = 1e9;
    void (*sum)(void *, const void *, const void *, size_t) = &gloo::sum<float>;
    for (int i = 0; i < times; i++) {
        gloo::BarrierOptions meet(all);
        gloo::barrier(meet);
        auto start = std::chrono::steady_clock::now();
        gloo::AllreduceOptions options(all);
        options.setOutput(x, n);
        options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        options.setReduceFunction(sum);
        gloo::allreduce(options);
        std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        best = std::min(best, seconds.count());
    }
    return best;
}

int main(int argc, char **argv) {
    if (argc < 6) { return 2; }
    int rank = atoi(argv[1]), ranks = atoi(argv[2]), rounds = atoi(argv[4]);
    gloo::transport::tcp::attr where;
    where.iface = "lo";
    gloo::rendezvous::FileStore store(argv[3]);
    context all = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    auto device = gloo::transport::tcp::CreateDevice(where);
    all->connectFullMesh(store, device);
    for (int i = 5; i < argc; i++) {
        size_t bytes = (size_t)atol(argv[i]) << 20;
        void *memory =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) { return 1; }
        madvise(memory, bytes, MADV_HUGEPAGE);
        memset(memory, 0, bytes);
        std::vector<double> ms;
        for (int r = 0; r < rounds; r++) {
            ms.push_back(best_of(all, (float *)memory, bytes / 4, bytes <= 1 << 20 ? 50 : 3) * 1e3);
        }
        std::sort(ms.begin(), ms.end());
        if (rank == 0) {
            printf("private %s %.4f\n", argv[i], ms[ms.size() / 2]);
            fflush(stdout);
        }
        munmap(memory, bytes);
    }
    return 0;
}
