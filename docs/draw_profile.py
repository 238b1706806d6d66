#!/usr/bin/env python3
"""Draws a trace as viewers show it: bars in rows, with what is inside a bar under it.

draw_profile.py TRACE.json PICTURE.svg [NAME]

NAME ("step" by default) is the event that is drawn, with all that is in it: the shortest of this name, which other work on the
machine disturbed least. docs/profile.svg is made by

    TERN_PROFILE=trace.json 04_char_gpt --data shakespeare.txt --steps 30 --threads 1 --layers 2
    docs/draw_profile.py trace.json docs/profile.svg
"""
import html
import json
import pathlib
import sys

INK, FAINT, LINE = "#1f2933", "#52606d", "#9aa5b1"
COLOURS = {"step": "#e4e7eb", "region": "#e4e7eb", "module": "#d9e8f6", "backward": "#fbe3c3", "operation": "#cdebd3",
           "gradient": "#f7d9a8", "kernel": "#7fbf8e", "collective": "#f6cfd0", "wait": "#f3f4f6"}
LEFT, WIDTH, RIGHT, BAR, GAP = 70, 1000, 12, 17, 2
CHARACTER = 5.6


def rows_of(events, span):
    """{row: [(depth, event)]} of what is within the span."""
    rows = {}
    inside = [e for e in events if e["ts"] >= span["ts"] and e["ts"] + e["dur"] <= span["ts"] + span["dur"]]
    for row in sorted({e["tid"] for e in inside}, key=lambda row: (row != span["tid"], row)):
        open_, found = [], []
        for e in sorted((e for e in inside if e["tid"] == row), key=lambda e: (e["ts"], -e["dur"])):
            while open_ and open_[-1] <= e["ts"]:
                open_.pop()
            found.append((len(open_), e))
            open_.append(e["ts"] + e["dur"])
        rows[row] = found
    return rows


class Picture:
    def __init__(self, span):
        self.span, self.scale, self.parts, self.height = span, (WIDTH - LEFT - RIGHT) / span["dur"], [], 10

    def x(self, t):
        return LEFT + (t - self.span["ts"]) * self.scale

    def text(self, x, y, text, size=10, colour=INK, anchor="start"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">'
                          f"{html.escape(text)}</text>")

    def row(self, name, found):
        self.text(6, self.height + 12, name, 11, FAINT)
        for depth, e in found:
            left, right, y = self.x(e["ts"]), self.x(e["ts"] + e["dur"]), self.height + depth * (BAR + GAP)
            if right - left < 0.2:
                continue
            args = e.get("args", {})
            more = "".join(f"\n{key} {value}" for key, value in args.items())
            self.parts.append(f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 0.5):.1f}" height="{BAR}" '
                              f'fill="{COLOURS.get(e["cat"], "#ffffff")}" stroke="{FAINT}" stroke-width="0.4"><title>'
                              f"{html.escape(e['name'] + more)}\n{e['dur'] / 1000:.3f} ms</title></rect>")
            fits = int((right - left - 4) / CHARACTER)
            if fits >= 3:
                label = e["name"] if len(e["name"]) <= fits else e["name"][:fits - 1] + "…"
                self.text(left + 3, y + 12, label)
        self.height += (max(depth for depth, _ in found) + 1) * (BAR + GAP) + 10

    def axis(self):
        total, y = self.span["dur"] / 1000, self.height
        every = next(t for t in (.1, .2, .5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1e9) if total / t <= 12)
        self.parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{LINE}"/>')
        for i in range(int(total / every) + 1):
            x = self.x(self.span["ts"] + 1000 * every * i)
            self.parts.append(f'<path d="M{x:.1f} {y}v4" stroke="{LINE}"/>')
            self.text(x, y + 15, f"{every * i:g}" + (" ms" if i == 0 else ""), 10, FAINT, "middle")
        self.height += 26

    def legend(self, kinds):
        x = LEFT
        for kind in [k for k in COLOURS if k in kinds]:
            self.parts.append(f'<rect x="{x}" y="{self.height}" width="12" height="12" fill="{COLOURS[kind]}" stroke="{FAINT}" '
                              'stroke-width="0.5"/>')
            self.text(x + 16, self.height + 10, kind, 11, FAINT)
            x += 34 + 6.4 * len(kind)
        self.height += 20

    def save(self, path):
        path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
                        f'height="{self.height}" font-family="sans-serif">\n<title>{html.escape(self.span["name"])} of a trace: '
                        f"modules, operations and kernels inside one another</title>\n"
                        f'<rect width="{WIDTH}" height="{self.height}" fill="#ffffff"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    events = json.loads(pathlib.Path(sys.argv[1]).read_text())
    name = sys.argv[3] if len(sys.argv) == 4 else "step"
    spans = [e for e in events if e["name"] == name]
    if not spans:
        sys.exit(f"no event is named {name}")
    span = min(spans, key=lambda e: e["dur"])
    rows = rows_of(events, span)
    picture = Picture(span)
    for row, found in rows.items():
        picture.row(row, found)
    picture.axis()
    picture.legend({e["cat"] for found in rows.values() for _, e in found})
    picture.save(pathlib.Path(sys.argv[2]))


main()
