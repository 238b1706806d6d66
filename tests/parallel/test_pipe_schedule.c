/* Schedules of pipelines, simulated: published figures, and what cannot run. */
#include "tests/support/test.h"

#include <tern/tern.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static tn_pipe_outcome outcome_of(tn_pipe_kind kind, int ranks, int chunks, int micros,
                                  tn_pipe_cost cost) {
    tn_pipe_schedule *s = tn_pipe_schedule_new(kind, ranks, chunks, micros);
    assert_non_null(s);
    tn_pipe_outcome o;
    assert_int_equal(tn_pipe_simulate(s, cost, &o, NULL), TN_OK);
    tn_pipe_schedule_free(s);
    return o;
}

static const tn_pipe_cost even = {1, 1, 1, 0};

/* (P - 1) / (M + P - 1) of the time, divided by the chunks where there are several. */
TEST(bubbles_are_the_published) {
    for (int ranks = 1; ranks <= 8; ranks++) {
        for (int micros = 1; micros <= 17; micros++) {
            double P = ranks, M = micros, bubble = (P - 1) / (M + P - 1);
            tn_pipe_outcome a = outcome_of(TN_PIPE_1F1B, ranks, 1, micros, even);
            tn_pipe_outcome b = outcome_of(TN_PIPE_GPIPE, ranks, 1, micros, even);
            assert_float_equal(a.bubble, bubble, 1e-12);
            assert_float_equal(b.bubble, bubble, 1e-12);
            assert_float_equal(a.seconds, 3 * (M + P - 1), 1e-9);
            assert_int_equal(a.alive, micros < ranks ? micros : ranks);
            assert_int_equal(b.alive, micros);
            for (int chunks = 2; chunks <= 4 && micros % ranks == 0; chunks++) {
                double v = chunks;
                tn_pipe_outcome c = outcome_of(TN_PIPE_INTERLEAVED, ranks, chunks, micros,
                                               (tn_pipe_cost){1 / v, 1 / v, 1 / v, 0});
                assert_float_equal(c.bubble, (P - 1) / v / (M + (P - 1) / v), 1e-12);
            }
        }
    }
}

/* ZB-H1 has a third of 1F1B's bubble where its three parts cost the same (its paper, table 1), and
 * no more graphs. */
TEST(zero_bubble_has_a_third) {
    for (int ranks = 2; ranks <= 8; ranks++) {
        for (int micros = 2 * ranks; micros <= 4 * ranks; micros += ranks) {
            double P = ranks, M = micros;
            tn_pipe_outcome o = outcome_of(TN_PIPE_ZERO_BUBBLE, ranks, 1, micros, even);
            assert_float_equal(o.bubble, (P - 1) / (3 * M + P - 1), 1e-12);
            assert_true(o.alive <= ranks);
        }
    }
}

TEST(links_take_time) {
    tn_pipe_outcome o = outcome_of(TN_PIPE_GPIPE, 2, 1, 1, (tn_pipe_cost){1, 2, 3, 0.5});
    assert_float_equal(o.seconds, 1 + 0.5 + 1 + 5 + 0.5 + 5, 1e-12);
    assert_float_equal(o.bubble, 1 - 12 / (2 * 13.0), 1e-12);
}

/* ---- Drawing --------------------------------------------------------------------------------- */

static char *drawing_of(tn_pipe_schedule *s, tn_pipe_cost cost) {
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(tn_pipe_simulate(s, cost, NULL, f), TN_OK);
    fclose(f);
    tn_pipe_schedule_free(s);
    return text;
}

TEST(courses_are_drawn) {
    char *text =
        drawing_of(tn_pipe_schedule_new(TN_PIPE_1F1B, 2, 1, 3), (tn_pipe_cost){1, 1, 0, 0});
    assert_string_equal(text, "rank 0  F0  F1   .  B0  F2  B1   .  B2\n"
                              "rank 1   .  F0  B0  F1  B1  F2  B2   .\n");
    free(text);
    text = drawing_of(tn_pipe_schedule_read("F0.0 B0.0\n F1.0 B1.0"), even);
    assert_string_equal(text, "rank 0  F0   .   .   .  B0 ===\n"
                              "rank 1   .  F0  B0 ===   .   .\n");
    free(text);
}

/* A backward that is next to nothing would make a column a millionth of a forward. */
TEST(wide_courses_are_cut) {
    for (double cost = 1e-6; cost > 0; cost *= 1e-100) {
        char *text =
            drawing_of(tn_pipe_schedule_new(TN_PIPE_1F1B, 2, 1, 3), (tn_pipe_cost){1, cost, 0, 0});
        assert_int_equal(strlen(text), 2 * (strlen("rank 0\n") + 4 * 400));
        free(text);
    }
}

/* ---- From text ------------------------------------------------------------------------------- */

TEST(texts_are_read) {
    tn_pipe_schedule *s = tn_pipe_schedule_read("F0.0 F2.0  F0.1 F2.1 B2.0 B2.1 B0.0 B0.1\r\n"
                                                "F1.0 F3.0 B3.0 F1.1 F3.1 B3.1 B1.0 I1.1 W1.1\n\n");
    assert_non_null(s);
    assert_int_equal(s->ranks, 2);
    assert_int_equal(s->stages, 4);
    assert_int_equal(s->micros, 2);
    assert_int_equal(s->counts[0], 8);
    assert_int_equal(s->counts[1], 9);
    tn_pipe_action a = s->rows[1][8];
    assert_true(a.what == 'W' && a.stage == 1 && a.micro == 1);
    tn_pipe_outcome o;
    assert_int_equal(tn_pipe_simulate(s, even, &o, NULL), TN_OK);
    assert_int_equal(o.alive, 4);
    tn_pipe_schedule_free(s);
}

TEST(wrong_texts_are_refused) {
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "the text has no actions"},
        {"\n \n", "the text has no actions"},
        {"F0.0 X0.0", "action 1 of rank 0 is \"X0.0\""},
        {"F0.0 B0", "line 1: \"B0\" is no action"},
        {"F0.-1 B0.0", "\"F0.-1\""},
        {"F0.0 B0.0x", "\"B0.0x\" is no action"},
        {"F99999999.0", "is no action"},
        {"F0.0 F1.0 B1.0 B0.0\nF0.1", "action 1 of rank 0 is \"F1.0\""},
        {"F0.0 B0.0\nF1.0 B1.0\nF2.0", "stage 2, micro-batch 0: 1 times F, 0 B"},
        {"F0.0 B0.0\n F0.99999 F0.9999999", "line 2: \"F0.9999999\" is no action"},
        {"F0.0 F0.0 B0.0", "stage 0, micro-batch 0: 2 times F, 1 B"},
        {"F0.0 B0.0 I0.0", "1 B, 1 I, 0 W"},
        {"F0.0 F0.1 B0.0 B0.1\nF1.0 B1.0", "stage 1, micro-batch 1: 0 times F"},
        {"F0.0 B0.0 F2.0 B2.0\nF1.0 B1.0", "2 ranks, 3 stages and 1 micro-batches"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_none(tn_pipe_schedule_read(cases[i].text), TN_EVALUE, cases[i].error);
    }
    assert_none(tn_pipe_schedule_read(NULL), TN_EVALUE, "the text is NULL");
    assert_none(tn_pipe_schedule_new(TN_PIPE_1F1B, 2, 2, 4), TN_EVALUE,
                "chunks is 2 (more than one stage a rank only with TN_PIPE_INTERLEAVED)");
    assert_none(tn_pipe_schedule_new(TN_PIPE_INTERLEAVED, 2, 2, 3), TN_EVALUE,
                "3 micro-batches are not a multiple of 2 ranks");
    assert_none(tn_pipe_schedule_new(TN_PIPE_GPIPE, 0, 1, 3), TN_EVALUE,
                "ranks is 0 (it must be at least 1)");
    assert_none(tn_pipe_schedule_new(TN_PIPE_INTERLEAVED, 1 << 16, 1 << 16, 1 << 16), TN_EVALUE,
                "65536 stages each and 65536 micro-batches are too many");
    assert_none(tn_pipe_schedule_new(TN_PIPE_INTERLEAVED, 1, 1 << 16, 1 << 16), TN_EVALUE,
                "too many");
    assert_none(tn_pipe_schedule_new((tn_pipe_kind)9, 1, 1, 1), TN_EVALUE,
                "kind is 9 (it must be 0 to 3)");
}

/* A row's actions, changed by hand. */
TEST(structs_are_checked) {
    static const struct {
        tn_pipe_action first; /* of rank 1, instead of F1.0 */
        int stages, count;    /* count: of rank 1, instead of 4 */
        const char *error;
    } cases[] = {
        {{'F', 1, 1}, 2, 4, "stage 1, micro-batch 0: 0 times F, 1 B"},
        {{'B', 1, 0}, 2, 4, "stage 1, micro-batch 0: 0 times F, 2 B"},
        {{'F', 1, 0}, 2, 3, "stage 1, micro-batch 1: 1 times F, 0 B"},
        {{'F', 0, 0}, 2, 4, "action 0 of rank 1 is \"F0.0\""},
        {{'F', 3, 0}, 2, 4, "action 0 of rank 1 is \"F3.0\""},
        {{'F', -1, 0}, 2, 4, "action 0 of rank 1 is \"F-1.0\""},
        {{'F', 1, 2}, 2, 4, "action 0 of rank 1 is \"F1.2\""},
        {{'F', 1, -1}, 2, 4, "action 0 of rank 1 is \"F1.-1\""},
        {{'X', 1, 0}, 2, 4, "action 0 of rank 1 is \"X1.0\""},
        {{'\0', 1, 0}, 2, 4, "action 0 of rank 1 is \"?1.0\""},
        {{'F', 1, 0}, 3, 4, "2 ranks, 3 stages and 2 micro-batches"},
        {{'F', 1, 0}, 1 << 30, 4, "stage 2, micro-batch 0: 0 times F"},
        {{'F', 1, 0}, 2, -1, "a row for each rank"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        tn_pipe_schedule *s = tn_pipe_schedule_new(TN_PIPE_1F1B, 2, 1, 2);
        s->rows[1][0] = cases[i].first;
        s->stages = cases[i].stages;
        s->counts[1] = cases[i].count;
        tn_pipe_simulate(s, (tn_pipe_cost){1, 1, 1, 0}, NULL, NULL);
        assert_error(TN_EVALUE, cases[i].error);
        tn_pipe_schedule_free(s);
    }
}

TEST(what_cannot_end_is_named) {
    tn_pipe_schedule *s = tn_pipe_schedule_read("F0.0 B0.0 F0.1 B0.1\nF1.1 B1.1 F1.0 B1.0");
    assert_fails(tn_pipe_simulate(s, even, NULL, NULL), TN_ESTATE,
                 "rank 0 at B0.0, rank 1 at F1.1 wait for each other");
    assert_fails(tn_pipe_simulate(s, (tn_pipe_cost){-1, 1, 1, 0}, NULL, NULL), TN_EVALUE,
                 "below 0");
    assert_fails(tn_pipe_simulate(s, (tn_pipe_cost){1, 1, (double)NAN, 0}, NULL, NULL), TN_EVALUE,
                 "not a number");
    assert_fails(tn_pipe_simulate(NULL, even, NULL, NULL), TN_EVALUE, "NULL");
    tn_pipe_schedule_free(s);
    tn_pipe_schedule_free(NULL);
    s = tn_pipe_schedule_read("F0.0 W0.0 I0.0"); /* the weights' half first */
    assert_fails(tn_pipe_simulate(s, even, NULL, NULL), TN_ESTATE, "rank 0 at W0.0");
    tn_pipe_schedule_free(s);
}
