/* Serves a TCP store until it is killed, and prints its port. For tests in which the server
 * disappears. */
#include <tern/tern.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void) {
    const char *token = getenv("TERN_TOKEN");
    tn_on_error(tn_error_exit);
    tn_store_server *server = tn_store_serve("127.0.0.1", 0, token ? token : "");
    printf("%d\n", tn_store_server_port(server));
    fflush(stdout);
    for (;;) {
        pause();
    }
}
