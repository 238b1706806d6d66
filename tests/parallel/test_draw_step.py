#!/usr/bin/env python3
"""docs/draw_step.py draws what ranks have just done, so the pictures in docs/distributed.md and docs/sharding.md can be redrawn."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parents[2]
built = pathlib.Path(os.environ.get("TERN_EXAMPLE_BIN", root / "build/release/examples")).parent
program = built / "bench" / "fsdp"
if not program.exists():
    print("the benchmarks are not built")
    sys.exit(77)


def draw(stage):
    """For each rank the titles of its bars, such as "gather h.1"."""
    with tempfile.TemporaryDirectory() as folder:
        picture = pathlib.Path(folder) / "step.svg"
        for command in ([built / "tools" / "tern", "run", "-n", "2", program, "--stage", stage, "--trace", folder, "--steps", "3", "--layers", "3",
                         "--width", "64", "--heads", "2", "--vocab", "128", "--batch", "1", "16"],
                        [sys.executable, root / "docs" / "draw_step.py", folder, picture]):
            done = subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=300)
            if done.returncode != 0:
                sys.exit(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
        halves = picture.read_text().split(">rank 1<")
        return [sorted(re.findall(r"<title>([^:]*): [\d.]+ ms", half)) for half in halves]


def expect(titles, wanted, what):
    missing = [t for t in wanted if titles.count(t) != wanted[t]]
    if missing:
        sys.exit(f"{what}: of {wanted}, {missing} have a different count in {titles}")


computed = {f"{way} h.{i}": 1 for way in ("forward", "backward") for i in range(3)}
for titles in draw("0"):
    expect(titles, {**computed, "scatter bucket 0": 1, "step": 1, "gather h.0": 0, "whole h.0": 0}, "DDP")
once = {"gather h.2": 1, "whole h.2": 1, "gather rest": 1, "whole rest": 1}  # from forward to backward
both = {f"{what} h.{i}": 2 for what in ("gather", "whole") for i in range(2)}
sums = {f"scatter {unit}": 1 for unit in ("h.0", "h.1", "h.2", "rest")}
for titles in draw("3"):
    expect(titles, {**computed, **once, **both, **sums, "step": 1}, "stage 3")
