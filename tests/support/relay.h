/* A relay between a client and a server: it listens on one port, and forwards everything unchanged
 * to the first of some other ports of 127.0.0.1 that is served. */
#ifndef TERN_TESTS_SUPPORT_RELAY_H
#define TERN_TESTS_SUPPORT_RELAY_H

#include <stdbool.h>
#include <stddef.h>

typedef struct relay relay;

/* `port`: 0: any; relay_port says which. The ports of the server: from `first`, `count` of them. */
relay *relay_start(int port, int first, int count);
int relay_port(const relay *r);

/* How many clients came, and the most bytes that one of them sent. Ends the relay. */
typedef struct relay_result {
    int connections;
    size_t most;
} relay_result;
relay_result relay_end(relay *r);

#endif
