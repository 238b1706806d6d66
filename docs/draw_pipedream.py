#!/usr/bin/env python3
"""Draws what stale weights do to a loss: PipeDream and 2BW beside 1F1B, by micro-batches and by time.

draw_pipedream.py TERN 25_pipedream PICTURE.svg     build/release/tools/tern, build/release/examples/25_pipedream, docs/pipedream.svg

Trains eight times on 4 ranks, some seconds in all. Time is what a full pipeline needs for a micro-batch; a pipeline that runs
empty after each batch of m needs m + 3 of it for m (tern/pipeline.h: tn_pipe_simulate, without messages).
"""
import math
import pathlib
import re
import subprocess
import sys

from draw_step import FAINT, INK, LINE, Picture

RANKS, RATES = 4, {"0.003": ' stroke-dasharray="5 4"', "0.02": ""}
COLOURS = {"1f1b": "#2a6fbb", "pipedream": "#d9622b", "2bw": "#d9622b"}
NAMES = {"1f1b": "1F1B", "pipedream": "PipeDream", "2bw": "2BW"}
COLUMNS = [(1, "pipedream", "a step for each micro-batch"), (4, "2bw", "a step for each 4 micro-batches")]
LEFTS, WIDE, HIGH = (66, 496), 360, 190
LOW, TOP = 5e-4, 0.3  # losses
TIME = "time, 1: what a full pipeline needs for a micro-batch"


def losses_of(tern, program, mode, batch, rate):
    """(micro-batches so far, mean loss of the last ones)"""
    done = subprocess.run([tern, "run", "-n", str(RANKS), program, "--mode", mode, "--batch", str(batch), "--lr", rate], check=True,
                          capture_output=True, text=True)
    found = [(int(n), float(loss)) for n, loss in re.findall(r"(\d+) micro-batches  loss (\S+)", done.stdout)]
    if not found:
        sys.exit(f"{program} has printed no losses:\n{done.stdout}")
    return found


class LossPicture(Picture):
    def __init__(self):
        super().__init__(0, 1, "Losses of an MLP on 4 ranks: 1F1B beside PipeDream and 2BW, whose weights are stale")

    def place(self, left, most, n, loss):
        return left + n / most * WIDE, self.height + math.log(TOP / min(max(loss, LOW), TOP)) / math.log(TOP / LOW) * HIGH

    def panel(self, left, most, label, curves):
        self.parts.append(f'<rect x="{left}" y="{self.height}" width="{WIDE}" height="{HIGH}" fill="none" stroke="{LINE}"/>')
        for loss in (0.001, 0.01, 0.1):
            _, y = self.place(left, most, 0, loss)
            self.parts.append(f'<path d="M{left} {y:.1f}h{WIDE}" stroke="#e4e7eb"/>')
            self.text(left - 6, round(y, 1) + 4, f"{loss:g}", 10, FAINT, "end")
        for n in range(0, most + 1, 1024):
            self.text(self.place(left, most, n, TOP)[0], self.height + HIGH + 15, str(n), 10, FAINT, "middle")
        self.text(left + WIDE / 2, self.height + HIGH + 30, label, 11, FAINT, "middle")
        self.text(left - 6, self.height + 9, "loss", 10, FAINT, "end")
        for way, rate, points in curves:
            points = [(n, loss) for n, loss in points if n <= most and math.isfinite(loss)]
            line = " L".join("{:.1f} {:.1f}".format(*self.place(left, most, n, loss)) for n, loss in points)
            self.parts.append(f'<path d="M{line}" fill="none" stroke="{COLOURS[way]}" stroke-width="2"{RATES[rate]}>'
                              f"<title>{NAMES[way]}, rate {rate}: {points[-1][1]:.5f} at {points[-1][0]:g}</title></path>")

    def key(self, left, mode, batch):
        x = left
        for name, colour, more in [(NAMES["1f1b"], COLOURS["1f1b"], ""), (NAMES[mode], COLOURS[mode], "")] + [
                (f"rate {rate}", INK, more) for rate, more in RATES.items()]:
            self.parts.append(f'<path d="M{x} {self.height + 8}h22" stroke="{colour}" stroke-width="2"{more}/>')
            self.text(x + 27, self.height + 12, name, 11, FAINT)
            x += 38 + 6.4 * len(name)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    tern, program, target = sys.argv[1:]
    picture = LossPicture()
    curves = {}
    for left, (batch, mode, title) in zip(LEFTS, COLUMNS):
        picture.text(left, picture.height + 10, title, 13, more=' font-weight="bold"')
        for way in ("1f1b", mode):
            for rate in RATES:
                curves[batch, way, rate] = losses_of(tern, program, way, batch, rate)
    picture.height += 22
    for left, (batch, mode, _) in zip(LEFTS, COLUMNS):
        picture.key(left, mode, batch)
    picture.height += 24
    for label in ("micro-batches", TIME):
        for left, (batch, mode, _) in zip(LEFTS, COLUMNS):
            slower = {"1f1b": (batch + RANKS - 1) / batch if label == TIME else 1, mode: 1}
            picture.panel(left, 4096, label, [(way, rate, [(n * slower[way], loss) for n, loss in curves[batch, way, rate]])
                                              for way in ("1f1b", mode) for rate in RATES])
        picture.height += HIGH + 46
    picture.save(pathlib.Path(target))


if __name__ == "__main__":
    main()
