/* The store in which the ranks meet: served by rank 0 or by the launcher. */
#ifndef TERN_DISTRIBUTED_INIT_RENDEZVOUS_H
#define TERN_DISTRIBUTED_INIT_RENDEZVOUS_H

#include "distributed/init/environment.h"
#include "tern/store.h"

typedef struct tn__rendezvous {
    tn_store *store;
    tn_store_server *server; /* NULL: this process does not serve it */
} tn__rendezvous;

/* `init` as in tn_dist_options. `timeout` is the store's, for later calls. False after raising. */
bool tn__rendezvous_begin(tn__rendezvous *r, const char *init, const tn__environment *e,
                          double timeout, double deadline);
/* A server waits until the others have left its store, at most `seconds`. */
void tn__rendezvous_end(tn__rendezvous *r, double seconds);

#endif
