/* A plot as an SVG picture: light background, grid, ticks, legend. */
#include "core/error.h"
#include "core/file.h"
#include "text/utf8.h"
#include "text/plain_numbers.h"
#include "train/show/axis.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 760, HEIGHT = 420, LEFT = 70, RIGHT = 24, TOP = 48, BOTTOM = 56 };
enum { WIDE = WIDTH - LEFT - RIGHT, HIGH = HEIGHT - TOP - BOTTOM };

static const char *const colours[] = {"#2a6fbb", "#d9622b", "#3a9a5b",
                                      "#8a5bb5", "#b8860b", "#c23b4e"};
enum { COLOURS = 6 };

/* Escapes text for XML; what is not a character becomes '?'. */
static void put_text(tn__file *out, const char *text) {
    size_t bytes = text ? strlen(text) : 0;
    for (size_t at = 0; at < bytes;) {
        int32_t code;
        int used = tn__utf8_decode(text + at, bytes - at, &code);
        if (!used || code < 0x20 || code == 0xfffe || code == 0xffff) {
            tn__file_put(out, "?", 1);
        } else if (strchr("&<>\"'", code) && code < 0x80) {
            tn__file_print(out, "&#%d;", (int)code);
        } else {
            tn__file_put(out, text + at, (size_t)used);
        }
        at += used ? (size_t)used : 1;
    }
}

static double place_x(const tn__axis *x, double value) {
    return LEFT + (value - x->low) / (x->high - x->low) * WIDE;
}

static double place_y(const tn__axis *y, double value) {
    return TOP + HIGH - (value - y->low) / (y->high - y->low) * HIGH;
}

static void put_grid(tn__file *out, const tn__axis *x, const tn__axis *y) {
    char label[32];
    for (double tick = x->first; tick <= x->high + x->step * 1e-6; tick += x->step) {
        double at = place_x(x, tick);
        tn__axis_label(x, tick, label, sizeof(label));
        tn__file_print(out,
                       "<path class=\"g\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" "
                       "text-anchor=\"middle\">%s</text>\n",
                       at, TOP, TOP + HIGH, at, TOP + HIGH + 18, label);
    }
    for (double tick = y->first; tick <= y->high + y->step * 1e-6; tick += y->step) {
        double at = place_y(y, tick);
        tn__axis_label(y, tick, label, sizeof(label));
        tn__file_print(out,
                       "<path class=\"g\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" "
                       "text-anchor=\"end\">%s</text>\n",
                       LEFT, at, LEFT + WIDE, LEFT - 8, at + 4, label);
    }
    tn__file_print(out, "<path class=\"a\" d=\"M%d %dV%dH%d\"/>\n", LEFT, TOP, TOP + HIGH,
                   LEFT + WIDE);
}

/* All points within half a pixel's width are one vertical stroke: first, lowest, highest, last. */
typedef struct stroke {
    double x, first, low, high, last;
    bool open;
} stroke;

static void put_stroke(tn__file *out, const stroke *s, bool *down) {
    tn__file_print(out, "%c%.1f %.1f", *down ? 'L' : 'M', s->x, s->first);
    if (s->low != s->high) {
        tn__file_print(out, "L%.1f %.1fL%.1f %.1fL%.1f %.1f", s->x, s->low, s->x, s->high, s->x,
                       s->last);
    } else if (!*down) {
        /* a single point is drawn as a round cap */
        tn__file_print(out, "L%.1f %.1f", s->x, s->first);
    }
    *down = true;
}

static void put_curve(tn__file *out, const tn_curve *c, int number, const tn__axis *x,
                      const tn__axis *y) {
    tn__file_print(out, "<path class=\"%s\" stroke=\"%s\" d=\"", c->faint ? "c f" : "c",
                   colours[number % COLOURS]);
    stroke s = {0};
    bool down = false;
    for (int64_t i = 0; i < c->count; i++) {
        if (!tn__drawable(c->x[i], c->y[i])) {
            if (s.open) { put_stroke(out, &s, &down); }
            s.open = down = false;
            continue;
        }
        double at_x = round(place_x(x, c->x[i]) * 2) / 2, at_y = place_y(y, c->y[i]);
        if (s.open && at_x == s.x) {
            s.low = fmin(s.low, at_y);
            s.high = fmax(s.high, at_y);
            s.last = at_y;
            continue;
        }
        if (s.open) { put_stroke(out, &s, &down); }
        s = (stroke){
            .x = at_x, .first = at_y, .low = at_y, .high = at_y, .last = at_y, .open = true};
    }
    if (s.open) { put_stroke(out, &s, &down); }
    tn__file_print(out, "\"/>\n");
}

static void put_legend(tn__file *out, const tn_plot *plot) {
    size_t longest = 0;
    for (int i = 0; i < plot->count; i++) {
        size_t length = plot->curves[i].name ? strlen(plot->curves[i].name) : 0;
        longest = length > longest ? length : longest;
    }
    int width = 44 + 7 * (int)(longest < 60 ? longest : 60), left = LEFT + WIDE - width - 8;
    tn__file_print(out,
                   "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" fill=\"#fff\" "
                   "stroke=\"#ddd\"/>\n",
                   left, TOP + 8, width, 10 + 20 * plot->count);
    for (int i = 0; i < plot->count; i++) {
        int at = TOP + 23 + 20 * i;
        tn__file_print(out,
                       "<path class=\"%s\" stroke=\"%s\" d=\"M%d %dh20\"/><text x=\"%d\" y=\"%d\">",
                       plot->curves[i].faint ? "c f" : "c", colours[i % COLOURS], left + 8, at,
                       left + 36, at + 4);
        put_text(out, plot->curves[i].name);
        tn__file_print(out, "</text>\n");
    }
}

static void put_plot(tn__file *out, const tn_plot *plot) {
    tn__file_print(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
        "height=\"%d\" "
        "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n"
        "<style>.g{stroke:#e6e6e6}.a{stroke:#777;fill:none}.c{fill:none;stroke-width:2;stroke-"
        "linejoin:round;"
        "stroke-linecap:round}.f{stroke-width:1;opacity:.4}</style>\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"#fdfdfb\"/>\n<text x=\"%d\" y=\"28\" "
        "font-size=\"16\">",
        WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
    put_text(out, plot->title);
    tn__file_print(out, "</text>\n<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", LEFT + WIDE / 2,
                   HEIGHT - 14);
    put_text(out, plot->x_label);
    tn__file_print(
        out, "</text>\n<text transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\">",
        TOP + HIGH / 2);
    put_text(out, plot->y_label);
    tn__file_print(out, "</text>\n");
    tn__axis x, y;
    if (tn__plot_axes(plot, 8, 6, &x, &y)) {
        put_grid(out, &x, &y);
        for (int i = 0; i < plot->count; i++) {
            put_curve(out, &plot->curves[i], i, &x, &y);
        }
    }
    if (plot->count > 1) { put_legend(out, plot); }
    tn__file_print(out, "</svg>\n");
}

tn_status tn_plot_svg(const tn_plot *plot, const char *path) {
    tn__file out;
    if (!tn__plot_fits(plot, "plot_svg") || !tn__file_begin(&out, path, "plot_svg")) {
        return tn_error();
    }
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    put_plot(&out, plot);
    tn__plain_numbers_end(numbers);
    return tn__file_commit(&out);
}
