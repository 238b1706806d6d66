/* What a checkpoint holds besides tensors: strings by key, made from the members of a
 * tn_checkpoint, and read back. Reading has two steps, as for tensors (io/state.h): the first
 * checks and compares everything and changes nothing, the second cannot fail.
 *
 *     tn__metadata_plan p;
 *     if (tn__metadata_read(&p, &c, metadata, path, "load", true) && ...) {
 *         tn__metadata_apply(&p);
 *     }
 */
#ifndef TERN_IO_CHECKPOINT_METADATA_H
#define TERN_IO_CHECKPOINT_METADATA_H

#include "io/differences.h"
#include "tern/io.h"
#include "text/json.h"

/* Takes one string; false after raising. */
typedef bool tn__metadata_put(void *user, const char *key, const char *value);

/* Puts every string of c, in order. False after raising. */
bool tn__metadata_write(const tn_checkpoint *c, const char *operation, tn__metadata_put *put,
                        void *user);

/* The state of a checkpoint's members that are not tensors. */
typedef struct tn__metadata_record {
    int64_t step, optim_steps, groups;
    double lr;
    tn_loader_place place;  /* of the next batch */
    int64_t epochs, passes; /* epochs of a pass, and passes that have ended */
    int64_t batch, parts;   /* of each rank, and ranks */
    tn_generator generator;
    tn_scaler_state scaler;
    tn_plateau_state plateau;
    int64_t updates; /* of the average */
} tn__metadata_record;

/* What was read and checked, before anything changes. */
typedef struct tn__metadata_plan {
    tn_checkpoint *checkpoint; /* the program's */
    const tn__json *metadata;  /* the file's, */
    const char *path; /* and its name in messages: both borrowed from tn__metadata_read's caller */
    const char *operation; /* static text */
    tn__differences differences;
    tn__metadata_record record;
} tn__metadata_plan;

/* The last argument is true on one of the ranks that load together: it compares the data, and logs
 * what differs. False after raising. */
bool tn__metadata_read(tn__metadata_plan *p, tn_checkpoint *c, const tn__json *metadata,
                       const char *path, const char *operation, bool first);
void tn__metadata_apply(const tn__metadata_plan *p);

#endif
