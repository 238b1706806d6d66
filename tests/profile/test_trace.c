/* Traces: the ring, concurrent readers and writers, and the file for viewers. */
#include "core/allocator.h"
#include "core/clock.h"
#include "profile/trace.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

enum { SAME = 400 };

typedef struct pair_event {
    tn__event event;
    uint64_t number, same[SAME]; /* so large that a torn copy is likely */
} pair_event;

static pair_event event_of(uint64_t number) {
    pair_event e = {.event = {.begin = 1, .end = 2}, .number = number};
    for (int i = 0; i < SAME; i++) {
        e.same[i] = number;
    }
    snprintf(e.event.name, sizeof(e.event.name), "%llu", (unsigned long long)number);
    return e;
}

static bool is_whole(const pair_event *e) {
    bool whole = strtoull(e->event.name, NULL, 10) == e->number;
    for (int i = 0; i < SAME; i++) {
        whole = whole && e->same[i] == e->number;
    }
    return whole;
}

/* ---- The ring -------------------------------------------------------------------------------- */

static tn__trace ring = TN__TRACE(pair_event, 10, NULL);

TEST(the_last_ones_stay) {
    pair_event e = {0};
    assert_false(tn__trace_next(&ring, &e.event));
    assert_false(tn__trace_get(&ring, 0, &e.event));
    assert_false(tn__trace_get(&ring, 1, &e.event));
    for (uint64_t i = 1; i <= 25; i++) {
        pair_event new = event_of(i);
        assert_int_equal(tn__trace_add(&ring, &new.event), i);
    }
    e = (pair_event){0};
    for (uint64_t i = 16; i <= 25; i++) {
        assert_true(tn__trace_next(&ring, &e.event));
        assert_int_equal(e.event.number, i);
        assert_int_equal(e.number, i);
        assert_true(is_whole(&e));
    }
    assert_false(tn__trace_next(&ring, &e.event));
    assert_false(tn__trace_get(&ring, 15, &e.event));
    assert_true(tn__trace_get(&ring, 16, &e.event));
    assert_false(tn__trace_get(&ring, 26, &e.event));
}

static tn__trace small = TN__TRACE(pair_event, 4, NULL);

TEST(an_event_ends_later) {
    pair_event first = event_of(1), e;
    first.event.end = 0;
    first.event.number = tn__trace_add(&small, &first.event);
    assert_true(tn__trace_get(&small, 1, &e.event));
    assert_true(e.event.end == 0);
    first.event.end = 7;
    tn__trace_change(&small, &first.event);
    assert_true(tn__trace_get(&small, 1, &e.event));
    assert_true(e.event.end == 7 && is_whole(&e));
    for (uint64_t i = 2; i <= 5; i++) {
        pair_event new = event_of(i);
        tn__trace_add(&small, &new.event);
    }
    tn__trace_change(&small, &first.event); /* its place has a newer event */
    assert_true(tn__trace_get(&small, 5, &e.event));
    assert_true(e.number == 5 && is_whole(&e));
}

/* ---- Concurrently ---------------------------------------------------------------------------- */

enum { WRITERS = 3, EACH = 20000 };
static tn__trace busy = TN__TRACE(pair_event, 8, NULL);

static void *write_many(void *to) {
    for (uint64_t i = 1; i <= EACH; i++) {
        pair_event e = event_of(i * WRITERS + (uint64_t)(uintptr_t)to);
        e.event.number = tn__trace_add(&busy, &e.event);
        e = event_of(e.number + 1000000);
        e.event.number = i; /* mostly overwritten by now */
        tn__trace_change(&busy, &e.event);
    }
    return NULL;
}

TEST(readers_find_whole_events) {
    pthread_t threads[WRITERS];
    for (uintptr_t i = 0; i < WRITERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, (void *)i), 0);
    }
    int torn = 0;
    pair_event e = {0};
    for (uint64_t last = 0; last < (uint64_t)WRITERS * EACH;) {
        if (tn__trace_next(&busy, &e.event)) {
            torn += !is_whole(&e) || e.event.number <= last;
            last = e.event.number;
        }
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(torn, 0);
}

static tn__trace held = TN__TRACE(pair_event, 4, NULL);
static int seen;

static void read_trace(int number) {
    pair_event e = {0};
    while (tn__trace_next(&held, &e.event)) {
        seen += is_whole(&e);
    }
}

/* It interrupts a writer, whose event is left out. */
TEST(a_signal_handler_may_read) {
    for (uint64_t i = 1; i <= 3; i++) {
        pair_event e = event_of(i);
        tn__trace_add(&held, &e.event);
    }
    uint64_t *stamp = &held.words[1 + held.event_words]; /* of the second */
    struct sigaction old, mine = {.sa_handler = read_trace};
    assert_int_equal(sigaction(SIGUSR2, &mine, &old), 0);
    pthread_mutex_lock(&held.lock);
    (*stamp)++;
    raise(SIGUSR2);
    assert_int_equal(seen, 2);
    (*stamp)++;
    raise(SIGUSR2);
    assert_int_equal(seen, 5);
    pthread_mutex_unlock(&held.lock);
    sigaction(SIGUSR2, &old, NULL);
}

/* ---- Texts ----------------------------------------------------------------------------------- */

TEST(texts_are_cut_between_characters) {
    char text[6];
    const char *const long_and_cut[][2] = {
        {NULL, ""},
        {"", ""},
        {"abcde", "abcde"},
        {"abcdef", "abcde"},
        {"abcdé", "abcd"},
        {"abcéf", "abcé"},
        {"ab€d", "ab€"},
        {"abc€", "abc"},
        {"a\U0001F600b", "a\U0001F600"},
        {"ab\U0001F600", "ab"},
    };
    for (size_t i = 0; i < sizeof(long_and_cut) / sizeof(*long_and_cut); i++) {
        tn__event_text(text, sizeof(text), long_and_cut[i][0]);
        assert_string_equal(text, long_and_cut[i][1]);
    }
}

/* ---- The file -------------------------------------------------------------------------------- */

static void name_pair(const tn__event *e, char *text, size_t size) {
    snprintf(text, size, "%s = %llu", e->name, (unsigned long long)((const pair_event *)e)->number);
}

static tn__trace named = TN__TRACE(pair_event, 4, name_pair);
static tn__trace plain = TN__TRACE(tn__event, 4, NULL);

TEST(a_file_of_two_traces) {
    tn__event said = {.process = 3, .begin = 12.0000005, .end = 12.25, .kind = "a \"kind\""};
    tn__event_text(said.thread, sizeof(said.thread), "row \\ 1");
    tn__event_text(said.name, sizeof(said.name), "say \"é\"\n\t\x7f/");
    tn__trace_add(&plain, &said);
    said.end = 0;
    tn__trace_add(&plain, &said); /* has no end yet: not in the file */
    said = (tn__event){.begin = NAN, .end = INFINITY, .name = "no time"};
    tn__trace_add(&plain, &said);
    pair_event e = event_of(5);
    tn__trace_add(&named, &e.event);
    const char *path = temp_path("two.json");
    const tn__trace *both[] = {&plain, &named};
    assert_int_equal(tn__trace_save(both, 2, 0, path, "test"), TN_OK);
    size_t bytes;
    char *text = (char *)temp_read(path, &bytes);
    assert_string_equal(
        text, "[\n"
              "{\"name\": \"say \\\"é\\\"  \x7f/\", \"cat\": \"a \\\"kind\\\"\", \"ph\": \"X\", "
              "\"pid\": 3, \"tid\": \"row \\\\ 1\", \"ts\": 12000000.500, \"dur\": 249999.500},\n"
              "{\"name\": \"no time\", \"ph\": \"X\", \"pid\": 0, \"tid\": \"\", \"ts\": 0.000, "
              "\"dur\": 0.000},\n"
              "{\"name\": \"5 = 5\", \"ph\": \"X\", \"pid\": 0, \"tid\": \"\", "
              "\"ts\": 1000000.000, \"dur\": 1000000.000}\n"
              "]\n");
    free(text);
    /* ends are rounded, not lengths: events that end together do so in the file, too */
    said = (tn__event){.begin = 1.0000000004, .end = 2.0000000006, .name = "l\xffong\xc3"};
    tn__trace_clear(&plain);
    tn__trace_add(&plain, &said);
    assert_int_equal(tn__trace_save(both, 1, 0, path, "test"), TN_OK);
    text = (char *)temp_read(path, &bytes);
    assert_string_equal(text, "[\n{\"name\": \"l?ong?\", \"ph\": \"X\", \"pid\": 0, \"tid\": \"\", "
                              "\"ts\": 1000000.000, \"dur\": 1000000.001}\n]\n");
    free(text);
    assert_int_equal(tn__trace_save(both, 1, 3, path, "test"), TN_OK); /* ended before 3 */
    text = (char *)temp_read(path, &bytes);
    assert_string_equal(text, "[\n]\n");
    free(text);
    assert_int_equal(tn__trace_save(NULL, 0, 0, path, "test"), TN_OK);
    text = (char *)temp_read(path, &bytes);
    assert_string_equal(text, "[\n]\n");
    free(text);
}

static tn__trace large = TN__TRACE(pair_event, 1000, NULL);

TEST(files_that_cannot_be) {
    const tn__trace *one[] = {&large};
    for (uint64_t i = 1; i <= 1000; i++) {
        pair_event e = event_of(i);
        tn__trace_add(&large, &e.event);
    }
    assert_int_equal(tn__trace_save(one, 1, 0, "/dev/null", "test"), TN_EIO);
    assert_error(TN_EIO, "test: /dev/null is not a regular file");
    assert_int_equal(tn__trace_save(one, 1, 0, "/nowhere/at/all", "test"), TN_EIO);
    assert_error(TN_EIO, "test: /nowhere/at/all.tmp: No such file");
    assert_int_equal(tn__trace_save(one, 1, 0, NULL, "test"), TN_EVALUE);
    assert_error(TN_EVALUE, "test: the path is NULL");
    tn__alloc_fail_at(0);
    assert_int_equal(tn__trace_save(one, 1, 0, temp_path("memory.json"), "test"), TN_ENOMEM);
    tn__alloc_fail_at(-1);
    assert_error(TN_ENOMEM, "no memory");
}

/* ---- Time ------------------------------------------------------------------------------------ */

TEST(deadlines_for_the_system) {
    double now = tn__now();
    assert_true(now > 0 && tn__now() >= now);
    struct timespec at = tn__timespec(2.25);
    assert_int_equal(at.tv_sec, 2);
    assert_int_equal(at.tv_nsec, 250000000);
    at = tn__timespec(-1);
    assert_true(at.tv_sec == 0 && at.tv_nsec == 0);
    assert_int_equal(tn__milliseconds_left(now - 1), 0);
    assert_int_equal(tn__milliseconds_left(1e300), 1000000000);
    int left = tn__milliseconds_left(tn__now() + 3600);
    assert_in_range(left, 1, 3600000);
}
