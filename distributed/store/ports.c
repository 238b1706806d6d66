#include "distributed/store/ports.h"

#include "core/error.h"

#include <stdlib.h>
#include <string.h>

enum { LAST_PORT = 65535 };

/* A whole number in decimal digits alone, from 1 on; 0: it is none. */
static int read_port(const char *digits, size_t length) {
    int port = 0;
    for (size_t i = 0; i < length; i++) {
        if (digits[i] < '0' || digits[i] > '9' || port > LAST_PORT) { return 0; }
        port = port * 10 + digits[i] - '0';
    }
    return port <= LAST_PORT ? port : 0;
}

tn_status tn__ports_read(const char *name, const char *text, tn__ports *p, const char *operation) {
    *p = (tn__ports){0};
    if (!text || !*text) { return TN_OK; }
    size_t length = strcspn(text, "-");
    tn__ports found = {.first = read_port(text, length)};
    found.last = text[length] ? read_port(text + length + 1, strlen(text + length + 1)) : 0;
    if (found.first == 0 || found.last < found.first) {
        return tn__raise(TN_EVALUE, operation,
                         "%s is \"%.60s\": should be FIRST-LAST, two ports from 1 to %d, such as "
                         "30000-30100",
                         name, text, LAST_PORT);
    }
    *p = found;
    return TN_OK;
}

tn_status tn__ports_find(tn__ports *p, const char *operation) {
    return tn__ports_read("TERN_PORTS", getenv("TERN_PORTS"), p, operation);
}

bool tn__ports_have(const tn__ports *p, int port) {
    return p->first == 0 || (port >= p->first && port <= p->last);
}
