#!/usr/bin/env python3
"""docs/draw_step.py and docs/draw_splitting.py draw what ranks have just done, so the pictures in docs/distributed.md,
docs/sharding.md and docs/splitting.md can be redrawn."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parents[2]
built = pathlib.Path(os.environ.get("TERN_EXAMPLE_BIN", root / "build/release/examples")).parent
tern, program = built / "tools" / "tern", built / "bench" / "fsdp"
small = ["--steps", "3", "--layers", "3", "--width", "64", "--heads", "2", "--vocab", "128"]
if not program.exists():
    print("the benchmarks are not built")
    sys.exit(77)


def command(*words, **environment):
    """Its output."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=300, env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{words}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def titles_of(text):
    """Of its bars, such as "gather h.1"."""
    return re.findall(r"<title>([^:]*): [\d.]+ ms", text)


def draw(stage):
    """For each rank its titles."""
    with tempfile.TemporaryDirectory() as folder:
        picture = pathlib.Path(folder) / "step.svg"
        command(tern, "run", "-n", "2", program, "--stage", stage, "--trace", folder, *small, "--batch", "1", "16")
        command(sys.executable, root / "docs" / "draw_step.py", folder, picture)
        return [titles_of(half) for half in picture.read_text().split(">rank 1<")]


def draw_block():
    """The titles of both ranks together, without `sequence` and with it."""
    with tempfile.TemporaryDirectory() as folder:
        picture = pathlib.Path(folder) / "block.svg"
        traces = [pathlib.Path(folder) / f"{mesh}.json" for mesh in ("tp=2", "tp=2,sequence")]
        for trace in traces:
            command(tern, "run", "-n", "2", program, "--mesh", trace.stem, *small, "--batch", "4", "64", TERN_PROFILE=str(trace))
        command(sys.executable, root / "docs" / "draw_splitting.py", "block", *traces, picture)
        return [titles_of(half) for half in picture.read_text().split(">tp=2,sequence<")]


def draw_mesh():
    """What is written in the cards of the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        picture, printed = pathlib.Path(folder) / "mesh.svg", pathlib.Path(folder) / "printed.txt"
        printed.write_text(command(tern, "run", "-n", "4", built / "examples" / "23_splitting", "--mesh", "tp=2,shard=2"))
        command(sys.executable, root / "docs" / "draw_splitting.py", "mesh", printed, picture)
        return [re.findall(r">([^<>\n]+)</text>", card) for card in re.split(">rank .<", picture.read_text())[1:]]


def draw_pipeline():
    """{the title of a rank's lane: its bars in turn}, how many bars are drawn, and where the last rank's first one begins."""
    with tempfile.TemporaryDirectory() as folder:
        picture = pathlib.Path(folder) / "pipeline.svg"
        command(tern, "run", "-n", "4", built / "tests" / "pipe_program", folder, "2")
        command(sys.executable, root / "docs" / "draw_splitting.py", "pipeline", folder, picture)
        text = picture.read_text()
    lanes = {lane: bars.split() for lane, bars in re.findall(r"<title>([^:<]*, rank \d): ([^<]*)</title>", text)}
    drawn = sum(line.count(" 0h") for line in re.findall(r'<path d="(M[^"]*)" stroke="#\w+"/>', text))
    first = re.search(r'<title>1F1B, rank 3: F0.*?</title>\n<path d="M(\d+) 0H.*\n<path d="M([\d.]+) 0h', text)
    return lanes, drawn, float(first[2]) - float(first[1])


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

region = {f"{way} {what}": ranks for way in ("forward", "backward")
          for what, ranks in {"c_attn": 2, "attn": 2, "c_fc": 2, "c_proj": 4}.items()}
plain, sequence = draw_block()
expect(plain, {**region, "sum": 8, "gather": 0, "scatter": 0}, "tp=2")  # two regions, forward and backward, two ranks
# the sums are of the gradients of two norms, weight and bias, and of the two biases of c_proj
expect(sequence, {**region, "gather": 8, "scatter": 8, "sum": 12}, "tp=2,sequence")
for way, first in (("forward", "c_attn"), ("backward", "c_proj")):  # backward runs through the modules in reverse
    found = [t for t in plain if t.startswith(way)]
    if found[0] != f"{way} {first}":
        sys.exit(f"{way} begins with {found}")

cards = draw_mesh()
for rank, card in enumerate(cards):
    shard, tp = divmod(rank, 2)
    wanted = {f"shard {shard}, tp {tp}", f"batch {shard + 1}", ("0 to 5", "6 to 11")[tp], f"part {shard + 1}"}
    expect(card, dict.fromkeys(wanted, 1), f"rank {rank}")
if len(cards) != 4:
    sys.exit(f"{len(cards)} cards of 4 ranks")

lanes, drawn, waited = draw_pipeline()
forwards, backwards = [f"F{i}" for i in range(8)], [f"B{i}" for i in range(8)]
for rank in range(4):
    ahead = 3 - rank
    turns = [a for pair in zip(forwards[ahead:], backwards) for a in pair]
    wanted = {"1F1B": forwards[:ahead] + turns + backwards[8 - ahead:], "GPipe": forwards + backwards}
    for name, bars in wanted.items():
        if lanes[f"{name}, rank {rank}"] != bars:
            sys.exit(f"{name}, rank {rank}: {lanes[f'{name}, rank {rank}']} instead of {bars}")
    second = [f"{a[0]}+{a[1]}" for a in forwards + backwards]
    expect(lanes[f"Interleaved 1F1B, rank {rank}"], dict.fromkeys(forwards + backwards + second, 1), f"interleaved, rank {rank}")
    expect(lanes[f"ZB-H1, rank {rank}"], {f"{what}{i}": 1 for what in "FIW" for i in range(8)}, f"ZB-H1, rank {rank}")
expected = 4 * 8 * 2 * (2 + 2 + 4 + 3)  # measured and simulated
if drawn != expected or len(lanes) != 16:
    sys.exit(f"{drawn} bars instead of {expected}, in {len(lanes)} lanes")
if not waited > 20:
    sys.exit(f"rank 3 has waited for {waited} pixels before its first forward")
