#!/usr/bin/env python3
"""Draws what docs/splitting.md is about: a block of a model whose matrices are cut, which rank of a mesh has what, and schedules
of pipelines.

draw_splitting.py block TRACE.json … PICTURE.svg     the first of two ranks wrote TRACE.rank0.json, and so on (TERN_PROFILE)
draw_splitting.py mesh OUTPUT.txt PICTURE.svg        what 23_splitting has printed (tn_spread_print); `-` is the standard input
draw_splitting.py pipeline FOLDER PICTURE.svg        what tests/parallel/pipe_program.c has written into FOLDER

The pictures in docs/ are made by

    for mesh in tp=2 tp=2,sequence; do
        TERN_PROFILE=$mesh.json tern run -n 2 fsdp --mesh $mesh --steps 300 --size tiny --layers 2 --width 128 --heads 4 \\
            --vocab 256 --batch 8 128
    done
    docs/draw_splitting.py block tp=2.json tp=2,sequence.json docs/tp.svg
    tern run -n 8 23_splitting --mesh tp=2,shard=2,cp=2 | docs/draw_splitting.py mesh - docs/mesh.svg
    tern run -n 4 pipe_program FOLDER && docs/draw_splitting.py pipeline FOLDER docs/pipeline.svg

Of all blocks and steps of a trace the shortest forward and the shortest backward are drawn, and of a pipeline the shortest step,
which other work on the machine disturbed least.
"""
import bisect
import collections
import json
import pathlib
import re
import sys

from draw_step import BAR, COLOURS, FAINT, INK, LEFT, LINE, RIGHT, WIDTH, Picture

COLOURS.update({"between": "#c8cdd3", "sum": "#e9a3a6"})
PART_OPS = {"linear": "", "attention_qkv": "attn", "gelu_tanh": "gelu"}  # of a part: of some columns, heads, hidden units
SENT = {"all_reduce": "sum", "all_gather": "gather", "reduce_scatter": "scatter"}
TRAVEL_ROWS = {"gather": "gathers", "scatter": "scatters", "sum": "sums"}
WORDS = {"forward": "forward of a part", "backward": "backward of a part", "between": "norms, residual sums",
         "wait": "sends, waits", "sum": "a sum", "gather": "a gather", "scatter": "a scatter"}
Bar = collections.namedtuple("Bar", "kind label begin end")
SENDS = 11  # the height of what is sent
PAUSE = 300.0  # microseconds between forward and backward in the picture


# ---- A block -----------------------------------------------------------------------------------------------------------


def read_ranks(path):
    """The events of each rank."""
    path = pathlib.Path(path)
    ranks = sorted(path.parent.glob(f"{path.stem}.rank*{path.suffix}"), key=lambda p: int(re.search(r"rank(\d+)", p.name)[1]))
    if not ranks:
        sys.exit(f"there is no {path.with_suffix('.rank0' + path.suffix)}")
    return [json.loads(p.read_text()) for p in ranks]


def inside(events, span):
    return [e for e in events if span["ts"] <= e["ts"] and e["ts"] + e["dur"] <= span["ts"] + span["dur"]]


def operation_of(kernel):
    """Without its backend, which comes first."""
    return kernel["name"].split()[-1]


def passes_of(events, backward):
    """The spans of blocks, forward or backward, in the order of time."""
    grads = sorted(e["ts"] for e in events if e["cat"] == "gradient")
    spans = [e for e in events if e["cat"] == "module" and re.fullmatch(r"h\.\d+", e["name"])]
    has_grads = [bisect.bisect(grads, s["ts"]) < bisect.bisect(grads, s["ts"] + s["dur"]) for s in spans]
    return sorted((s for s, has in zip(spans, has_grads) if has == backward), key=lambda s: s["ts"])


def shortest_pass(ranks, backward):
    """For each rank its span in the same pass through a block."""
    spans = [passes_of(events, backward) for events in ranks]
    if len({len(s) for s in spans}) != 1 or not spans[0]:
        sys.exit(f"blocks in the ranks' traces: {[len(s) for s in spans]}; the same number above 0 is needed")
    return min(zip(*spans), key=lambda s: max(e["ts"] + e["dur"] for e in s) - min(e["ts"] for e in s))


def bars_of(events, span, way):
    """What a rank computes and what it sends. Neighbours that are no parts are one bar."""
    found = sorted(inside(events, span), key=lambda e: (e["ts"], -e["dur"]))
    modules = [e for e in found if e["cat"] == "module"]
    sending = [e for e in found if e["cat"] == "kernel" and operation_of(e).startswith("dist_")]
    computed, sent = [], []
    for e in found:
        begin, end, name = e["ts"], e["ts"] + e["dur"], operation_of(e)
        if e["cat"] == "collective":
            sent.append(Bar(SENT[e["name"]], "", begin, end))
        elif e["cat"] == "kernel" and e in sending:
            computed.append(Bar("wait", "", begin, end))
        elif e["cat"] == "kernel" and not any(s["ts"] <= begin < s["ts"] + s["dur"] for s in sending):
            if name in PART_OPS:
                module = [m for m in modules if m["ts"] <= begin < m["ts"] + m["dur"]][-1]["name"]
                computed.append(Bar(way, PART_OPS[name] or module, begin, end))
            elif computed and computed[-1].kind == "between":
                computed[-1] = computed[-1]._replace(end=end)
            else:
                computed.append(Bar("between", "", begin, end))
    return computed, sent


class BlockPicture(Picture):
    """Forward and backward side by side on one scale."""

    def __init__(self, total):
        super().__init__(0, total, "A block of a GPT on ranks of tp, without and with `sequence`: what each computes and sends")

    def ways(self, name, lengths):
        self.text(8, self.height + 12, name, 13, more=' font-weight="bold"')
        for way, (begin, end) in lengths.items():
            self.text((self.x(begin) + self.x(end)) / 2, self.height + 12, way, 12, FAINT, "middle")
        self.height += 20

    def lanes(self, number, computed, sent):
        y = self.row(f"rank {number} computes", BAR)
        for b in computed:
            self.bar(b, y, BAR, b.kind, b.label)
        for kind, name in TRAVEL_ROWS.items():
            bars = [b for b in sent if b.kind == kind]
            y = self.row(name, SENDS) if bars else 0
            for b in bars:
                self.bar(b, y, SENDS, kind)
        self.height += 8

    def axes(self, lengths):
        """One for each way, in milliseconds."""
        for begin, end in lengths.values():
            left, right = self.x(begin), self.x(end)
            self.parts.append(f'<path d="M{left:.1f} {self.height}H{right:.1f}" stroke="{LINE}"/>')
            for i in range(int((end - begin) / 1000) + 1):
                x = self.x(begin + 1000 * i)
                self.parts.append(f'<path d="M{x:.1f} {self.height}v4" stroke="{LINE}"/>')
                self.text(x, self.height + 16, f"{i}" + (" ms" if i == 0 else ""), 10, FAINT, "middle")
        self.height += 30


def timeline(ranks):
    """{way: (begin, end)} in the picture, and for each rank its bars, forward and then backward."""
    lengths, lanes, at = {}, [([], []) for _ in ranks], 0.0
    for way in ("forward", "backward"):
        spans = shortest_pass(ranks, way == "backward")
        begin, end = min(s["ts"] for s in spans), max(s["ts"] + s["dur"] for s in spans)
        for events, span, lane in zip(ranks, spans, lanes):
            for to, bars in zip(lane, bars_of(events, span, way)):
                to += [b._replace(begin=b.begin - begin + at, end=b.end - begin + at) for b in bars]
        lengths[way] = at, at + end - begin
        at += end - begin + PAUSE
    return lengths, lanes


def draw_block(traces, target):
    drawn = {pathlib.Path(t).stem: timeline(read_ranks(t)) for t in traces}
    picture = BlockPicture(max(lengths["backward"][1] for lengths, _ in drawn.values()))
    for name, (lengths, lanes) in drawn.items():
        picture.ways(name, lengths)
        for number, (computed, sent) in enumerate(lanes):
            picture.lanes(number, computed, sent)
        picture.axes(lengths)
    picture.legend({b.kind for _, lanes in drawn.values() for lane in lanes for bars in lane for b in bars}, WORDS)
    picture.save(pathlib.Path(target))


# ---- A mesh ------------------------------------------------------------------------------------------------------------


# at: along pp, dp, shard, cp and tp; has: {word: (first, last, of how many)}, from 0; of rows it is not said of how many
Place = collections.namedtuple("Place", "rank at has")
DIMS = "pp", "dp", "shard", "cp", "tp"


def read_mesh(text):
    """The sizes along the dimensions, the name of the matrix, and the places of all ranks."""
    sizes = re.search(r"pp (\d+) x dp (\d+) x shard (\d+) x cp (\d+) x tp (\d+)", text)
    lines = re.findall(r"^(?:\[0\])? *(\d+)" + r" +(\d+)" * len(DIMS) + r"  (batch .* rows .*)$", text, re.M)
    if not lines:
        sys.exit("no mesh whose matrices are cut was printed")
    places = []
    for rank, *at, what in lines:
        has = {"positions": (0, 0, 1), "part": (0, 0, 1)}
        for word, k, n in re.findall(r"(batch|positions|part) (\d+) of (\d+)", what):
            has[word] = int(k) - 1, int(k) - 1, int(n)
        first, last, matrix = re.search(r"rows (\d+) to (\d+) of ([\w.]+)", what).groups()
        places.append(Place(int(rank), tuple(map(int, at)), has | {"rows": (int(first), int(last))}))
    return tuple(map(int, sizes.groups())), matrix, places


CARD, DRAWN, NEAR, APART = 118, 48, 4, 16  # heights of a card and of the drawings in it; gaps beside and around ranks of tp
TOKENS, ROWS, STORED = COLOURS["recompute"], COLOURS["gather"], COLOURS["whole"]


class MeshPicture(Picture):
    """A card for each rank. Those with the same batch, of tp and cp, are in a line, and those of tp close together."""

    def __init__(self, sizes, rows):
        super().__init__(0, 1, "Which rank of a mesh has what: tokens, rows of a matrix, and a part of what is stored")
        self.sizes, self.rows = sizes, rows
        self.cp, self.tp = sizes[3:]
        self.card = min(210, (WIDTH - 16 + APART - NEAR) / self.cp / self.tp - NEAR - (APART - NEAR) / self.tp)

    def grid(self, corner, wide, counts, across, down, colour, caption):
        """Of counts[0] times counts[1] fields those from across[0] and down[0] to across[1] and down[1] are filled."""
        (x, y), (columns, rows) = corner, counts
        w, h = wide / columns, DRAWN / rows
        size = f'width="{(across[1] - across[0] + 1) * w:.1f}" height="{(down[1] - down[0] + 1) * h:g}"'
        self.parts.append(f'<rect x="{x + across[0] * w:.1f}" y="{y + down[0] * h:g}" {size} fill="{colour}"/>')
        lines = [f"M{x + i * w:.1f} {y}v{DRAWN}" for i in range(columns + 1)]
        lines += [f"M{x:.1f} {y + i * h:g}h{wide}" for i in range(rows + 1)]
        self.parts.append(f'<path d="{"".join(lines)}" stroke="{FAINT}" stroke-width="0.5"/>')
        for i, line in enumerate(caption):
            self.text(x + wide / 2, y + DRAWN + 13 + 12 * i, line, 10, FAINT, "middle")

    def place(self, p):
        x, y = 8 + (p.at[3] * self.tp + p.at[4]) * (self.card + NEAR) + p.at[3] * (APART - NEAR), self.height
        size = f'width="{self.card:.1f}" height="{CARD}" rx="3"'
        self.parts.append(f'<rect x="{x:.1f}" y="{y}" {size} fill="none" stroke="{LINE}"/>')
        self.text(x + 8, y + 18, f"rank {p.rank}", 13, more=' font-weight="bold"')
        at = ", ".join(f"{name} {k}" for name, k, n in zip(DIMS, p.at, self.sizes) if n > 1)
        self.text(x + self.card - 8, y + 18, at, 10, FAINT, "end")
        batch, positions, part, rows = (p.has[what] for what in ("batch", "positions", "part", "rows"))
        caption = [f"batch {batch[0] + 1}"] + [f"positions {positions[0] + 1}"] * (positions[2] > 1)
        self.grid((x + 12, y + 30), 64, (positions[2], batch[2]), positions, batch, TOKENS, caption)
        fields = self.rows if self.rows <= 24 else self.tp  # a field for each row, or for each rank's
        self.grid((x + self.card / 2 - 12, y + 30), 40, (1, fields), (0, 0), [r * fields // self.rows for r in rows], ROWS,
                  ["rows", f"{rows[0]} to {rows[1]}"])
        self.grid((x + self.card - 52, y + 30), 24, (1, part[2]), (0, 0), part, STORED,
                  [f"part {part[0] + 1}", f"of {part[2]}"])

    def notes(self, lines):
        for colour, line in lines:
            self.parts.append(f'<rect x="8" y="{self.height}" width="12" height="12" fill="{colour}" stroke="{FAINT}" '
                              'stroke-width="0.6"/>')
            self.text(26, self.height + 10, line, 11, FAINT)
            self.height += 18
        self.height += 4


def draw_mesh(output, target):
    sizes, matrix, places = read_mesh(sys.stdin.read() if output == "-" else pathlib.Path(output).read_text())
    picture = MeshPicture(sizes, 1 + max(p.has["rows"][1] for p in places))
    for i, p in enumerate(places):
        picture.place(p)
        if (i + 1) % (picture.cp * picture.tp) == 0:
            picture.height += CARD + APART
    picture.notes([(TOKENS, "the tokens that it computes with: batches from top to bottom, positions from left to right"),
                   (ROWS, f"the rows of {matrix} that it has"),
                   (STORED, "the part that it stores of its parameters")])
    picture.save(pathlib.Path(target))


# ---- A pipeline --------------------------------------------------------------------------------------------------------


# seconds: of a step, measured or simulated; rows: of each rank, the actions in turn
Schedule = collections.namedtuple("Schedule", "name outcomes simulated measured")
# what: F, B, I or W, and a + if it is not of the rank's first stage; begin, end: microseconds
Action = collections.namedtuple("Action", "what micro begin end")
COLOURS.update({"F": "#c3d9f0", "F+": "#93b8e0", "B": "#fbdcb0", "B+": "#f3bd74", "I": "#fbdcb0", "W": COLOURS["step"],
                "idle": "#eceef1"})
ACTIONS = {"F": "forward", "F+": "of the rank's second stage", "B": "backward", "B+": "of the second stage",
           "W": "backward of weights apart", "idle": "waits"}
LANE, STRIP = 18, 6  # heights of what was measured, and of what was simulated below it


def read_course(lines, seconds):
    """What tn_pipe_simulate has drawn: a column is as long as the shortest action, "===" goes on."""
    rows = []
    for line in lines:
        cells = line.split()[2:]
        column, row = 1e6 * seconds / len(cells), []
        for i, cell in enumerate(cells):
            if cell == "===":
                row[-1] = row[-1]._replace(end=(i + 1) * column)
            elif cell != ".":
                row.append(Action(cell[0], int(cell[1:]), i * column, (i + 1) * column))
        rows.append(row)
    return rows


def step_of(events, name, k, ranks):
    """The actions of the k-th step of this name, without the waiting in them."""
    step = [e for e in events if e["name"] == name][k]
    here = inside(events, step)
    waits = [e for e in here if e["name"].startswith("wait for ")]
    row = []
    for e in here:
        found = re.fullmatch(r"([FBIW])(\d+)\.(\d+)", e["name"])
        if found:
            begin = max([w["ts"] + w["dur"] for w in waits if e["ts"] <= w["ts"] < e["ts"] + e["dur"]], default=e["ts"])
            what, stage, micro = found[1], int(found[2]), int(found[3])
            row.append(Action(what + "+" * (stage >= ranks), micro, begin, e["ts"] + e["dur"]))
    return row


def shortest_pipeline(ranks, name):
    """For each rank its row in the same step, which begins at 0."""
    lengths = [e["dur"] for e in ranks[0] if e["name"] == name]
    k = lengths.index(min(lengths))
    rows = [step_of(events, name, k, len(ranks)) for events in ranks]
    first = min(row[0].begin for row in rows)
    return [[a._replace(begin=a.begin - first, end=a.end - first) for a in row] for row in rows]


def read_pipelines(folder):
    """The schedules that were printed, in this order."""
    ranks = [json.loads(p.read_text()) for p in sorted(folder.glob("rank-*.json"))]
    ranks = [sorted(events, key=lambda e: e["ts"]) for events in ranks]
    found = []
    for part in (folder / "schedules.txt").read_text().strip().split("\n\n"):
        head, *lines = part.split("\n")
        name = head.split(",")[0]
        outcomes = {what: (float(s), float(b)) for what, s, b in re.findall(r"(\w+) ([\d.]+) s, bubble ([\d.]+) %", head)}
        simulated = read_course(lines, outcomes["simulated"][0])
        measured = shortest_pipeline(ranks, name) if "measured" in outcomes else None
        if measured:  # the same actions, and the trace says of which stage
            of = [[[(a.what[0], a.micro) for a in row] for row in rows] for rows in (simulated, measured)]
            if of[0] != of[1]:
                sys.exit(f"{name}: the ranks' traces have other actions than the simulation")
            simulated = [[s._replace(what=m.what) for s, m in zip(*rows)] for rows in zip(simulated, measured)]
        found.append(Schedule(name, outcomes, simulated, measured))
    return found


class PipelinePicture(Picture):
    """A lane for each rank: what was measured, and below it what was simulated."""

    def __init__(self, total):
        super().__init__(0, total, "Schedules of pipelines: forwards and backwards of eight micro-batches on each of four ranks")

    def head(self, schedule):
        words = {"measured": "a step of {:.2f} s, of which ranks wait {:.0f} %", "simulated": "simulated: {:.2f} s, {:.0f} %"}
        said = [words[what].format(*schedule.outcomes[what]) for what in words if what in schedule.outcomes]
        self.text(8, self.height + 12, schedule.name, 13, more=' font-weight="bold"')
        self.text(LEFT + 60, self.height + 12, "; ".join(said), 12, FAINT)
        self.height += 19

    def bars(self, row, height, title=""):
        """In few bytes: a thick line for each colour, and the numbers of micro-batches where there is room."""
        lines, numbers = collections.defaultdict(str), ""
        for a in row:
            left, right = self.x(a.begin), self.x(a.end)
            lines[a.what] += f"M{left:.1f} 0h{max(right - left - 0.6, 0.4):.1f}"
            if title and right - left > 7:
                numbers += f'<text x="{(left + right) / 2:.0f}">{a.micro}</text>'
        self.parts.append(f'<g transform="translate(0 {self.height + height / 2:g})" stroke-width="{height}">')
        if title:
            self.parts.append(f"<title>{title}: {' '.join(f'{a.what}{a.micro}' for a in row)}</title>")
        lines = {"idle": f"M{LEFT} 0H{self.x(self.until):.1f}", **lines}
        self.parts += [f'<path d="{d}" stroke="{COLOURS[what]}"/>' for what, d in lines.items()]
        if title:
            self.parts.append(f'<g transform="translate(0 4)" font-size="10" text-anchor="middle">{numbers}</g>')
        self.parts.append("</g>")
        self.height += height

    def schedule(self, s):
        self.head(s)
        drawn = s.measured or s.simulated
        self.until = max(a.end for row in drawn + s.simulated for a in row)
        for rank, row in enumerate(drawn):
            self.text(8, self.height + 13, f"rank {rank}", 11, FAINT)
            self.bars(row, LANE, f"{s.name}, rank {rank}")
            if s.measured:
                self.text(LEFT - 6, self.height + 6, "simulated", 9, FAINT, "end")
                self.bars(s.simulated[rank], STRIP)
            self.height += 4
        self.height += 10


def draw_pipeline(folder, target):
    schedules = read_pipelines(pathlib.Path(folder))
    rows = [row for s in schedules for row in (s.measured or []) + s.simulated]
    picture = PipelinePicture(max(a.end for row in rows for a in row))
    for s in schedules:
        picture.schedule(s)
    picture.axis()
    picture.legend({a.what for row in rows for a in row} | {"idle"}, ACTIONS)
    picture.save(pathlib.Path(target))


def main():
    if len(sys.argv) >= 4 and sys.argv[1] == "block":
        draw_block(sys.argv[2:-1], sys.argv[-1])
    elif len(sys.argv) == 4 and sys.argv[1] == "mesh":
        draw_mesh(*sys.argv[2:])
    elif len(sys.argv) == 4 and sys.argv[1] == "pipeline":
        draw_pipeline(*sys.argv[2:])
    else:
        sys.exit(__doc__)


main()
