/* One call on a TCP store, with the token in TERN_TOKEN, for tests of a hostile process:
 *
 *     store_client PORT set KEY VALUE
 *     store_client PORT add KEY NUMBER
 *     store_client PORT get KEY
 *
 * VALUE "-" is read from stdin. get waits for the key and prints its value; add prints the
 * sum.
 */
#include <tern/tern.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_key(tn_store *store, const char *key, const char *value) {
    static char bytes[4 << 20];
    size_t length = strlen(value);
    if (strcmp(value, "-") == 0) {
        length = fread(bytes, 1, sizeof(bytes), stdin);
        value = bytes;
    }
    tn_store_set(store, key, value, length);
}

int main(int argc, char **argv) {
    const char *token = getenv("TERN_TOKEN");
    if (argc < 4 || !token) { return 64; }
    tn_on_error(tn_error_exit);
    tn_store *store = tn_tcp_store("127.0.0.1", atoi(argv[1]), token, 30);
    if (strcmp(argv[2], "set") == 0) {
        set_key(store, argv[3], argv[4]);
    } else if (strcmp(argv[2], "add") == 0) {
        int64_t sum = 0;
        tn_store_add(store, argv[3], atoll(argv[4]), &sum);
        printf("%lld\n", (long long)sum);
    } else {
        void *value = NULL;
        size_t length = 0;
        tn_store_get(store, argv[3], &value, &length, 30);
        fwrite(value, 1, length, stdout);
        free(value);
    }
    tn_store_free(store);
    return 0;
}
