/* Whether ranks on this host have ended before they connect: watch.c. */
#ifndef TERN_DISTRIBUTED_RPC_WATCH_H
#define TERN_DISTRIBUTED_RPC_WATCH_H

#include "tern/sys/store.h"

/* Another rank. When zeroed, nothing is known of it. */
typedef struct tn__watched {
    bool known, ended;
    bool has_fd;
    int fd; /* of its process */
} tn__watched;

/* Tells the others which process this rank is. */
tn_status tn__watch_announce(tn_store *s, int rank, double deadline, char *why);
/* Whether the rank's process has ended; false where that cannot be known. Does not wait, except for
 * the store's answers until the deadline. */
bool tn__watch_ended(tn_store *s, int rank, tn__watched *w, double deadline);
void tn__watch_end(tn__watched *w);

#endif
