/* The functions that other ranks can call, by name. */
#ifndef TERN_DISTRIBUTED_RPC_FUNCTIONS_H
#define TERN_DISTRIBUTED_RPC_FUNCTIONS_H

#include "tern/rpc.h"

#include <pthread.h>

typedef struct tn__function {
    struct tn__function *next;
    tn_rpc_function f;
    void *user;
    char name[];
} tn__function;

typedef struct tn__functions {
    pthread_mutex_t lock;
    tn__function *first;
} tn__functions;

void tn__functions_init(tn__functions *fs);
void tn__functions_finish(tn__functions *fs);
tn_status tn__functions_add(tn__functions *fs, const char *name, tn_rpc_function f, void *user);
/* NULL: there is none. The name has no 0 at its end. */
const tn__function *tn__functions_find(tn__functions *fs, const char *name, size_t bytes);

#endif
