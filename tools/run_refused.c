/* torchrun's options that `tern run` does not accept, each with the reason and what to do
 * instead. */
#include "tools/run_refused.h"

static const struct refused {
    const char *name, *argument; /* NULL: it takes none */
    int letter;                  /* 0: none */
    const char *why;
} refused[] = {
    {"module", NULL, 'm', "PROGRAM is started as it is: tern run python3 -m NAME"},
    {"run-path", NULL, 0, "PROGRAM is started as it is: tern run python3 FILE"},
    {"start-method", "HOW", 0, "ranks are always separate programs: leave it out"},
    {"role", "NAME", 0, "all ranks have one role: leave it out"},
    {"redirects", "STREAMS", 'r',
     "ranks' output is always shown; --log-dir DIR also writes it to files"},
    {"local-ranks-filter", "RANKS", 0,
     "all ranks are shown, with [rank] in front of each line; --log-dir DIR gets files for each"},
    {"duplicate-stdout-filters", "WORDS", 0, "search the files of --log-dir DIR"},
    {"duplicate-stderr-filters", "WORDS", 0, "search the files of --log-dir DIR"},
    {"log-line-prefix-template", "TEXT", 0, "each line has [rank] in front, always"},
    {"logs-specs", "NAME", 0, "it names a Python class: --log-dir DIR says where files go"},
    {"event-log-handler", "NAME", 0, "it names a Python handler: leave it out"},
    {"local-addr", "HOST", 0,
     "--rdzv-endpoint says where the hosts meet, TERN_INTERFACE which address tensors use"},
    {"numa-binding", "HOW", 0,
     "ranks are not bound to cores: start a script that does so, by LOCAL_RANK, with numactl"},
    {"virtual-local-rank", NULL, 0,
     "rank L of a host takes GPU L, and LOCAL_RANK is L: leave it out"},
    {"signals-to-handle", "SIGNALS", 0,
     "SIGTERM, SIGINT, SIGHUP and SIGQUIT always shut the ranks down cleanly: leave it out"},
    {"print-completion", "SHELL", 0, "there is none; --help lists the options"},
};

static void refuse_option(const char *unused, void *to) {
    const struct refused *r = to;
    tn_options_refuse("torchrun's --%s is not supported: %s", r->name, r->why);
}

void refused_options(tn_option *rows) {
    _Static_assert(sizeof(refused) / sizeof(*refused) <= MOST_REFUSED, "the caller's array");
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
        const struct refused *r = &refused[i];
        rows[i] = (tn_option){r->name,
                              r->letter,
                              r->argument,
                              .hidden = true,
                              .read = refuse_option,
                              .to = (void *)(uintptr_t)r};
    }
}
