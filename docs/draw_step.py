#!/usr/bin/env python3
"""Draws one training step of several ranks: what each computes, what travels meanwhile, and which parameters are whole.

draw_step.py FOLDER PICTURE.svg

FOLDER has the trace of each rank (tn_flight_trace), as `tern run -n 2 fsdp --trace FOLDER …` writes them (bench/fsdp.c). The
pictures in docs/ are made by:

    tern run -n 2 fsdp --trace FOLDER --steps 20 --size tiny --width 512 --heads 8 --vocab 4096 --stage 0 256     docs/ddp.svg
    tern run -n 2 fsdp --trace FOLDER --steps 20 --size tiny --width 512 --heads 8 --vocab 4096 --stage 3 256     docs/fsdp.svg

The shortest step of the trace is drawn, which other work on the machine disturbed least. These events are drawn:

    forward X, recompute X, backward X     computing; X "all" is the whole model, drawn behind its units
    wait …, step                           waiting, and the optimiser's step
    gather X, scatter X                    the k-th names the unit that requested the k-th all_gather or reduce_scatter: its label
    whole X                                from a gather until the unit's parameters are released
"""
import html
import json
import pathlib
import re
import sys

INK, FAINT, LINE = "#1f2933", "#52606d", "#9aa5b1"
COLOURS = {"forward": "#d9e8f6", "recompute": "#c3d5ee", "backward": "#fbe3c3", "wait": "#f3f4f6", "step": "#e6dcf4",
           "gather": "#cdebd3", "scatter": "#f6cfd0", "whole": "#7fbf8e"}
WORDS = {"forward": "forward", "recompute": "forward again", "backward": "backward", "wait": "waits", "step": "optimiser",
         "gather": "parameters arrive", "scatter": "gradients are summed", "whole": "parameters are whole"}
TRAVELS = {"all_gather": "gather", "reduce_scatter": "scatter", "all_reduce": "scatter"}
LEFT, WIDTH, RIGHT = 104, 880, 44
BAR, THIN, GAP = 26, 9, 3


class Event:
    def __init__(self, record):
        self.kind, _, self.unit = record["name"].partition(" ")
        self.begin, self.end, self.group = record["ts"], record["ts"] + record["dur"], record["tid"]
        self.label = "" if self.kind in TRAVELS else self.unit


def read_rank(path):
    """The events of a rank, with each transfer named after the unit that requested it."""
    events = sorted((Event(e) for e in json.loads(path.read_text())), key=lambda e: e.begin)
    for kind, name in (("all_gather", "gather"), ("reduce_scatter", "scatter")):
        asked = [e for e in events if e.kind == name]
        moved = [e for e in events if e.kind == kind and asked and e.begin >= asked[0].begin]
        for a, m in zip(asked, moved):
            m.label = a.unit
    return events


def spans_of_steps(events):
    """The span of each step but the first, last step first: from the beginning of forward to the end of the optimiser's step."""
    steps = [e for e in events if e.kind == "step"]
    if len(steps) < 2:
        sys.exit(f"a trace of {len(steps)} steps: at least 2 are needed")
    for before, step in reversed(list(zip(steps, steps[1:]))):
        yield min(e.begin for e in events if e.kind in ("forward", "gather") and e.begin >= before.end), step.end


def shortest_step(ranks):
    """Its span: when the first rank began it, and when the last one ended it."""
    spans = ((min(b for b, _ in step), max(e for _, e in step)) for step in zip(*(spans_of_steps(events) for events in ranks)))
    return min(spans, key=lambda span: span[1] - span[0])


def units_of(events):
    """The units in the order of the first forward; the rest last."""
    names = list(dict.fromkeys(e.unit for e in events if e.kind == "whole"))
    order = [e.unit for e in events if e.kind == "forward"]
    return sorted(names, key=lambda n: order.index(n) if n in order else len(order))


class Picture:
    def __init__(self, begin, end, title):
        self.begin, self.end, self.scale = begin, end, (WIDTH - LEFT - RIGHT) / (end - begin)
        self.title, self.height, self.parts = title, 14, []

    def x(self, t):
        return LEFT + min(max((t - self.begin) * self.scale, 0), WIDTH - LEFT - RIGHT)

    def text(self, x, y, text, size=12, colour=INK, anchor="start", more=""):
        if anchor != "start":
            more += f' text-anchor="{anchor}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:g}" font-size="{size}" fill="{colour}"{more}>{html.escape(text)}</text>')

    def bar(self, e, y, height, kind, label="", until=0.0):
        """`until`: where the next bar begins; a label that is too wide for its bar is written smaller, or to the right of it."""
        left, right = self.x(e.begin), self.x(e.end)
        if right - left < 0.05:
            return
        self.parts.append(f'<rect x="{left:.1f}" y="{y:g}" width="{max(right - left, 0.8):.1f}" height="{height}" '
                          f'fill="{COLOURS[kind]}" stroke="{FAINT}" stroke-width="0.6"><title>'
                          f"{html.escape(f'{kind} {e.label}'.strip())}: {(e.end - e.begin) / 1000:.1f} ms</title></rect>")
        size, wide = (11, 6.2 * len(label) + 2) if right - left > 6.2 * len(label) + 2 else (9, 5.1 * len(label) + 2)
        if label and right - left > wide:
            self.text((left + right) / 2, y + height / 2 + 4, label, size, anchor="middle")
        elif label and until - right > 6.2 * len(label) + 4:
            self.text(right + 3, y + height / 2 + 4, label, 11, FAINT)

    def row(self, name, height):
        y = self.height
        self.text(8, y + height / 2 + 4, name, 11 if height > THIN else 10, FAINT)
        self.height += height + GAP
        return y

    def inside(self, events):
        """What a rank does in this step."""
        end = max((e.end for e in events if e.kind == "step" and e.begin < self.end), default=self.end)
        return [e for e in events if e.end > self.begin and e.begin < end]

    def rank(self, number, events):
        self.text(8, self.height + 12, f"rank {number}", 13, more=' font-weight="bold"')
        self.height += 20
        here = self.inside(events)
        self.computing(here)
        for kind, name in (("gather", "gathers"), ("scatter", "sums")):
            self.travelling(name, kind, [e for e in here if TRAVELS.get(e.kind) == kind])
        for unit in units_of(here):
            y = self.row(f"whole: {unit}", THIN)
            for e in here:
                if e.kind == "whole" and e.unit == unit:
                    self.bar(e, y, THIN, "whole")
        self.height += 12

    def travelling(self, name, kind, events):
        for i, e in enumerate(e for e in events if e.kind == "all_reduce"):
            e.label = f"bucket {i}"
        y = self.row(name, BAR) if events else 0
        for e, after in zip(events, [*(self.x(m.begin) for m in events[1:]), WIDTH]):
            self.bar(e, y, BAR, kind, e.label, after)

    def computing(self, events):
        y = self.row("computes", BAR)
        for e in events:  # the background, then the foreground
            if e.unit == "all" and e.kind in ("forward", "backward"):
                self.bar(e, y, BAR, e.kind)
        for e in events:
            if e.unit != "all" and e.group == "program" and e.kind in ("forward", "recompute", "backward", "wait", "step"):
                if e.unit or e.kind == "step":
                    self.bar(e, y, BAR, e.kind, e.unit if e.kind not in ("wait", "step") else e.kind)

    def axis(self):
        total, y = (self.end - self.begin) / 1000, self.height
        every = next(t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e9) if total / t <= 10)
        self.parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{LINE}"/>')
        for i in range(int(total / every) + 1):
            x = self.x(self.begin + 1000 * every * i)
            self.parts.append(f'<path d="M{x:.1f} {y}v4" stroke="{LINE}"/>')
            self.text(x, y + 16, f"{every * i:g}" + (" ms" if i == 0 else ""), 10, FAINT, "middle")
        self.height += 26

    def legend(self, kinds, words):
        x, y = LEFT, self.height
        for kind in [k for k in words if k in kinds]:
            self.parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLOURS[kind]}" stroke="{FAINT}" '
                              'stroke-width="0.6"/>')
            self.text(x + 16, y + 10, words[kind], 11, FAINT)
            x += 28 + 6.2 * len(words[kind])
        self.height += 22

    def save(self, path):
        path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
                        f'width="{WIDTH}" height="{self.height}" font-family="sans-serif">\n'
                        f"<title>{html.escape(self.title)}</title>\n"
                        f'<rect width="{WIDTH}" height="{self.height}" fill="#ffffff"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, target = map(pathlib.Path, sys.argv[1:])
    paths = sorted(folder.glob("rank-*.json"), key=lambda p: int(re.search(r"\d+", p.stem).group()))
    if not paths:
        sys.exit(f"{folder} has no rank-*.json")
    ranks = [read_rank(path) for path in paths]
    begin, end = shortest_step(ranks)
    parts = any(e.kind == "whole" for e in ranks[0])
    picture = Picture(begin, end, f"One training step of {len(ranks)} ranks, " + (
        "the model in parts: a unit's parameters arrive before it computes, and go after it" if parts else
        "each with the whole model: gradients travel in buckets while backward computes"))
    for number, events in enumerate(ranks):
        picture.rank(number, events)
    picture.axis()
    seen = {TRAVELS.get(e.kind, e.kind) for events in ranks for e in picture.inside(events)}
    picture.legend(seen, WORDS)
    picture.save(target)


if __name__ == "__main__":
    main()
