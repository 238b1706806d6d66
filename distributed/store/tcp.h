/* What distributed.h does not offer: looking for a server of the TCP store,
 * and who uses one's own. */
#ifndef TERN_DISTRIBUTED_STORE_TCP_H
#define TERN_DISTRIBUTED_STORE_TCP_H

#include "distributed/store/store.h"

typedef enum tn__dialed {
    TN__DIAL_OURS,      /* a store that knows the token */
    TN__DIAL_REFUSED,   /* nobody listens */
    TN__DIAL_NO_HOST,   /* the host does not answer, or is not known */
    TN__DIAL_SILENT,    /* somebody who does not speak, or not in time */
    TN__DIAL_STRANGER,  /* somebody, but no Tern store, or of another version */
    TN__DIAL_OTHER_JOB, /* a Tern store that does not know the token, or thinks that we do not */
    TN__DIAL_FAILED     /* on this side */
} tn__dialed;

/* Who answers at host:port. One attempt. */
TN_API tn__dialed tn__tcp_probe(const char *host, int port, const char *token, double deadline,
                                char *why);

/* How many connections of clients that know the token are open: a process that uses the store has
 * one at least, and none when it has ended, however that came. 0 for NULL. */
TN_API int tn__store_server_members(const tn_store_server *s);

#endif
