/* A plot in characters. A braille character is 2 by 4 dots; without UTF-8 one character is one
 * dot. */
#include "core/error.h"
#include "core/memory.h"
#include "text/plain_numbers.h"
#include "train/show/axis.h"
#include "train/show/terminal.h"

#include <math.h>
#include <string.h>

/* A line's columns before the dots, and the least after them, for half a label. */
enum { LABEL = 9, BEHIND = 5, LEAST_COLUMNS = 24, LEAST_ROWS = 6, MOST = 1000 };

static const char *const colours[] = {"\033[36m", "\033[33m", "\033[35m",
                                      "\033[32m", "\033[31m", "\033[34m"};
enum { COLOURS = 6 };

/* The area inside the axes. */
typedef struct canvas {
    int columns, rows; /* characters */
    int across, down;  /* dots in one character */
    uint8_t *dots;     /* [rows * columns]: a bit per dot, in braille's order */
    uint8_t *curve;    /* [rows * columns]: which curve drew there last */
} canvas;

static void set_dot(canvas *c, int x, int y, int curve) {
    static const uint8_t bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    int at = y / c->down * c->columns + x / c->across;
    c->dots[at] |= bits[y % c->down][x % c->across];
    c->curve[at] = (uint8_t)curve;
}

static void draw_line(canvas *c, int x0, int y0, int x1, int y1, int curve) {
    int steps = abs(x1 - x0) > abs(y1 - y0) ? abs(x1 - x0) : abs(y1 - y0);
    for (int i = 0; i <= steps; i++) {
        double part = steps ? (double)i / steps : 0;
        set_dot(c, (int)lround(x0 + part * (x1 - x0)), (int)lround(y0 + part * (y1 - y0)), curve);
    }
}

static int dot_at(double value, double low, double high, int dots) {
    return (int)lround((value - low) / (high - low) * (dots - 1));
}

static void draw_curve(canvas *c, const tn_curve *curve, int number, const tn__axis *x,
                       const tn__axis *y) {
    int wide = c->columns * c->across, high = c->rows * c->down, before_x = -1, before_y = -1;
    for (int64_t i = 0; i < curve->count; i++) {
        if (!tn__drawable(curve->x[i], curve->y[i])) {
            before_x = -1;
            continue;
        }
        int at_x = dot_at(curve->x[i], x->low, x->high, wide);
        int at_y = high - 1 - dot_at(curve->y[i], y->low, y->high, high);
        draw_line(c, before_x < 0 ? at_x : before_x, before_x < 0 ? at_y : before_y, at_x, at_y,
                  number);
        before_x = at_x;
        before_y = at_y;
    }
}

static void print_cell(const canvas *c, int at, FILE *file) {
    if (c->dots[at] == 0) {
        fputc(' ', file);
    } else if (c->down == 1) {
        fputc("*+xo#@"[c->curve[at] % COLOURS], file);
    } else { /* U+2800 and eight bits */
        unsigned code = 0x2800u + c->dots[at];
        fputc((int)(0xe0 | code >> 12), file);
        fputc((int)(0x80 | (code >> 6 & 0x3f)), file);
        fputc((int)(0x80 | (code & 0x3f)), file);
    }
}

static void print_rows(const canvas *c, const tn__axis *y, bool colour, FILE *file) {
    bool utf8 = c->down > 1;
    for (int row = 0; row < c->rows; row++) {
        /* A row that contains a tick is labelled. */
        char label[32] = "";
        for (double tick = y->first; tick <= y->high + y->step * 1e-6; tick += y->step) {
            if (c->rows - 1 - dot_at(tick, y->low, y->high, c->rows) == row) {
                tn__axis_label(y, tick, label, sizeof(label));
            }
        }
        fprintf(file, "%*s %s", LABEL - 2, label, utf8 ? (*label ? "┤" : "│") : "|");
        int shown = -1;
        for (int column = 0; column < c->columns; column++) {
            int at = row * c->columns + column;
            if (colour && c->dots[at] && c->curve[at] != shown) {
                shown = c->curve[at];
                fputs(colours[shown % COLOURS], file);
            }
            print_cell(c, at, file);
        }
        fputs(shown >= 0 ? "\033[0m\n" : "\n", file);
    }
}

static void print_x_axis(const canvas *c, const tn__axis *x, const char *name, FILE *file) {
    bool utf8 = c->down > 1;
    char marks[MOST + 1], labels[MOST + LABEL + 40];
    memset(marks, '-', sizeof(marks));
    memset(labels, ' ', sizeof(labels));
    int free_from = 0;
    for (double tick = x->first; tick <= x->high + x->step * 1e-6; tick += x->step) {
        char text[32];
        tn__axis_label(x, tick, text, sizeof(text));
        int at = dot_at(tick, x->low, x->high, c->columns), length = (int)strlen(text);
        int from = LABEL + at - length / 2;
        marks[at] = '+';
        if (from >= free_from && from + length < LABEL + c->columns + BEHIND) {
            memcpy(labels + from, text, (size_t)length);
            free_from = from + length + 1;
        }
    }
    fprintf(file, "%*s%s", LABEL - 1, "", utf8 ? "└" : "+");
    for (int i = 0; i < c->columns; i++) {
        fputs(!utf8 ? (marks[i] == '+' ? "+" : "-") : marks[i] == '+' ? "┬" : "─", file);
    }
    int used = free_from > 0 ? free_from - 1 : 0;
    bool fits = used + 2 + tn__text_columns(name) <= LABEL + c->columns + BEHIND;
    fprintf(file, "\n%.*s", used, labels);
    if (name && !fits) { fprintf(file, "\n%*s", LABEL - 2, ""); }
    fprintf(file, "%s%s\n", name ? "  " : "", name ? name : "");
}

/* Begins a new line, below the title, if `wide` more columns do not fit on this one. */
static int wrap_line(const canvas *c, int used, int wide, FILE *file) {
    if (used > LABEL && used + wide > LABEL + c->columns + BEHIND) {
        fprintf(file, "\n%*s", LABEL - 3, "");
        used = LABEL - 3;
    }
    return used + wide;
}

/* Names of several curves have the curves' colours, or follow their marks if dots are
 * characters. */
static void print_head(const canvas *c, const tn_plot *plot, bool colour, FILE *file) {
    fprintf(file, "%*s%s", LABEL, "", plot->title ? plot->title : "");
    int used = LABEL + tn__text_columns(plot->title);
    if (plot->y_label) {
        used = wrap_line(c, used, 3 + tn__text_columns(plot->y_label), file);
        fprintf(file, "   %s", plot->y_label);
    }
    for (int i = 0; plot->count > 1 && i < plot->count; i++) {
        const char *name = plot->curves[i].name ? plot->curves[i].name : "";
        char mark[] = {"*+xo#@"[i % COLOURS], ' ', 0};
        bool marked = c->down == 1;
        used = wrap_line(c, used, 3 + 2 * marked + tn__text_columns(name), file);
        fprintf(file, "   %s%s%s%s", colour ? colours[i % COLOURS] : "", marked ? mark : "", name,
                colour ? "\033[0m" : "");
    }
    fputc('\n', file);
}

static int clamp_between(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

static void print_plot(const tn_plot *plot, canvas *c, FILE *file) {
    tn__axis x, y;
    bool colour = tn__is_terminal(file);
    if (!tn__plot_axes(plot, c->columns / 12, c->rows / 3, &x, &y)) {
        fprintf(file, "%s: no points\n", plot->title ? plot->title : "plot");
        return;
    }
    for (int i = 0; i < plot->count; i++) {
        draw_curve(c, &plot->curves[i], i, &x, &y);
    }
    print_head(c, plot, colour, file);
    print_rows(c, &y, colour, file);
    print_x_axis(c, &x, plot->x_label, file);
}

void tn_plot_text(const tn_plot *plot, FILE *file, int columns, int rows) {
    if (!plot || !file || !tn__plot_fits(plot, "plot_text")) { return; }
    bool utf8 = tn__shows_utf8();
    int most = tn__terminal_columns(file);
    columns = clamp_between(columns < most ? columns : most, LEAST_COLUMNS, MOST);
    canvas c = {.columns = columns - LABEL - BEHIND,
                .rows = clamp_between(rows, LEAST_ROWS, MOST) - 3,
                .across = utf8 ? 2 : 1,
                .down = utf8 ? 4 : 1};
    size_t cells = (size_t)c.columns * (size_t)c.rows;
    c.dots = tn__calloc_for(cells, 2, "plot_text");
    if (!c.dots) { return; }
    c.curve = c.dots + cells;
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    print_plot(plot, &c, file);
    tn__plain_numbers_end(numbers);
    free(c.dots);
}
