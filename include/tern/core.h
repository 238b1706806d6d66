/* What everything else builds on: errors, scopes over tensors, memory, random numbers, threads.
 *
 * Errors are sticky and per thread. A failing call records what went wrong and returns something
 * inert; every later call that is given something inert does nothing and returns something inert
 * too. The first error is kept until tn_error_clear:
 *
 *     tn_tensor *loss = tn_cross_entropy(tn_call(&net, x), y, TN_MEAN);      // no check in between
 *     tn_backward(loss);
 *     if (tn_error()) { fprintf(stderr, "%s\n", tn_error_message()); tn_error_clear(); }
 *
 * The library never exits, aborts or prints by itself, except for a few warnings (see the log
 * below). A program that should end at the first error says so once: tn_on_error(tn_error_exit).
 *
 * Read next: core/error.c, core/scope.c, docs/errors.md, docs/ownership.md.
 */
#ifndef TERN_CORE_H
#define TERN_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of these headers; tn_build_info has the library's. */
#define TN_VERSION_MAJOR 0
#define TN_VERSION_MINOR 1
#define TN_VERSION_PATCH 0

#if defined(__GNUC__)
/* For what the library exports; for functions with a printf format. */
#define TN_API __attribute__((visibility("default")))
#define TN_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define TN_API
#define TN_PRINTF(text, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_tensor tn_tensor;

/* ---- Errors ---------------------------------------------------------------------------------- */

typedef enum tn_status {
    TN_OK = 0,
    TN_ESHAPE, /* shapes or dimensions do not fit */
    /* a dtype that does not fit, or two that differ (nothing is promoted silently) */
    TN_EDTYPE,
    TN_EDEVICE, /* tensors on different devices, or a device without the needed kernel */
    TN_EINDEX,  /* an index or label out of range */
    TN_EVALUE,  /* an argument outside its domain */
    /* a call at the wrong time: backward twice, a dead tensor, a changed saved tensor */
    TN_ESTATE,
    TN_ENOMEM,       /* out of memory */
    TN_EIO,          /* a file could not be read or written */
    TN_EFORMAT,      /* a file's contents are not what they should be */
    TN_EUNSUPPORTED, /* not implemented for this dtype, device or build */
    TN_EPEER,        /* a rank died or timed out */
    TN_EMISMATCH     /* ranks disagree */
} tn_status;

/* The pending error of this thread; TN_OK when there is none. */
TN_API tn_status tn_error(void);

/* The pending error's message: where, module, operation and both sides of the mismatch, e.g.
 * `train.c:17 (in mlp.fc1): linear: x is [64, 19] but weight is [64, 20] (the last dimensions must
 * be equal)`. Empty when there is none. Valid until the error is cleared. */
TN_API const char *tn_error_message(void);

/* Forgets the pending error of this thread: calls work again. */
TN_API void tn_error_clear(void);

/* The name of a status: "TN_ESHAPE". */
TN_API const char *tn_status_name(tn_status status);

/* Called at the moment an error is raised, in the raising thread. May exit the process; may not
 * longjmp. An error it raises itself, after clearing the first, is recorded as usual but does not
 * call it again. NULL: none. */
typedef void (*tn_error_handler)(tn_status status, const char *message);
TN_API void tn_on_error(tn_error_handler handler); /* for the process */
/* for this thread: overrides the process's handler while not NULL */
TN_API void tn_on_error_thread(tn_error_handler handler);

/* A handler: prints message and status to stderr (TN_OK: the message alone) and exits with status
 * 1, or 65 after a tn_run's NaN. What scripts and examples use. */
TN_API void tn_error_exit(tn_status status, const char *message);

/* Raises an error as the library does, from a dataset or a custom operation. Returns `status`. */
TN_API tn_status tn_raise(tn_status status, const char *format, ...) TN_PRINTF(2, 3);

/* Takes the pending error out of one thread (false when there is none) and raises it in another:
 * how a worker's error reaches the caller. The message already says where in the worker it
 * arose. */
typedef struct tn_error_record {
    tn_status status;
    char message[1024];
    int why; /* where in it the reason begins, after the place, the modules and the operation */
} tn_error_record;
TN_API bool tn_error_take(tn_error_record *record);
TN_API void tn_error_give(const tn_error_record *record);

/* ---- Ownership -------------------------------------------------------------------------------- *
 *
 * A tensor lives while anything holds a reference. The innermost scope holds one to each tensor
 * made in it and drops it when the scope ends. What must outlive the scope is returned or kept.
 * docs/ownership.md explains it with pictures. */

/* Opens a scope that ends at the enclosing block's `}`, however it is left. */
#define TN_SCOPE                                                                     \
    __attribute__((cleanup(tn_scope_end), unused)) tn_scope TN__UNIQUE(tn__scope_) = \
        tn_scope_begin(__FILE__, __LINE__)

typedef struct tn_scope {
    size_t base;      /* the height of the thread's stack of owned tensors */
    size_t outer;     /* the enclosing scope's base */
    const char *file; /* where it was opened, a static string: named when a dead tensor is used */
    int line;
} tn_scope;

TN_API tn_scope tn_scope_begin(const char *file, int line);
TN_API void tn_scope_end(tn_scope *scope);

/* Moves `t` to the scope outside the current one: `return tn_return(t);`. Returns `t`. */
TN_API tn_tensor *tn_return(tn_tensor *t);

/* One more reference, owned by the caller, who must tn_release it. For tensors that outlive a scope
 * or cross threads. Both functions take NULL and inert tensors. */
TN_API tn_tensor *tn_keep(tn_tensor *t);
TN_API void tn_release(tn_tensor *t);

/* Gives a reference that the caller owns to the current scope. Returns `t`. */
TN_API tn_tensor *tn_adopt(tn_tensor *t);

/* Drops the current scope's reference now: ends a temporary early. */
TN_API void tn_drop(tn_tensor *t);

/* Tensors alive in this process; a test that leaks nothing ends with the number it began with. */
TN_API int64_t tn_live_tensors(void);

#define TN__GLUE2(a, b) a##b
#define TN__GLUE(a, b) TN__GLUE2(a, b)
#define TN__UNIQUE(name) TN__GLUE(name, __COUNTER__)

/* ---- Options ---------------------------------------------------------------------------------- *
 *
 * Options are plain structs, made by a function that gives all members their defaults, which are
 * PyTorch's. Set others in the same expression:
 *
 *     tn_optim *opt = tn_adamw(&net, TN_WITH(tn_adamw, .lr = 3e-4, .weight_decay = 0.1));
 *
 * or one by one: tn_adamw_options o = tn_adamw_defaults(); o.lr = 3e-4;
 *
 * Zero never silently means "default": (tn_adamw_options){.lr = 3e-4} has betas and eps of 0. So
 * each *_defaults() sets the member from_defaults, and functions raise TN_EVALUE for options
 * without it. */

/* WHAT_defaults() with up to 24 members set, in the order given; a value may be a TN_WITH too. A
 * pointer to an array needs a named array: a compound literal, (int[]){1, 2}, ends at the `)`. A
 * value with commas in braces needs parentheses around it. */
#define TN_WITH(...)                                                                               \
    TN__WITH(TN__UNIQUE(tn__with_), TN__WITH_CHECK(#__VA_ARGS__), __VA_ARGS__, , , , , , , , , , , \
             , , , , , , , , , , , , , , , )

/* `(o .lr = 3e-4)` for each member given, `(o )` for the others. */
/* clang-format off */
#define TN__WITH(o, check, what, a, b, c, d, e, f, g, h, i, j, k, l, m, n, p, q, r, s, t, u, v, w, \
                 x, y, more, ...)                                                                  \
    __extension__({                                                                                \
        (void)sizeof(char[sizeof(#more) == 1 ? 1 : -1]); /* at most 24 */                          \
        check;                                                                                     \
        __typeof__(what##_defaults()) o = what##_defaults();                                       \
        (void)(o a); (void)(o b); (void)(o c); (void)(o d); (void)(o e); (void)(o f);              \
        (void)(o g); (void)(o h); (void)(o i); (void)(o j); (void)(o k); (void)(o l);              \
        (void)(o m); (void)(o n); (void)(o p); (void)(o q); (void)(o r); (void)(o s);              \
        (void)(o t); (void)(o u); (void)(o v); (void)(o w); (void)(o x); (void)(o y);              \
        o;                                                                                         \
    })
/* clang-format on */

#if defined(__GNUC__) && !defined(__clang__) && !defined(__cplusplus)
void tn__with_array(void)
    __attribute__((error("TN_WITH: an array that is made in it ends with it: give it a name")));
#define TN__WITH_CHECK(text) __builtin_strstr(text, "]){") ? tn__with_array() : (void)0
#else
#define TN__WITH_CHECK(text) (void)0
#endif

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Bytes of tensors on the CPU, a group's too. Freed blocks are cached for the next: the first touch
 * of fresh memory is slow. */
typedef struct tn_memory_stats {
    int64_t allocated;   /* in tensors now */
    int64_t peak;        /* the maximum of `allocated` since tn_memory_reset_peak */
    int64_t reserved;    /* taken from the system: allocated + cached */
    int64_t allocations; /* calls so far */
    int64_t from_cache;  /* of these, served without the system; not counted on a GPU */
} tn_memory_stats;

/* The current numbers; resetting sets the peak to what is allocated now. */
TN_API tn_memory_stats tn_memory(void);
TN_API void tn_memory_reset_peak(void);
TN_API void tn_memory_trim(void); /* returns cached blocks to the system */

/* The maximum number of bytes that tensors may take; more is TN_ENOMEM. A group's shared memory
 * does not count. 0: no limit (the default). */
TN_API void tn_memory_set_limit(int64_t bytes);

/* ---- Random numbers --------------------------------------------------------------------------- *
 *
 * Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). A number is a
 * function of seed, stream, call and element index: the same bits for any number of threads and
 * ranks, on any device. */

typedef struct tn_generator {
    uint64_t seed;
    uint64_t stream; /* the global micro-batch, or anything else the program counts; 0 unless set */
    uint64_t call;   /* grows by one with every draw */
} tn_generator;

/* This thread's default generator: what rand, randn, dropout and initialisation draw from. */
TN_API tn_generator *tn_default_generator(void);
TN_API void tn_seed(uint64_t seed); /* seeds it; stream and call start at 0 */

/* Four 32-bit words of call `call` for `index`: the primitive itself, for programs to use too. */
typedef struct tn_random4 {
    uint32_t word[4];
} tn_random4;
TN_API tn_random4 tn_philox(uint64_t seed, uint64_t stream, uint64_t call, uint64_t index);

/* One number in [0, 1), one of a standard normal, and one integer in [0, n), drawn from `g`. */
TN_API double tn_random_uniform(tn_generator *g);
TN_API double tn_random_normal(tn_generator *g);
TN_API int64_t tn_random_below(tn_generator *g, int64_t n);

/* ---- Time ------------------------------------------------------------------------------------ */

/* Seconds of a clock that no one sets: what two calls differ by has passed between them. Work on a
 * GPU is queued: call tn_device_synchronize first. */
TN_API double tn_now(void);

/* ---- Threads and log ------------------------------------------------------------------------- */

/* How many threads kernels use, 1 to 4096 (else TN_EVALUE, and nothing changes); results have the
 * same bits for any number. Default: OMP_NUM_THREADS if that is valid, else the number of cores. */
TN_API int tn_threads(void);
TN_API void tn_set_threads(int n);

/* After fork a child has its parent's tensors, and computes the same bits with them. If the parent
 * had threads, the one that forked computes alone in the child: tn_threads() is 1 in it, and
 * tn_set_threads() is for threads that the child makes. The child's random numbers continue like
 * the parent's: give it a seed. What has threads, connections or a device stays the parent's: in
 * the child, calls with loaders that have threads, groups of several ranks, stores and tensors on
 * devices raise TN_ESTATE or TN_EDEVICE without waiting, and freeing them does nothing to the
 * parent. A child must end by exit or _exit: OpenMP would wait at the end of a thread that forked.
 * vfork, _Fork and clone are for children that become another program at once. */

/* The log goes nowhere unless a sink is set or TERN_LOG=error|warn|info|debug is in the environment
 * (then stderr). Without either the warnings that docs/errors.md lists go to stderr: about dangers
 * that show in nothing else. What a sink logs itself reaches it once, without further recursion. */
typedef enum tn_log_level { TN_LOG_ERROR, TN_LOG_WARN, TN_LOG_INFO, TN_LOG_DEBUG } tn_log_level;
typedef void (*tn_log_sink)(tn_log_level level, const char *message, void *user);
TN_API void tn_log_to(tn_log_sink sink, tn_log_level most, void *user);
TN_API void tn_log_write(tn_log_level level, const char *format, ...) TN_PRINTF(2, 3);

/* Library version, compiler, kernels chosen, BLAS and threads, in one line. */
TN_API const char *tn_build_info(void);

#ifdef __cplusplus
}
#endif
#endif
