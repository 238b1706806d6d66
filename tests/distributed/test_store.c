/* Every store keeps the same promises: in memory, over TCP, and each of them with a
 * prefix. */
#define _GNU_SOURCE
#include "core/memory.h"
#include "distributed/store/store.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

#include "tests/support/temp.h"

#include <math.h>
#include <pthread.h>

#define TOKEN "a token of tests"

/* ---- A store of each kind -------------------------------------------------------------------- */

typedef enum kind { MEMORY, TCP, TCP6 } kind;

typedef struct place {
    kind kind;
    bool prefixed;
    tn_store_server *server;
    tn_store *memory; /* of MEMORY: the only store of this place */
} place;

static place place_new(kind k, bool prefixed) {
    place p = {.kind = k, .prefixed = prefixed};
    if (k == TCP || k == TCP6) {
        p.server = tn_store_serve(k == TCP ? "127.0.0.1" : "::1", 0, TOKEN);
        assert_non_null(p.server);
    }
    return p;
}

static tn_store *open_store(place *p) {
    tn_store *s = NULL;
    switch (p->kind) {
    case MEMORY:
        p->memory = p->memory ? p->memory : tn_memory_store();
        s = tn__store_keep(p->memory);
        break;
    case TCP:
        s = tn_tcp_store("127.0.0.1", tn_store_server_port(p->server), TOKEN, 10);
        break;
    case TCP6:
        s = tn_tcp_store("::1", tn_store_server_port(p->server), TOKEN, 10);
        break;
    }
    if (s && p->prefixed) {
        tn_store *outer = tn_prefix_store(s, "some/where");
        tn_store_free(s);
        s = outer;
    }
    if (!s) { fail_msg("%s", tn_error_message()); }
    return s;
}

static void place_free(place *p) {
    tn_store_free(p->memory);
    tn_store_server_free(p->server);
}

/* Whether this machine has IPv6 loopback. */
static bool has_ipv6(void) {
    tn_store_server *server = tn_store_serve("::1", 0, TOKEN);
    tn_error_clear();
    tn_store_server_free(server);
    return server != NULL;
}

static void for_each_place(void (*test)(place *p)) {
    for (int k = MEMORY; k <= TCP6; k++) {
        for (int prefixed = 0; prefixed < 2; prefixed++) {
            if (k == TCP6 && !has_ipv6()) { continue; }
            place p = place_new((kind)k, prefixed);
            test(&p);
            place_free(&p);
            assert_int_equal(tn_error(), TN_OK);
        }
    }
}

/* A test whose body is run for each of them. */
#define STORES_TEST(name)            \
    static void name##_at(place *p); \
    PLAIN_TEST(name) {               \
        for_each_place(name##_at);   \
    }                                \
    static void name##_at(place *p)

/* ---- One call at a time ---------------------------------------------------------------------- */

static void assert_text(tn_store *s, const char *key, const char *text) {
    void *data;
    size_t bytes;
    assert_int_equal(tn_store_get(s, key, &data, &bytes, 0), TN_OK);
    assert_int_equal(bytes, strlen(text));
    assert_string_equal((const char *)data, text);
    free(data);
}

STORES_TEST(test_calls) {
    tn_store *a = open_store(p), *b = open_store(p);
    bool truth = true;
    int64_t sum = -1;
    assert_int_equal(tn_store_check(a, "x", &truth), TN_OK);
    assert_false(truth);
    assert_int_equal(tn_store_set(a, "x", "eins", 4), TN_OK);
    assert_text(b, "x", "eins");
    assert_int_equal(tn_store_set(b, "x", "zwei und mehr", 13), TN_OK);
    assert_text(a, "x", "zwei und mehr");
    assert_int_equal(tn_store_check(b, "x", &truth), TN_OK);
    assert_true(truth);
    assert_int_equal(tn_store_set(a, "empty", NULL, 0), TN_OK);
    assert_text(b, "empty", "");
    assert_int_equal(tn_store_set(a, "zero", "a\0b", 3), TN_OK);
    void *data;
    size_t bytes;
    assert_int_equal(tn_store_get(b, "zero", &data, &bytes, 1), TN_OK);
    assert_true(bytes == 3 && memcmp(data, "a\0b", 4) == 0);
    free(data);

    assert_int_equal(tn_store_add(a, "n", 5, &sum), TN_OK);
    assert_int_equal(sum, 5);
    assert_int_equal(tn_store_add(b, "n", -7, &sum), TN_OK);
    assert_int_equal(sum, -2);
    assert_text(a, "n", "-2");
    assert_int_equal(tn_store_add(b, "n", 1, NULL), TN_OK);

    assert_int_equal(tn_store_delete(a, "x", &truth), TN_OK);
    assert_true(truth);
    assert_int_equal(tn_store_delete(b, "x", &truth), TN_OK);
    assert_false(truth);
    assert_int_equal(tn_store_check(b, "x", &truth), TN_OK);
    assert_false(truth);
    tn_store_free(a);
    assert_text(b, "n", "-1");
    tn_store_free(b);
}

STORES_TEST(test_compare_set) {
    tn_store *s = open_store(p);
    bool is_set;
    assert_int_equal(tn_store_compare_set(s, "k", "not there", "a", &is_set), TN_OK);
    assert_false(is_set);
    assert_int_equal(tn_store_check(s, "k", &is_set), TN_OK);
    assert_false(is_set);
    assert_int_equal(tn_store_compare_set(s, "k", NULL, "a", &is_set), TN_OK);
    assert_true(is_set);
    assert_int_equal(tn_store_compare_set(s, "k", NULL, "b", &is_set), TN_OK);
    assert_false(is_set);
    assert_int_equal(tn_store_compare_set(s, "k", "b", "c", &is_set), TN_OK);
    assert_false(is_set);
    assert_text(s, "k", "a");
    assert_int_equal(tn_store_compare_set(s, "k", "a", "c", &is_set), TN_OK);
    assert_true(is_set);
    assert_int_equal(tn_store_compare_set(s, "k", "a", "c", &is_set), TN_OK);
    assert_true(is_set); /* it already has the wanted value */
    assert_text(s, "k", "c");
    assert_fails(tn_store_compare_set(s, "k", "c", "", &is_set), TN_EVALUE, "");
    tn_store_free(s);
}

STORES_TEST(test_numbers) {
    tn_store *s = open_store(p);
    static const char *const bad[] = {"",
                                      "1 ",
                                      " 1",
                                      "+1",
                                      "1.0",
                                      "eins",
                                      "9223372036854775808",
                                      "--1",
                                      "0000000000000000000000"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(tn_store_set(s, "n", bad[i], strlen(bad[i])), TN_OK);
        assert_fails(tn_store_add(s, "n", 1, NULL), TN_EFORMAT, "not a number");
        assert_text(s, "n", bad[i]);
    }
    assert_int_equal(tn_store_set(s, "n", "9223372036854775807", 19), TN_OK);
    assert_fails(tn_store_add(s, "n", 1, NULL), TN_EFORMAT, "overflows 64 bits");
    int64_t sum;
    assert_int_equal(tn_store_add(s, "n", INT64_MIN, &sum), TN_OK);
    assert_int_equal(sum, -1);
    tn_store_free(s);
}

STORES_TEST(test_large) {
    tn_store *a = open_store(p), *b = open_store(p);
    size_t bytes = (size_t)3 << 20, back_bytes;
    unsigned char *data = malloc(bytes);
    assert_non_null(data);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (unsigned char)(i * 7 + i / 4096);
    }
    void *back;
    assert_int_equal(tn_store_set(a, "large", data, bytes), TN_OK);
    assert_int_equal(tn_store_get(b, "large", &back, &back_bytes, 10), TN_OK);
    assert_true(back_bytes == bytes && memcmp(back, data, bytes) == 0);
    free(back);
    assert_fails(tn_store_set(b, "large", data, (size_t)TN_STORE_VALUE + 1), TN_EVALUE, "at most");
    free(data);
    tn_store_free(a);
    tn_store_free(b);
}

STORES_TEST(test_keys) {
    tn_store *s = open_store(p);
    char text[TN_STORE_KEY + 2];
    memset(text, 'k', sizeof(text));
    text[TN_STORE_KEY + 1] = 0;
    assert_fails(tn_store_set(s, text, "", 0), TN_EVALUE, "255 bytes");
    text[TN_STORE_KEY] = 0;
    assert_int_equal(tn_store_set(s, text, "1", 1), p->prefixed ? TN_EVALUE : TN_OK);
    tn_error_clear();
    text[TN_STORE_KEY - 11] = 0;
    assert_int_equal(tn_store_set(s, text, "2", 1), TN_OK);
    assert_text(s, text, "2");
    static const char *const bad[] = {NULL, "", "a b", "a\n", "\x7f", "\x01"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_fails(tn_store_add(s, bad[i], 1, NULL), TN_EVALUE, "the key is");
    }
    /* Enough keys to make the table grow. */
    for (int i = 0; i < 300; i++) {
        snprintf(text, sizeof(text), "key.%d", i);
        assert_int_equal(tn_store_set(s, text, text, strlen(text)), TN_OK);
    }
    for (int i = 0; i < 300; i += 7) {
        snprintf(text, sizeof(text), "key.%d", i);
        assert_text(s, text, text);
    }
    tn_store_free(s);
}

PLAIN_TEST(test_prefixes) {
    tn_store *s = tn_memory_store(), *a = tn_prefix_store(s, "a"), *ab = tn_prefix_store(a, "b");
    assert_int_equal(tn_store_set(ab, "c", "1", 1), TN_OK);
    assert_text(a, "b/c", "1");
    assert_text(s, "a/b/c", "1");
    tn_store_free(s);
    tn_store_free(a);
    assert_text(ab, "c", "1");
    assert_none(tn_prefix_store(ab, "with space"), TN_EVALUE, "the prefix is");
    tn_store_free(ab);
}

/* ---- Deadlines ------------------------------------------------------------------------------- */

STORES_TEST(test_deadlines) {
    tn_store *s = open_store(p);
    void *data = &data;
    double begin = tn__now();
    assert_int_equal(tn_store_get(s, "never", &data, NULL, 0.1), TN_EPEER);
    assert_true(tn__now() - begin >= 0.1 && tn__now() - begin < 20);
    assert_none(data, TN_EPEER, "never");
    assert_fails(tn_store_get(s, "never", &data, NULL, 0), TN_EPEER, "");

    assert_int_equal(tn_store_set(s, "rank.1", "", 0), TN_OK);
    static const char *const names[] = {"rank.0", "rank.1", "rank.2"};
    assert_int_equal(tn_store_wait(s, names, 3, 0.1), TN_EPEER);
    assert_null(strstr(tn_error_message(), "\"rank.1\""));
    assert_contains(tn_error_message(), "\"rank.0\", \"rank.2\"");
    tn_error_clear();
    assert_int_equal(tn_store_wait(s, names + 1, 1, 0), TN_OK);
    assert_int_equal(tn_store_wait(s, NULL, 0, 0), TN_OK);

    static const double bad[] = {-1, NAN};
    for (int i = 0; i < 2; i++) {
        assert_fails(tn_store_get(s, "never", &data, NULL, bad[i]), TN_EVALUE, "time-out");
        assert_fails(tn_store_wait(s, names, 3, bad[i]), TN_EVALUE, "");
    }
    assert_int_equal(tn_store_get(s, "rank.1", &data, NULL, INFINITY), TN_OK);
    free(data);
    tn_store_free(s);
}

/* ---- At the same time ------------------------------------------------------------------------ */

enum { THREADS = 4, ROUNDS = 25 };

typedef struct worker {
    tn_store *store;
    int number;
    int won;
    bool failed;
    pthread_t thread;
} worker;

static void *add_and_race(void *user) {
    worker *w = user;
    char key[32];
    for (int i = 0; i < ROUNDS && !w->failed; i++) {
        int64_t sum;
        char mine[32];
        bool is_set;
        snprintf(key, sizeof(key), "race.%d", i);
        snprintf(mine, sizeof(mine), "thread.%d", w->number);
        w->failed = tn_store_add(w->store, "sum", w->number + 1, &sum) != TN_OK ||
                    tn_store_compare_set(w->store, key, NULL, mine, &is_set) != TN_OK;
        w->won += !w->failed && is_set;
    }
    tn_error_clear();
    return NULL;
}

STORES_TEST(test_threads) {
    tn_store *shared = open_store(p);
    worker w[THREADS];
    for (int i = 0; i < THREADS; i++) { /* two share a store, two have their own */
        w[i] = (worker){.store = i < 2 ? tn__store_keep(shared) : open_store(p), .number = i};
        assert_int_equal(pthread_create(&w[i].thread, NULL, add_and_race, &w[i]), 0);
    }
    int won = 0, sum = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(w[i].thread, NULL);
        assert_false(w[i].failed);
        won += w[i].won;
        sum += ROUNDS * (i + 1);
        tn_store_free(w[i].store);
    }
    assert_int_equal(won, ROUNDS);
    char text[32];
    snprintf(text, sizeof(text), "%d", sum);
    assert_text(shared, "sum", text);
    tn_store_free(shared);
}

static void *wait_for_go(void *user) {
    worker *w = user;
    void *data;
    w->failed = tn_store_get(w->store, "go", &data, NULL, 30) != TN_OK;
    w->won = !w->failed && strcmp(data, "now") == 0;
    free(data);
    tn_error_clear();
    return NULL;
}

/* Threads that wait in a store must not keep another thread from setting a key in the same
 * store. */
STORES_TEST(test_waiting) {
    tn_store *s = open_store(p);
    worker w[THREADS];
    for (int i = 0; i < THREADS; i++) {
        w[i] = (worker){.store = s, .number = i};
        assert_int_equal(pthread_create(&w[i].thread, NULL, wait_for_go, &w[i]), 0);
    }
    usleep(20000);
    double begin = tn__now();
    assert_int_equal(tn_store_set(s, "go", "now", 3), TN_OK);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(w[i].thread, NULL);
        assert_true(w[i].won);
    }
    assert_true(tn__now() - begin < 20);
    tn_store_free(s);
}

/* Each rank opens its own store. */
PLAIN_RANK(rank_of_store) {
    int rank = atoi(getenv("RANK")), ranks = atoi(getenv("WORLD_SIZE"));
    tn_store *s = ranks_store(argument);
    rank_assert(s != NULL);
    worker w = {.store = s, .number = rank};
    add_and_race(&w);
    rank_assert(!w.failed);
    char key[32];
    snprintf(key, sizeof(key), "won.%d", rank);
    rank_assert(tn_store_add(s, key, w.won, NULL) == TN_OK);
    int64_t won = 0;
    for (int i = 0; i < ranks; i++) {
        void *data;
        snprintf(key, sizeof(key), "won.%d", i);
        rank_assert(tn_store_get(s, key, &data, NULL, 30) == TN_OK);
        won += atoi(data);
        free(data);
    }
    rank_assert(won == ROUNDS);
    int64_t sum;
    rank_assert(tn_store_add(s, "sum", 0, &sum) == TN_OK && sum == ROUNDS * (1 + 2 + 3));
    rank_assert(tn_store_add(s, "done", 1, &sum) == TN_OK);
    while (sum < ranks) { /* no rank leaves before the last has come */
        usleep(2000);
        rank_assert(tn_store_add(s, "done", 0, &sum) == TN_OK);
    }
    tn_store_free(s);
    return 0;
}

PLAIN_TEST(test_processes) {
    ranks_pass(3, "rank_of_store", ranks_place());
}

/* ---- Arguments and memory -------------------------------------------------------------------- */

PLAIN_TEST(test_arguments) {
    bool truth;
    tn_store *s = tn_memory_store();
    assert_fails(tn_store_set(s, "k", NULL, 1), TN_EVALUE, "is NULL");
    assert_none(tn_tcp_store("localhost", 70000, TOKEN, 0), TN_EVALUE, "70000");
    assert_none(tn_tcp_store("localhost", 1, "", 0), TN_EVALUE, "token is empty");
    assert_null(tn_tcp_store("no\033[2J such\a host", 1, TOKEN, 0)); /* the message is printable */
    assert_none(strpbrk(tn_error_message(), "\033\a"), TN_EPEER, "unknown host no such? host");
    static const char *const addresses[] = {NULL, "0.0.0.0", "127.0.0.1"};
    for (int i = 0; i < 6; i++) { /* no server without a token, at any address */
        assert_none(tn_store_serve(addresses[i / 2], 0, i % 2 ? "" : NULL), TN_EVALUE,
                    i % 2 ? "token is empty" : "token is NULL");
    }
    /* With an error pending, these calls do nothing. */
    tn_raise(TN_EVALUE, "first");
    assert_int_equal(tn_store_set(s, "k", "", 0), TN_EVALUE);
    assert_null(tn_memory_store());
    assert_none(tn_store_serve(NULL, 0, TOKEN), TN_EVALUE, "first");
    assert_int_equal(tn_store_check(s, "k", &truth), TN_OK);
    assert_false(truth);
    tn_store_free(s);
}

/* Each allocation fails once: the call either succeeds or fails, and the store agrees with it. */
PLAIN_TEST(test_no_memory) {
    for (int64_t n = 0;; n++) {
        place p = place_new(MEMORY, true);
        tn_store *s = open_store(&p);
        bool is_set;
        tn__alloc_fail_at(n);
        tn_status status = tn_store_set(s, "a", "1", 1);
        int64_t sum = 1;
        if (status == TN_OK) { status = tn_store_add(s, "a", 1, &sum); }
        if (status == TN_OK) { status = tn_store_compare_set(s, "a", "2", "3", &is_set); }
        bool armed = tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
        bool failed = status != TN_OK;
        assert_true(failed ? status == TN_ENOMEM : armed);
        tn_error_clear();
        if (!failed) {
            assert_text(s, "a", "3");
        } else if (sum == 2) { /* compare_set failed: it is done or not, nothing else */
            int64_t now;
            assert_int_equal(tn_store_add(s, "a", 0, &now), TN_OK);
            assert_true(now == 2 || now == 3);
        }
        tn_store_free(s);
        place_free(&p);
        if (!failed) {
            assert_true(n >= 3);
            break;
        }
    }
}
