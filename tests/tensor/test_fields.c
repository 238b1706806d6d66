/* Tables of fields: writing, reading back, ranges, and comparison. */
#include "tests/support/test.h"

#include "tensor/fields.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum colour { RED, GREEN, BLUE } colour;

typedef struct options {
    int count;
    int64_t wide, sizes[2];
    double real, share;
    bool on, off;
    colour colour;
    tn_dims dims;
    uint64_t seed;
    const char *text;
    char chars[8];
    tn_digest digest;
    double noise;
} options;

static const char *const colours[] = {"red", "green", "blue", NULL};
static const char *const ends[] = {"kept", "dropped", NULL};
static const tn_field fields[] = {
    TN_FIELD(options, count, .least = 1, .most = 9),
    TN_FIELD(options, wide),
    TN_FIELD(options, sizes),
    TN_FIELD(options, real),
    TN_FIELD_AS("part of all", options, share, .most = 0x1.fffffffffffffp-1),
    TN_FIELD(options, on),
    TN_FIELD_AS("ends", options, off, .names = ends),
    TN_FIELD(options, colour, .names = colours),
    TN_FIELD(options, dims),
    TN_FIELD(options, seed),
    TN_FIELD(options, text, .optional = true),
    TN_FIELD(options, chars, .unless = TN_UNLESS(options, off)),
    TN_FIELD(options, digest, .optional = true),
    TN_FIELD(options, noise, .training = true),
    {0},
};

static options options_usual(void) {
    return (options){.count = 3,
                     .wide = INT64_MIN,
                     .sizes = {-4, 5},
                     .real = 0.1,
                     .share = 1e-8,
                     .on = true,
                     .colour = BLUE,
                     .dims = TN_DIMS(2, 0),
                     .seed = UINT64_MAX,
                     .text = "say \"a, b; c\"\n\xc3\xa9",
                     .chars = "abc",
                     .noise = 0.5};
}

static char *written_text(const options *o, bool training) {
    tn__buffer j = {.operation = "test"};
    tn__members m = tn__members_begin(&j);
    tn__fields_put(&m, fields, o, training);
    tn__members_end(&m);
    return tn__buffer_take(&j);
}

static void expect_text(const options *o, bool training, const char *wanted) {
    char *text = written_text(o, training);
    assert_string_equal(text, wanted);
    free(text);
}

TEST(members_as_text) {
    options o = options_usual();
    expect_text(&o, false,
                "{\"count\":3,\"wide\":-9223372036854775808,\"sizes\":\"-4x5\",\"real\":0.1,"
                "\"part of all\":1e-08,\"on\":true,\"ends\":\"kept\",\"colour\":\"blue\","
                "\"dims\":\"2x0\",\"seed\":18446744073709551615,"
                "\"text\":\"say \\\"a, b; c\\\"\\n??\",\"chars\":\"abc\"}");
    expect_text(&o, true, "{\"noise\":0.5}");
    o.text = NULL;
    o.dims = TN_DIMS();
    o.off = true;
    o.on = false;
    o.real = INFINITY;
    o.share = -0.0;
    o.colour = (colour)7;
    strcpy(o.digest.text, "12ab");
    expect_text(&o, false,
                "{\"count\":3,\"wide\":-9223372036854775808,\"sizes\":\"-4x5\",\"real\":\"inf\","
                "\"part of all\":-0,\"on\":false,\"ends\":\"dropped\",\"colour\":7,"
                "\"seed\":18446744073709551615,\"digest\":\"12ab\"}");
}

TEST(names_that_are_there) {
    tn__buffer j = {.operation = "test"};
    tn__members all = tn__members_begin(&j);
    tn__member_name(&all, "inner");
    tn__members m = tn__members_begin(&j);
    for (int i = 0; i < 3; i++) {
        tn__member_put(&m, "crop", "\"crop\":", true);
        tn__member_put(&m, "op", "1", false);
    }
    tn__members_end(&m);
    tn__members_end(&all);
    char *text = tn__buffer_take(&j);
    assert_string_equal(text, "{\"inner\":{\"crop\":\"\\\"crop\\\":\",\"op\":1,\"crop 2\":"
                              "\"\\\"crop\\\":\",\"op 2\":1,\"crop 3\":\"\\\"crop\\\":\",\"op "
                              "3\":1}}");
    free(text);
}

static const tn_field *field_of(const char *name) {
    const tn_field *f = fields;
    while (strcmp(f->name, name) != 0) {
        f++;
    }
    return f;
}

TEST(values_read_back) {
    static const struct {
        const char *name, *text;
        bool read;
    } cases[] = {
        {"count", "9", true},
        {"count", "10", false},
        {"count", "0", false},
        {"count", "3.0", false},
        {"count", "", false},
        {"count", "3 ", false},
        {"wide", "-7", true},
        {"wide", " 7", false},
        {"wide", "+7", false},
        {"wide", "99999999999999999999", false},
        {"sizes", "1x2", false},
        {"real", "0x1.8p+1", true},
        {"real", "1e-05", true},
        {"real", "-2", true},
        {"real", "nan", false},
        {"real", "inf", false},
        {"real", "1e999", false},
        {"real", "1,5", false},
        {"part of all", "0.5", true},
        {"part of all", "1", false},
        {"on", "1", true},
        {"on", "true", true},
        {"on", "2", false},
        {"on", "yes", false},
        {"ends", "dropped", true},
        {"ends", "1", false},
        {"colour", "green", true},
        {"colour", "1", false},
        {"colour", "gre", false},
        {"seed", "18446744073709551615", true},
        {"seed", "-1", false},
        {"seed", "18446744073709551616", false},
        {"text", "a", false},
    };
    options o = {0};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (tn__field_read(field_of(cases[i].name), &o, cases[i].text) != cases[i].read) {
            fail_msg("%s \"%s\"", cases[i].name, cases[i].text);
        }
    }
    assert_true(tn__field_read(field_of("wide"), &o, "-7") && o.wide == -7);
    assert_true(tn__field_read(field_of("colour"), &o, "green") && o.colour == GREEN);
    assert_true(tn__field_read(field_of("ends"), &o, "dropped") && o.off);
    assert_true(tn__field_read(field_of("real"), &o, "0x1.8p+1") && o.real == 3);
    assert_true(tn__field_read(field_of("seed"), &o, "18446744073709551615"));
    assert_true(o.seed == UINT64_MAX);
}

static const tn_field state_fields[] = {
    TN_FIELD(options, real), TN_FIELD(options, wide, .most = 0x1p63), TN_FIELD(options, on), {0}};

static bool read_state(const char *text, options *o) {
    return !tn__fields_read_words(state_fields, o, &text) && !*text;
}

TEST(words_in_order) {
    options o = {.real = -2.5, .wide = INT64_MAX, .on = true}, back = {0};
    tn__buffer j = {.operation = "test"};
    tn__fields_put_words(&j, state_fields, &o);
    char *text = tn__buffer_take(&j);
    assert_string_equal(text, "-2.5 9223372036854775807 1");
    assert_true(read_state(text, &back));
    assert_true(back.real == o.real && back.wide == o.wide && back.on);
    free(text);
    assert_true(read_state("0x1p-3 4 0", &back));
    assert_true(back.real == 0.125 && back.wide == 4 && !back.on);
    static const char *const wrong[] = {"",
                                        "1",
                                        "1 2",
                                        "1 2 ",
                                        "1 2 1 ",
                                        " 1 2 1",
                                        "1  2 1",
                                        "1 2 1 0",
                                        "1 -2 1",
                                        "1 2 2",
                                        "x 2 1",
                                        "1 2.5 1",
                                        "1 00000000000000000000000000000000000000000000000002 1"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (read_state(wrong[i], &back)) { fail_msg("\"%s\"", wrong[i]); }
    }
}

TEST(ranges_are_checked) {
    static const tn_field wide[] = {
        TN_FIELD(options, real, .most = DBL_MAX),
        TN_FIELD(options, share, .least = -INFINITY),
        TN_FIELD(options, noise),
        {0},
    };
    char text[200];
    options o = options_usual();
    assert_true(tn__fields_fit(fields, &o, text, sizeof(text)));
    assert_true(tn__fields_fit(NULL, &o, text, sizeof(text)));
    o.share = 1;
    assert_false(tn__fields_fit(fields, &o, text, sizeof(text)));
    assert_string_equal(text, "part of all is 1 (0 to below 1)");
    o.count = 10;
    assert_false(tn__fields_fit(fields, &o, text, sizeof(text)));
    assert_string_equal(text, "count is 10 (1 to 9)");
    o.share = 0;
    assert_true(tn__fields_fit(wide, &o, text, sizeof(text)));
    o.noise = NAN;
    assert_false(tn__fields_fit(wide, &o, text, sizeof(text)));
    assert_string_equal(text, "noise is nan (a number)");
    o.share = 0.5;
    assert_false(tn__fields_fit(wide, &o, text, sizeof(text)));
    assert_string_equal(text, "share is 0.5 (at most 0)");
    o.real = INFINITY;
    assert_false(tn__fields_fit(wide, &o, text, sizeof(text)));
    assert_string_equal(text, "real is inf (at least 0)");
    tn__field_range(field_of("colour"), text, sizeof(text));
    assert_string_equal(text, "one of red, green, blue");
    tn__field_range(field_of("colour"), text, 12);
    assert_string_equal(text, "one of red,"); /* truncated to the buffer */
}
