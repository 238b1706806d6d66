/* `tern info`: what this build is and what it finds on this machine,
 * as plain text for a bug report. */
#include "backends/backend.h"
#include "core/build_info.h"
#include "core/clock.h"
#include "core/error.h"
#include "tools/verbs.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/sys/device.h>
#include <tern/sys/group.h>
#include <tern/sys/store.h>
#include <tern/train.h>
#include <unistd.h>

static const double engine_timeout = 5;

/* An engine is available if a group of one rank can be made with it. */
static void tell_engine(const char *name, const char *for_what) {
    tn_store *store = tn_memory_store();
    tn_engine_options options = {
        .store = store,
        .ranks = 1,
        .deadline = tn__now() + engine_timeout,
        .timeout = engine_timeout,
    };
    tn_engine *engine = tn_engine_new(name, &options);
    printf("  %-6s %s (%s)\n", name, engine ? "yes" : "no", engine ? for_what : tn__error_why());
    tn_error_clear();
    if (engine) { engine->destroy(engine); }
    tn_store_free(store);
}

static void tell_device(tn_device device) {
    tn_device_info info;
    if (tn_device_describe(device, &info) != TN_OK) {
        printf("  %-6s %s\n", tn_device_text(device), tn_error_message());
        tn_error_clear();
        return;
    }
    printf("  %-6s %s (compute capability %d.%d, %d processors, %.1f GiB)\n",
           tn_device_text(device), info.name, info.major, info.minor, info.processors,
           (double)info.memory / (1 << 30));
}

/* What the plugin was built with, and its devices; or why there is none. */
static void tell_devices(void) {
    const tn_device_table *table = tn__device_plugin(TN_CUDA);
    if (table) {
        char text[1024];
        table->versions(text, sizeof(text));
        printf("  with   %s\n", text);
    }
    int count = tn_device_count(TN_CUDA);
    for (int i = 0; i < count; i++) {
        tell_device(tn_cuda(i));
    }
    if (count == 0) { printf("  cuda   no (%s)\n", tn_device_why(TN_CUDA)); }
}

/* What moves tensors on devices between ranks. */
static void tell_staged(void) {
    bool there = tn_device_count(TN_CUDA) > 0;
    printf("  staged %s (%s)\n", there ? "yes" : "no",
           there ? "GPUs, any number of ranks per GPU, over host memory" : tn_device_why(TN_CUDA));
}

static void tell_nccl(void) {
    bool there = tn__nccl_is_there();
    printf("  nccl   %s (%s)\n", there ? "yes" : "no",
           there ? "GPUs, one per rank" : tn__error_why());
    tn_error_clear();
}

/* The level in use, and those that TERN_CPU can name. */
static void tell_kernels(void) {
    char levels[TN__CPU_LEVELS];
    printf("kernels   %s, of the CPU's levels %s\n", tn_backend_of(tn_cpu())->name,
           tn__cpu_levels(levels, sizeof(levels)));
    if (tn_error()) {
        printf("          %s\n", tn_error_message());
        tn_error_clear();
    }
}

int info_main(int argc, char **argv) {
    static const char about[] = "Says what this build is and what it finds here: version, kernels, "
                                "cores, devices, and what ranks can talk through.";
    static const tn_option none[] = {{.help = "There are no options."}, {0}};
    if (tn_options_parse(argc, argv, about, none) != TN_OK) { return EXIT_FAILURE; }
    cpu_set_t set;
    int usable = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
    printf("version   %s\n", tn__version_text());
    printf("build     %s\n", tn_build_info());
    printf("cores     %ld, usable %d\n", sysconf(_SC_NPROCESSORS_ONLN), usable);
    tell_kernels();
    printf("devices\n");
    tell_devices();
    printf("engines\n");
    tell_engine("local", "threads of one process");
    tell_engine("shm", "processes of one host");
    tell_engine("gloo", "hosts");
    tell_staged();
    tell_nccl();
    return 0;
}
