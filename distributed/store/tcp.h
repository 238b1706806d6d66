/* Looking for a server of the TCP store, beyond what distributed.h offers. */
#ifndef TERN_DISTRIBUTED_STORE_TCP_H
#define TERN_DISTRIBUTED_STORE_TCP_H

#include "distributed/store/store.h"

typedef enum tn__dialed {
    TN__DIAL_OURS,      /* a store that knows the token */
    TN__DIAL_REFUSED,   /* nobody listens */
    TN__DIAL_SILENT,    /* no answer, or not in time: may be different in a moment */
    TN__DIAL_STRANGER,  /* somebody, but no Tern store, or of another version */
    TN__DIAL_OTHER_JOB, /* a Tern store that does not know the token, or thinks that we do not */
    TN__DIAL_FAILED     /* on this side */
} tn__dialed;

/* Who answers at host:port. One attempt. */
TN_API tn__dialed tn__tcp_probe(const char *host, int port, const char *token, double deadline,
                                char *why);

#endif
