/* What users see: plots in text and as SVG, the progress line, and stopping on a signal. */
#define _GNU_SOURCE
#include "tern/train.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

/* What `show` writes, as text; the caller frees. */
static char *capture_text(void (*show)(FILE *file)) {
    char *text = NULL;
    size_t bytes = 0;
    const char *path = temp_path("capture");
    FILE *file = fopen(path, "w+b");
    show(file);
    fclose(file);
    text = (char *)temp_read(path, &bytes);
    return text;
}

static void set_locale(const char *name) {
    unsetenv("LC_ALL");
    unsetenv("LC_CTYPE");
    setenv("LANG", name, 1);
}

/* ---- Plots ----------------------------------------------------------------------------------- */

static const double ramp_x[] = {0, 1, 2, 3, 4}, ramp_y[] = {0, 1, 2, 3, 4};

static void show_ramp(FILE *file) {
    tn_curve c = {.name = "ramp", .x = ramp_x, .y = ramp_y, .count = 5};
    tn_plot p = {.title = "A ramp", .x_label = "x", .y_label = "y", .curves = &c, .count = 1};
    tn_plot_text(&p, file, 40, 12);
}

PLAIN_TEST(test_text_ascii) {
    set_locale("C");
    char *text = capture_text(show_ramp);
    static const char wanted[] = "         A ramp   y\n"
                                 "      4 |                        **\n";
    assert_memory_equal(text, wanted, sizeof(wanted) - 1);
    int rows = 0;
    for (char *c = text; *c; c++) {
        assert_true((unsigned char)*c < 0x80);
        rows += *c == '\n';
    }
    assert_int_equal(rows, 12);
    free(text);
}

PLAIN_TEST(test_text_braille) {
    set_locale("en_GB.UTF-8");
    char *text = capture_text(show_ramp);
    assert_contains(text, "\xe2\xa0"); /* U+28xx */
    assert_contains(text, "┤");
    free(text);
}

static void show_odd(FILE *file) {
    static const double x[] = {0, 1, 2, 3, 4, 5}, y[] = {NAN, 1, INFINITY, 1, -INFINITY, 1};
    static const double huge[] = {-1.7e308, 1.7e308, 0, 1e-320, -0.0, 5};
    tn_curve curves[] = {
        {.name = "odd", .x = x, .y = y, .count = 6}, {.x = x, .y = huge, .count = 6}, {.count = 0}};
    tn_plot p = {.curves = curves, .count = 1};
    tn_plot_text(&p, file, 10, 1); /* smaller than it can be */
    p.count = 3;
    tn_plot_text(&p, file, 100000, 30);
    p.curves = curves + 2;
    p.count = 1;
    tn_plot_text(&p, file, 40, 10);
    p.count = 0;
    tn_plot_text(&p, file, 40, 10);
    tn_plot_text(NULL, file, 40, 10);
}

PLAIN_TEST(test_odd_numbers) {
    set_locale("C");
    char *text = capture_text(show_odd);
    assert_contains(text, "no points");
    free(text);
    assert_int_equal(tn_error(), TN_OK);
}

static int count_of(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) {
        count++;
    }
    return count;
}

PLAIN_TEST(test_svg) {
    enum { POINTS = 100000 };
    double *x = malloc(POINTS * sizeof(double)), *y = malloc(POINTS * sizeof(double));
    for (int i = 0; i < POINTS; i++) {
        x[i] = i;
        y[i] = sin(i * 0.01) + (i == 500 ? NAN : 0);
    }
    tn_curve curves[] = {{.name = "a < b & \"c\"", .x = x, .y = y, .count = POINTS, .faint = true},
                         {.name = "ü\x01\xff", .x = ramp_x, .y = ramp_y, .count = 5},
                         {.name = NULL, .count = 0}};
    tn_plot p = {
        .title = "<script>", .x_label = "x", .y_label = "]]>", .curves = curves, .count = 3};
    const char *path = temp_path("plot.svg");
    assert_int_equal(tn_plot_svg(&p, path), TN_OK);
    size_t bytes;
    char *svg = (char *)temp_read(path, &bytes);
    assert_true(bytes < 100000); /* no more than the picture can show */
    assert_contains(svg, "&#60;script&#62;");
    assert_contains(svg, "a &#60; b &#38; &#34;c&#34;");
    assert_contains(svg, "ü??");
    assert_null(strstr(svg, "nan"));
    assert_null(strstr(svg, "inf"));
    /* the curve, and its line in the legend */
    assert_int_equal(count_of(svg, "<path class=\"c f\""), 2);
    assert_int_equal(count_of(svg, "<text"), count_of(svg, "</text>"));
    assert_int_equal(count_of(svg, "<svg"), 1);
    free(svg);
    assert_fails(tn_plot_svg(&p, "/nowhere/at/all"), TN_EIO, "");
    assert_fails(tn_plot_svg(NULL, path), TN_EVALUE, "");
    free(x);
    free(y);
}

/* ---- Progress -------------------------------------------------------------------------------- */

static void show_progress(FILE *file) {
    tn_progress *p = tn_progress_new(file, 10, 20, "tok");
    assert_true(tn_progress_median_ms(p) == 0);
    for (int64_t step = 10; step < 20; step++) {
        usleep(step == 15 ? 50000 : 2000);
        if (step == 15) { tn_progress_resume(p); }
        tn_progress_step(p, step, 1.25, 768);
    }
    double median = tn_progress_median_ms(p);
    assert_true(median > 1.9 && median < 500);
    tn_progress_free(p);
}

PLAIN_TEST(test_progress) {
    char *text = capture_text(show_progress);
    assert_memory_equal(text, "20/20   loss 1.2500   ", 22);
    assert_contains(text, "tok/s   0:00 left\n");
    assert_null(strchr(text, '\r')); /* a file is not a terminal */
    free(text);
    assert_null(tn_progress_new(NULL, 0, 1, "tok"));
    tn_error_clear();
    tn_progress_step(NULL, 0, 0, 0);
    tn_progress_resume(NULL);
    tn_progress_free(NULL);
    assert_true(tn_progress_median_ms(NULL) == 0);
}

/* ---- On a terminal --------------------------------------------------------------------------- */

/* What was read from a terminal's other end. */
typedef struct screen {
    int end;
    char *text;
    size_t bytes;
} screen;

static void *read_screen(void *user) {
    screen *s = user;
    FILE *kept = open_memstream(&s->text, &s->bytes);
    char piece[512];
    ssize_t got;
    while ((got = read(s->end, piece, sizeof(piece))) > 0) { /* EIO once the terminal is closed */
        fwrite(piece, 1, (size_t)got, kept);
    }
    fclose(kept);
    return NULL;
}

/* What `show` writes to a terminal of so many columns (0: one that does not say); the caller frees.
 */
static char *capture_terminal(int columns, void (*show)(FILE *file)) {
    setenv("TERM", "xterm", 1);
    screen s = {.end = posix_openpt(O_RDWR | O_NOCTTY)};
    if (s.end < 0 || grantpt(s.end) != 0 || unlockpt(s.end) != 0) { skip(); }
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    FILE *file = fopen(ptsname(s.end), "r+b");
    assert_non_null(file);
    assert_int_equal(ioctl(fileno(file), TIOCSWINSZ, &size), 0);
    pthread_t reader;
    assert_int_equal(pthread_create(&reader, NULL, read_screen, &s), 0);
    show(file);
    fclose(file);
    pthread_join(reader, NULL);
    close(s.end);
    return s.text;
}

/* The columns of the longest line: without colours; a multi-byte character counts once. */
static int widest_line(const char *text) {
    int most = 0, columns = 0;
    for (const char *c = text; *c; c++) {
        if (*c == '\033') {
            c += strcspn(c, "mK");
        } else if (*c == '\n' || *c == '\r') {
            columns = 0;
        } else {
            columns += ((unsigned char)*c & 0xc0) != 0x80;
        }
        most = columns > most ? columns : most;
    }
    return most;
}

static void show_two_curves(FILE *file) {
    enum { POINTS = 1500 };
    static double x[POINTS], y[POINTS];
    for (int i = 0; i < POINTS; i++) {
        x[i] = i;
        y[i] = 1.5 + 3 * exp(-i / 100.0);
    }
    tn_curve curves[] = {{.name = "each step", .x = x, .y = y, .count = POINTS},
                         {.name = "mean of 50 steps", .x = x, .y = y, .count = POINTS}};
    tn_plot p = {.title = "Training loss",
                 .x_label = "step",
                 .y_label = "nats per character",
                 .curves = curves,
                 .count = 2};
    tn_plot_text(&p, file, 80, 18);
}

PLAIN_TEST(test_plot_fits_terminal) {
    static const char *const locales[] = {"en_GB.UTF-8", "C"};
    static const int columns[] = {30, 31, 37, 40, 50, 60, 70, 79, 80, 81, 120};
    for (int i = 0; i < 22; i++) {
        set_locale(locales[i / 11]);
        int wide = columns[i % 11];
        char *text = capture_terminal(wide, show_two_curves);
        int most = widest_line(text), asked = wide < 80 ? wide : 80;
        if (most > asked || most < asked - 6) {
            fail_msg("%d of %d columns:\n%s", most, wide, text);
        }
        assert_contains(text, "mean of 50 steps");
        assert_contains(text, "nats per character");
        assert_contains(text, " step\r\n");
        free(text);
    }
    setenv("COLUMNS", "44", 1);
    char *text = capture_terminal(0, show_two_curves);
    assert_in_range(widest_line(text), 38, 44);
    free(text);
    text = capture_text(show_two_curves); /* not a terminal: the size that was asked for */
    assert_in_range(widest_line(text), 74, 80);
    free(text);
    unsetenv("COLUMNS");
}

static void show_long_progress(FILE *file) {
    tn_progress *p = tn_progress_new(file, 1000, 2000, "tok");
    tn_progress_utilisation(p, 1e6, 1e12);
    tn_progress_step(p, 1149, 1.6721, 768);
    tn_progress_free(p);
}

PLAIN_TEST(test_progress_fits_terminal) {
    set_locale("C");
    static const struct {
        int columns;
        const char *has, *lacks;
    } widths[] = {{10, "1150/2000", "loss"},
                  {24, "1150/2000   loss 1.6", " left"},
                  {40, "loss 1.6721", "MFU"},
                  {58, "loss 1.6721", "\r["},
                  {100, "MFU", "\n["}};
    for (int i = 0; i < 5; i++) {
        char *text = capture_terminal(widths[i].columns, show_long_progress);
        if (widest_line(text) >= widths[i].columns || !strstr(text, widths[i].has) ||
            strstr(text, widths[i].lacks)) {
            fail_msg("%d columns: %s", widths[i].columns, text);
        }
        free(text);
    }
    char *text = capture_terminal(100, show_long_progress);
    assert_contains(text, "\r[");
    free(text);
}

/* `tern run` shows the progress line of a rank whose stderr is its pipe. */
PLAIN_TEST(test_progress_of_a_rank) {
    set_locale("C");
    setenv("TERM", "xterm", 1);
    setenv("TERN_PROGRESS", "40", 1);
    int ends[2], own = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    show_long_progress(stderr);
    dup2(own, STDERR_FILENO);
    close(own);
    close(ends[1]);
    char drawn[512] = "";
    assert_true(read(ends[0], drawn, sizeof(drawn) - 1) > 0);
    close(ends[0]);
    assert_contains(drawn, "\r");
    assert_in_range(widest_line(drawn), 20, 39);
    char *text = capture_text(show_long_progress); /* another file */
    assert_null(strchr(text, '\r'));
    free(text);
    unsetenv("TERN_PROGRESS");
}

/* ---- Stopping -------------------------------------------------------------------------------- */

PLAIN_TEST(test_stop) {
    tn_stop_on_signals();
    assert_false(tn_stop_asked());
    raise(SIGINT);
    assert_true(tn_stop_asked());
    assert_int_equal(tn_stop_status(), 128 + SIGINT);
    struct sigaction now;
    sigaction(SIGINT, NULL, &now);
    assert_true(now.sa_handler == SIG_DFL); /* the second one ends the process */
    tn_stop_on_signals();
    assert_false(tn_stop_asked());
    assert_int_equal(tn_stop_status(), 128 + SIGTERM); /* another rank was asked */
    raise(SIGTERM);
    raise(SIGTERM); /* from Slurm and from the launcher */
    assert_int_equal(tn_stop_status(), 128 + SIGTERM);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
}
