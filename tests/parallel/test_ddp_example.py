#!/usr/bin/env python3
"""examples/07_ddp.c: alone and under `tern run -n 2`, a user sees the same losses and the same result."""
import os
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parents[2]
program = pathlib.Path(os.environ.get("TERN_EXAMPLE_BIN", root / "build/release/examples")) / "07_ddp"
tern = program.parent.parent / "tools" / "tern"


def lines(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return [re.sub(r"^\[0\] ", "", line) for line in done.stdout.splitlines()]


alone, two = lines([program]), lines([tern, "run", "-n", "2", program])
# Sums over a batch are added in a different order, so the last digit printed may differ.
numbers = [[float(x) for x in re.findall(r"\d+\.\d+", " ".join(out))] for out in (alone, two)]
if len(alone) < 5 or len(alone) != len(two) or not two[-1].startswith("2 ranks:"):
    sys.exit(f"one rank printed {alone}, two printed {two}")
if any(abs(a - b) > 0.01 * a for a, b in zip(*numbers)):
    sys.exit(f"one rank: {numbers[0]}, two ranks: {numbers[1]}")
if numbers[1][-1] < 95:
    sys.exit(f"only {numbers[1][-1]} % were learned")
