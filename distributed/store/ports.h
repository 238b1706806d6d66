/* The ports that a firewall lets through: TERN_PORTS, as FIRST-LAST. Whatever of ours listens is at
 * one of them. */
#ifndef TERN_DISTRIBUTED_STORE_PORTS_H
#define TERN_DISTRIBUTED_STORE_PORTS_H

#include "distributed/store/store.h"

typedef struct tn__ports {
    int first, last; /* first 0: any port will do */
} tn__ports;

/* Reads "30000-30100"; NULL and "" are any port. TN_OK, or TN_EVALUE with a reason in
 * why[TN_STORE_WHY] that begins with `name`. */
TN_API tn_status tn__ports_read(const char *name, const char *text, tn__ports *p, char *why);

/* The same of this process's environment. */
TN_API tn_status tn__ports_find(tn__ports *p, char *why);

TN_API bool tn__ports_have(const tn__ports *p, int port);

#endif
