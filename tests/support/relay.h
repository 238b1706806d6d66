/* A stranger between a client and a server: it listens at one port, and passes what comes on to the
 * first of some other ports of 127.0.0.1 that is served. It changes nothing. */
#ifndef TERN_TESTS_SUPPORT_RELAY_H
#define TERN_TESTS_SUPPORT_RELAY_H

#include <stdbool.h>
#include <stddef.h>

typedef struct relay relay;

/* `port`: 0: any; relay_port says which. The ports of the server: from `first`, `count` of them. */
relay *relay_start(int port, int first, int count);
int relay_port(const relay *r);

/* How many have come, and the most bytes that one of them has sent. Ends the stranger. */
typedef struct relay_result {
    int connections;
    size_t most;
} relay_result;
relay_result relay_end(relay *r);

#endif
