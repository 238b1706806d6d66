/* The ports that a firewall lets through: TERN_PORTS, as FIRST-LAST. Whatever of ours listens is at
 * one of them. */
#ifndef TERN_DISTRIBUTED_STORE_PORTS_H
#define TERN_DISTRIBUTED_STORE_PORTS_H

#include "tern/core.h"

typedef struct tn__ports {
    int first, last; /* first 0: any port will do */
} tn__ports;

/* Reads "30000-30100"; NULL and "" are any port. Raises TN_EVALUE, with a reason that begins with
 * `name`. */
TN_API tn_status tn__ports_read(const char *name, const char *text, tn__ports *p,
                                const char *operation);

/* The same of this process's environment. */
TN_API tn_status tn__ports_find(tn__ports *p, const char *operation);

TN_API bool tn__ports_have(const tn__ports *p, int port);

#endif
