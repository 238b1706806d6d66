/* Tables of text as datasets: errors in a file name the place, and running out of memory leaks
 * nothing. test_table_values.py compares values. */
#include "tern/data.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "tests/data/examples.h"
#include "tests/support/fail_malloc.h"
#include "tests/support/temp.h"

static const char *write_text(const char *text) {
    const char *path = temp_path("table");
    temp_write(path, text, strlen(text));
    return path;
}

static tn_dataset *csv_of(const char *text) {
    return tn_csv_dataset(write_text(text), tn_csv_defaults());
}

static void refuse_csv(const char *text, const char *part) {
    assert_none(csv_of(text), TN_EFORMAT, part);
}

TEST(a_wrong_table_names_its_place) {
    refuse_csv("", "has no row");
    refuse_csv("a,b\n", "has no row");
    refuse_csv("a,b\n1,x\n2\n", "table: line 3 has 1 fields, the first has 2");
    refuse_csv("a,b\n1,x\n2,x,y\n", "line 3 has 3 fields, the first has 2");
    refuse_csv("a,b\n1,x\n\n\"2 \"\"\nand\",y\n3,z\n",
               "line 4, column 0 (a): \"2 \"\nand\" is not a number");
    refuse_csv("a,b\n0x10,x\n", "line 2, column 0 (a): \"0x10\" is not a number");
    refuse_csv("a,b\nnan(7),x\n", "\"nan(7)\" is not a number");
    refuse_csv("a,b\n1 2,x\n", "\"1 2\" is not a number");
    refuse_csv("a,b\n?,x\n", "\"?\" is a missing value");
    refuse_csv("a,b\n1,\n", "line 2, column 1 (b): \"\" is a missing value");
    refuse_csv("a,b\n1,\"x\n2,y\n", "line 2, column 1: quotes that do not end");
    refuse_csv("a,b\n\"1\"2,y\n", "line 2, column 0: there is something between");
    refuse_csv("a,b\n\"1\n\"2,y\n", "line 3, column 0: there is something between");
    temp_write(temp_path("table"), "a,b\n1,x\n2,\0\n", 12);
    assert_none(tn_csv_dataset(temp_path("table"), tn_csv_defaults()), TN_EFORMAT,
                "table is binary");
    assert_none(tn_csv_dataset(temp_path("nowhere"), tn_csv_defaults()), TN_EIO,
                "nowhere: No such file");
}

/* A quote that never ends, in a small file that unpacks to very many lines. */
TEST(an_endless_record) {
    const char *path = temp_path("endless.gz");
    gzFile out = gzopen(path, "wb1");
    static char lines[1 << 20];
    memset(lines, 'x', sizeof(lines));
    lines[sizeof(lines) - 1] = '\n';
    gzputs(out, "a,b\n1,\"");
    for (int i = 0; i < 65; i++) {
        gzwrite(out, lines, sizeof(lines));
    }
    gzclose(out);
    assert_none(tn_csv_dataset(path, tn_csv_defaults()), TN_EFORMAT,
                "the record that begins in line 2 has more than 67108864 bytes");
}

TEST(a_zero_far_behind) {
    enum { ROWS = 3000, BYTES = 4 * ROWS };
    static char text[BYTES];
    for (int i = 0; i < ROWS; i++) {
        memcpy(text + 4 * i, "1,x\n", 4);
    }
    text[4 * 2500 + 2] = 0;
    temp_write(temp_path("table"), text, BYTES);
    assert_none(tn_csv_dataset(temp_path("table"), tn_csv_defaults()), TN_EFORMAT,
                "line 2501 has a zero byte");
}

static void refuse_columns(tn_csv_options o, const char *part) {
    assert_none(tn_csv_dataset(write_text("a,b,b,3\n1,2,3,x\n"), o), TN_EVALUE, part);
}

TEST(columns_that_are_not_there) {
    tn_csv_options o = TN_WITH(tn_csv, .target = "c");
    refuse_columns(o, "table has no column \"c\" among its 4: \"a\", \"b\", \"b\", \"3\"");
    o.target = "4";
    refuse_columns(o, "no column \"4\"");
    o.target = "-5";
    refuse_columns(o, "no column \"-5\"");
    o.target = "";
    refuse_columns(o, "no column \"\"");
    o.target = "b";
    refuse_columns(o, "columns 1 and 2 are both \"b\"");
    o.target = "3"; /* a name, before a number */
    o.features = (const char *const[]){"0", "3", NULL};
    refuse_columns(o, "column \"3\" is a feature and the target");
    o.features = (const char *const[]){NULL};
    refuse_columns(o, "no column for x");
    o = tn_csv_defaults();
    o.delimiter = '"';
    refuse_columns(o, "the delimiter");
}

TEST(classes_that_are_given) {
    tn_csv_options o = tn_csv_defaults();
    o.classes = (const char *const[]){"no", "yes", "perhaps", NULL};
    tn_dataset *d = tn_csv_dataset(write_text("a,b\n1,yes\n2,no\n"), o);
    assert_non_null(d);
    int64_t y;
    example_x(d, 0, &y);
    assert_int_equal(y, 1);
    assert_string_equal(d->classes[2], "perhaps");
    assert_null(d->classes[3]);
    tn_dataset_free(d);
    assert_none(tn_csv_dataset(write_text("a,b\n1,yes\n2,No\n"), o), TN_EFORMAT,
                "line 3, column 1 (b): \"No\" is not one of the classes");
    o.classes = (const char *const[]){"no", "no", NULL};
    assert_none(tn_csv_dataset(temp_path("table"), o), TN_EVALUE, "class \"no\" occurs twice");
}

TEST(other_tables_are_noticed) {
    static const char *const tables[] = {"a,b\n1,x\n2,y\n", "a,b\n1,y\n2,x\n", "a,b\n1,x\n3,y\n"};
    identity text[3];
    for (int i = 0; i < 3; i++) {
        text[i] = identify_and_free(csv_of(tables[i]));
    }
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(text[i].text, text[k].text);
        }
    }
}

static void write_gz(const char *name, const char *text) {
    gzFile file = gzopen(temp_path(name), "wb");
    assert_int_equal(gzwrite(file, text, (unsigned)strlen(text)), strlen(text));
    assert_int_equal(gzclose(file), Z_OK);
}

/* Members of a gzip file, and zeros, which archives are padded with; anything else is an error. */
TEST(what_follows_a_compressed_table) {
    const char *path = temp_path("t.csv.gz");
    write_gz("t.csv.gz", "a,b\n1,x\n");
    check_threads(tn_csv_dataset(path, tn_csv_defaults()));
    size_t bytes;
    unsigned char *gz = temp_read(path, &bytes);
    enum { PADDED = 200000 };
    unsigned char *all = calloc(1, 2 * bytes + PADDED + 1);
    memcpy(all, gz, bytes);
    for (size_t zeros = 1; zeros <= PADDED; zeros = zeros * 5 + 1) {
        temp_write(path, all, bytes + zeros);
        tn_dataset *d = tn_csv_dataset(path, tn_csv_defaults());
        assert_non_null(d);
        assert_int_equal(d->size, 1);
        tn_dataset_free(d);
    }
    memcpy(all + bytes + 100, gz, bytes); /* a second table, and its header */
    temp_write(path, all, 2 * bytes + 100);
    assert_none(tn_csv_dataset(path, tn_csv_defaults()), TN_EFORMAT,
                "line 3, column 0 (a): \"a\" is not a number");
    static const char *const others[] = {"x", "garbage", "\n", "\r\n"};
    for (int i = 0; i < 4; i++) {
        char part[64];
        memcpy(all + bytes, others[i], strlen(others[i]));
        temp_write(path, all, bytes + strlen(others[i]));
        assert_null(tn_csv_dataset(path, tn_csv_defaults()));
        snprintf(part, sizeof(part), "its gzip data end at byte %zu, but something else", bytes);
        assert_error(TN_EFORMAT, part);
    }
    free(all);
    free(gz);
}

/* "\n", "\r\n" and "\r" end a line, wherever the buffer ends; within quotes they stay. */
TEST(ends_of_lines) {
    static const char *const ends[] = {"\n", "\r\n", "\r"};
    enum { ROWS = 20000, MOST = ROWS * 16 };
    char *text = malloc(MOST);
    for (int e = 0; e < 4; e++) { /* the last is a mixture */
        for (size_t shift = 0; shift < 8; shift++) {
            size_t at = (size_t)sprintf(text, "%.*s,b%s", (int)shift + 1, "aaaaaaaa", ends[e % 3]);
            for (int i = 0; i < ROWS; i++) {
                at += (size_t)sprintf(text + at, "%d,x%s", i, ends[e == 3 ? i % 3 : e]);
            }
            tn_dataset *d = csv_of(text);
            float x[1];
            int64_t y;
            assert_non_null(d);
            assert_int_equal(d->size, ROWS);
            for (int i = 0; i < ROWS; i += 997) {
                assert_int_equal(tn_dataset_get(d, i, x, &y), TN_OK);
                assert_true(x[0] == (float)i);
            }
            tn_dataset_free(d);
        }
    }
    free(text);
    tn_dataset *d = csv_of("a,b\r1,\"x\ry\"\r\r2,\"x\r\ny\"\r3,\"x\ny\"");
    assert_non_null(d);
    assert_int_equal(d->size, 3);
    assert_string_equal(d->classes[0], "x\ny");
    assert_string_equal(d->classes[1], "x\r\ny");
    assert_string_equal(d->classes[2], "x\ry");
    tn_dataset_free(d);
    refuse_csv("a,b\r1,x\r2\r", "line 3 has 1 fields");
    assert_none(csv_of("a;b\n1;x\n"), TN_EVALUE, "its first line has 1 field, with ',' between");
}

TEST(threads_read_rows) {
    check_threads(csv_of("a,b,c\n1,2,x\n3,4,y\n5,6,x\n7,8,z\n9,10,x\n"));
}

TEST(numbers_have_a_point_in_every_locale) {
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8") && !setlocale(LC_NUMERIC, "fr_FR.UTF-8")) { skip(); }
    tn_dataset *d = csv_of("a,b\n1.5,x\n");
    setlocale(LC_NUMERIC, "C");
    assert_non_null(d);
    assert_true(*(const float *)example_x(d, 0, NULL) == 1.5f);
    tn_dataset_free(d);
}

static void free_made(tn_dataset *d) {
    assert_true(d || tn_error() != TN_OK);
    tn_dataset_free(d);
}

static void read_csv(void) {
    free_made(tn_csv_dataset(temp_path("t.csv.gz"), tn_csv_defaults()));
}

TEST(memory_that_runs_out) {
    write_gz("t.csv.gz", "a,b\n1,x\n2,\"y\n\"\n3,x\n");
    every_malloc(read_csv, 1, NULL);
}
