"""Every model of these benchmarks in one table of Markdown: Tern's time, and how many times as fast as each peer it is.

Options: BENCHMARK... (all). Runs them in turn, about twenty minutes, and prints the table last, also when one of
them fails or you stop it; docs/speed.md has it. Not part of `./run bench`, which runs the same benchmarks.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
RUNS = [["char_gpt"], ["gpt2"], ["precision"], ["resnet"], ["conv", "5", "CNN"], ["lstm", "5"], ["fsdp"], ["splitting", "3"],
        ["pipeline", "3"], ["decode", "3", "f32", "bf16"]]


def cell(ratios):
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else "-"


def main():
    names = sys.argv[1:] or [run[0] for run in RUNS]
    with tempfile.TemporaryDirectory() as folder:
        notes = os.path.join(folder, "notes")
        try:
            for name, *options in RUNS:
                if name in names:
                    print(f"== {name}", flush=True)
                    subprocess.run([sys.executable, os.path.join(HERE, name + ".py"), *options], env={**os.environ, "TERN_BENCH_NOTES": notes}, check=True)
        finally:
            show(notes)


def show(notes):
    if not os.path.exists(notes):
        return
    with open(notes, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    peers = sorted({peer for _, _, ratios in rows for peer in ratios})
    print("\n| | Tern, ms | " + " | ".join(peers) + " |\n|---|---|" + "---|" * len(peers))
    for title, ms, ratios in rows:
        print(f"| {title} | {ms:.4g} | " + " | ".join(cell(ratios.get(peer)) for peer in peers) + " |")


main()
