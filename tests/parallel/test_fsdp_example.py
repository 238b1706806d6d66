#!/usr/bin/env python3
"""examples/12_fsdp.c: 1, 2 and 4 ranks learn the same, every stage prints the same digits, a rank keeps only its share, and a run
continues from its checkpoint on any number of ranks."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parents[2]
program = pathlib.Path(os.environ.get("TERN_EXAMPLE_BIN", root / "build/release/examples")) / "12_fsdp"
tern = program.parent.parent / "tools" / "tern"
KEPT = r"^rank (\d) of (\d) keeps (\S+) of (\S+) MB of parameters; (\S+) MB were whole at most$"


def run(ranks, *arguments, lines=6):
    """The lines with losses, and the numbers in the lines about memory."""
    start = [tern, "run", "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run([*start, program, *arguments], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{ranks} ranks {arguments}: status {done.returncode}\n{done.stdout}{done.stderr}")
    out = [re.sub(r"^\[\d\] ", "", line) for line in done.stdout.splitlines()]
    losses = [line for line in out if re.match(r"^step +\d+  loss \d\.\d{6}$", line)]
    kept = [[float(x) for x in match.groups()] for match in (re.match(KEPT, line) for line in out) if match]
    if len(losses) != lines or sorted(k[0] for k in kept) != list(range(ranks)) or any(k[1] != ranks for k in kept):
        sys.exit(f"{ranks} ranks {arguments} wrote {out}")
    return losses, kept


def values(losses):
    return [float(line.split()[-1]) for line in losses]


found = {ranks: run(ranks) for ranks in (1, 2, 4)}
alone = values(found[1][0])
if not alone[-1] < alone[0] - 0.1:
    sys.exit(f"nothing was learned: {alone}")
for ranks, (losses, kept) in found.items():
    # Sums over a batch are added in a different order, and Adam amplifies the difference with each step.
    if any(abs(a - b) > 1e-3 * a for a, b in zip(alone, values(losses))):
        sys.exit(f"one rank: {alone}, {ranks} ranks: {losses}")
    for _, _, part, everything, whole in kept:
        if not everything / ranks <= part + 0.01 <= 1.02 * everything / ranks + 0.02 or whole >= everything:
            sys.exit(f"of {everything} MB a rank of {ranks} keeps {part}; {whole} were whole at the peak")
for stage in "12":
    losses, kept = run(2, stage)
    if losses != found[2][0]:
        sys.exit(f"stage {stage}: {losses}, stage 3: {found[2][0]}")
    if any(k[4] < k[3] for k in kept):
        sys.exit(f"stage {stage} releases parameters: {kept}")
with tempfile.TemporaryDirectory() as folder:
    saved = pathlib.Path(folder) / "run"
    whole, _ = run(2, "3", "", str(saved))
    if whole != found[2][0] or sorted(x.name for x in saved.glob("step-*")) != ["step-000020", "step-000030"]:
        sys.exit(f"a run that saves prints {whole}, and saved {list(saved.iterdir())}")
    for ranks, stage in ((2, "3"), (4, "2"), (1, "3")):
        shutil.rmtree(saved / "step-000030")
        losses, _ = run(ranks, stage, "", str(saved), lines=2)
        if losses != whole[4:] if ranks == 2 else any(abs(a - b) > 1e-3 * a for a, b in zip(values(whole[4:]), values(losses))):
            sys.exit(f"{ranks} ranks at stage {stage} continued with {losses}, but the undisturbed run has {whole}")
text = pathlib.Path(os.environ.get("TERN_DATA") or "/nonexistent") / "tinyshakespeare.txt"
if text.exists():
    losses = values(run(2, "3", str(text))[0])
    if not losses[-1] < losses[0] - 0.1:
        sys.exit(f"nothing was learned from tiny Shakespeare: {losses}")
