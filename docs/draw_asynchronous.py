#!/usr/bin/env python3
"""Draws the loss of a parameter server's workers in step, with a bound, and free, by gradients and by time.

draw_asynchronous.py TERN 27_parameter_server PICTURE.svg [STEPS [DELAY]]
                                        build/release/tools/tern, build/release/examples/…, docs/asynchronous.svg

Trains three times with 4 workers, STEPS steps of each (2100), which take DELAY ms (4) longer on average, at random, as on hosts that
others use too; 40 s in all. Both the losses and the times are measured.
"""
import math
import pathlib
import re
import subprocess
import sys

from draw_step import FAINT, LINE, Picture

WORKERS = 4
RUNS = [(0, "in step", "#2a6fbb"), (4, "at most 4 steps ahead", "#3f9b5f"), ("free", "free", "#d9622b")]
LEFTS, WIDE, HIGH = (66, 496), 360, 230
LOW, TOP = 5e-4, 0.3  # losses


def losses_of(tern, program, staleness, steps, delay):
    """(gradients so far, seconds, loss)"""
    done = subprocess.run([tern, "run", "-n", str(WORKERS + 1), program, "--staleness", str(staleness), "--steps", str(steps), "--delay",
                           str(delay)], check=True, capture_output=True, text=True)
    found = [tuple(map(float, x)) for x in re.findall(r"pushes +(\d+)  time +(\S+)  test loss (\S+)", done.stdout)]
    if not found:
        sys.exit(f"{program} has printed no losses:\n{done.stdout}")
    return found


class LossPicture(Picture):
    def __init__(self):
        super().__init__(0, 1, "Losses of 4 workers of a parameter server: in step, bounded, and free")

    def place(self, left, most, x, loss):
        return left + x / most * WIDE, self.height + math.log(TOP / min(max(loss, LOW), TOP)) / math.log(TOP / LOW) * HIGH

    def panel(self, left, most, tick, label, curves):
        self.parts.append(f'<rect x="{left}" y="{self.height}" width="{WIDE}" height="{HIGH}" fill="none" stroke="{LINE}"/>')
        for loss in (0.001, 0.01, 0.1):
            _, y = self.place(left, most, 0, loss)
            self.parts.append(f'<path d="M{left} {y:.1f}h{WIDE}" stroke="#e4e7eb"/>')
            self.text(left - 6, round(y, 1) + 4, f"{loss:g}", 10, FAINT, "end")
        for k in range(int(most / tick) + 1):
            self.text(self.place(left, most, k * tick, TOP)[0], self.height + HIGH + 15, f"{k * tick:g}", 10, FAINT, "middle")
        self.text(left + WIDE / 2, self.height + HIGH + 31, label, 11, FAINT, "middle")
        self.text(left - 6, self.height + 9, "loss", 10, FAINT, "end")
        for name, colour, points in curves:
            line = " L".join("{:.1f} {:.1f}".format(*self.place(left, most, x, loss)) for x, loss in points if math.isfinite(loss))
            x, loss = points[-1]
            self.parts.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2">'
                              f"<title>{name}: {loss:.5f} at {x:g}</title></path>")

    def key(self):
        x = LEFTS[0]
        for _, name, colour in RUNS:
            self.parts.append(f'<path d="M{x} {self.height + 8}h22" stroke="{colour}" stroke-width="2"/>')
            self.text(x + 27, self.height + 12, name, 11, FAINT)
            x += 48 + 6.2 * len(name)


def main():
    if not 4 <= len(sys.argv) <= 6:
        sys.exit(__doc__)
    tern, program, target = sys.argv[1:4]
    steps, delay = int((sys.argv[4:] or [2100])[0]), float((sys.argv[5:] or [4])[0])
    runs = [(name, colour, losses_of(tern, program, staleness, steps, delay)) for staleness, name, colour in RUNS]
    picture = LossPicture()
    picture.key()
    picture.height += 26
    longest = max(points[-1][1] for _, _, points in runs)
    for left, (label, column, most, tick) in zip(LEFTS, [("gradients", 0, WORKERS * steps, steps), ("seconds", 1, longest, 5)]):
        picture.panel(left, most, tick, label, [(name, colour, [(p[column], p[2]) for p in points]) for name, colour, points in runs])
    picture.height += HIGH + 42
    picture.save(pathlib.Path(target))


if __name__ == "__main__":
    main()
