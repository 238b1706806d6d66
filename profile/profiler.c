/* The profiler's public side: its schedule, regions and reports. */
#include "profile/profiler.h"

#include "core/error.h"
#include "core/memory.h"
#include "profile/work.h"
#include "text/utf8.h"

#include <stdio.h>

/* What a step is for. */
typedef enum phase { OFF, SKIPPED, WARMING, KEPT } phase;

static struct profiler {
    tn_profiler_options options;
    phase now;
    bool runs, environment; /* environment: TERN_PROFILE has started it */
    int64_t step;           /* since the start */
    int64_t kept;           /* steps, in this cycle */
    bool in_step;           /* step_span has begun */
} profiler;
static tn__span step_span;

tn_profiler_options tn_profiler_defaults(void) {
    return (tn_profiler_options){.sync = true, .events = 200000, .from_defaults = true};
}

static phase phase_of(const tn_profiler_options *o, int64_t step) {
    int64_t round = o->wait + o->warmup + o->active;
    if (o->active == 0) { return KEPT; }
    step -= o->skip_first;
    if (step < 0 || (o->repeat > 0 && step / round >= o->repeat)) { return SKIPPED; }
    step %= round;
    return step < o->wait ? SKIPPED : step < o->wait + o->warmup ? WARMING : KEPT;
}

/* Whether the previous step was the last of a cycle. */
static bool round_ended(const tn_profiler_options *o, int64_t step) {
    int64_t round = o->wait + o->warmup + o->active;
    return o->active > 0 && step > o->skip_first && (step - o->skip_first) % round == 0 &&
           phase_of(o, step - 1) == KEPT;
}

static void begin_step(void) {
    struct profiler *p = &profiler;
    phase before = p->now;
    bool again = p->options.active > 0 && round_ended(&p->options, p->step);
    p->now = phase_of(&p->options, p->step);
    if (p->now == KEPT && (before != KEPT || again)) {
        tn__spans_clear();
        p->kept = 0;
    }
    tn__spans_see(p->now == KEPT      ? TN__SPANS_ON
                  : p->now == WARMING ? TN__SPANS_WARM
                                      : TN__SPANS_OFF);
    /* not inside a region, which would have to end first; nor for a program that never calls step
     */
    p->in_step = tn__profiled() && !tn__span_innermost() && (p->step > 0 || !p->environment) &&
                 tn__span_begin(&step_span, TN__SPAN_STEP, "step");
    if (p->in_step) {
        snprintf(step_span.note, sizeof(step_span.note), "%lld", (long long)p->step);
    }
}

static void close_step(void) {
    if (profiler.in_step && tn__span_innermost() == &step_span) {
        tn__span_end(&step_span);
    } else if (profiler.in_step) {
        tn__span_drop(&step_span);
    }
    profiler.in_step = false;
}

static void end_step(void) {
    close_step();
    profiler.step++;
    profiler.kept += profiler.now == KEPT;
}

static bool is_count(int64_t n) {
    return n >= 0 && n <= (int64_t)1 << 40; /* sums and products of these fit */
}

static bool options_fit(const tn_profiler_options *o) {
    bool fit = is_count(o->skip_first) && is_count(o->wait) && is_count(o->warmup) &&
               is_count(o->active) && is_count(o->repeat) && o->events >= 1 &&
               o->events <= 1 << 28 && o->gbytes >= 0 && o->gflops >= 0 && o->half_gflops >= 0;
    if (!fit) {
        tn__raise(TN_EVALUE, "profiler_start",
                  "an option is negative or above 2^40, or events is not 1 … 2^28");
    }
    return fit;
}

tn_status tn__profiler_begin(tn_profiler_options options, bool environment) {
    int rank = tn__profiler_rank();
    if (tn__pending() ||
        !tn__options_made(options.from_defaults, "profiler_start", "tn_profiler") ||
        !options_fit(&options)) {
        return tn_error();
    }
    if (profiler.runs && !profiler.environment) {
        return tn__raise(TN_ESTATE, "profiler_start", "the profiler is already running");
    }
    if (!tn__spans_begin(options.events, rank < 0 ? 0 : rank)) {
        return tn__raise(TN_ENOMEM, "profiler_start", "no memory for %lld events",
                         (long long)options.events);
    }
    end_step();
    tn__spans_see(TN__SPANS_OFF);
    tn__profile_limits =
        (tn__limits){options.gbytes * 1e9, options.gflops * 1e9, options.half_gflops * 1e9};
    tn__profile_waits = options.sync;
    profiler = (struct profiler){.options = options, .runs = true, .environment = environment};
    begin_step();
    return TN_OK;
}

tn_status tn_profiler_start(tn_profiler_options options) {
    return tn__profiler_begin(options, false);
}

void tn_profiler_step(void) {
    if (!profiler.runs) { return; }
    end_step();
    if (round_ended(&profiler.options, profiler.step)) {
        tn__spans_see(TN__SPANS_OFF);
        if (profiler.options.ready) { profiler.options.ready(profiler.options.user); }
    }
    if (profiler.runs) { /* ready may have stopped it */
        begin_step();
    }
}

/* The loop whose steps count: ranks may be threads, whose loops run at the same time. */
static const void *stepping; /* atomic */

void tn__profiler_own_step(const void *loop) {
    const void *before = NULL;
    if (profiler.environment && (__atomic_compare_exchange_n(&stepping, &before, loop, false,
                                                             __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
                                 before == loop)) {
        tn_profiler_step();
    }
}

void tn__profiler_own_end(const void *loop) {
    if (__atomic_load_n(&stepping, __ATOMIC_ACQUIRE) == loop) {
        close_step();
        __atomic_store_n(&stepping, NULL, __ATOMIC_RELEASE);
    }
}

tn_status tn_profiler_stop(void) {
    if (!profiler.runs || profiler.environment) {
        return tn__raise(TN_ESTATE, "profiler_stop", "the profiler was not started");
    }
    end_step();
    tn__spans_see(TN__SPANS_OFF);
    profiler.runs = false;
    return TN_OK;
}

int64_t tn__profiler_steps(void) {
    return profiler.step > 1 ? profiler.kept : 0;
}

/* ---- Regions --------------------------------------------------------------------------------- */

tn_profile_region *tn_profile_region_begin(const char *name) {
    bool wanted = tn__profiled() && name;
    if (wanted && !tn__is_utf8(name)) {
        tn__raise(TN_EVALUE, "profile_region_begin", "the name \"%s\" is not UTF-8", name);
        return NULL;
    }
    tn__span *span = wanted ? tn__malloc(sizeof(*span)) : NULL;
    if (span && !tn__span_begin(span, TN__SPAN_REGION, name)) {
        free(span);
        span = NULL;
    }
    return (tn_profile_region *)span;
}

void tn_profile_region_end(tn_profile_region *const *region) {
    tn__span *span = region ? (tn__span *)*region : NULL;
    if (span) {
        tn__span_end(span);
        free(span);
    }
}

tn_status tn_profiler_save(const char *path) {
    return tn__spans_save(path, "profiler_save");
}
