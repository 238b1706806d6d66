"""What an operation costs beside its arithmetic: on one element, in ns, Tern and PyTorch in turns."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel

ROUNDS = 3
ROWS = [
    ("recorded_add", "x + y, recorded, and its release"),
    ("recorded_mul", "x y, recorded, and its release"),
    ("backward_add", "backward through one addition"),
    ("add", "x + y, not recorded"),
    ("empty", "a tensor made and dropped"),
    ("view", "a view made and dropped"),
    ("module", "a module's call"),
    ("scope", "a scope"),
]


def values(command):
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=duel.fair_environment(1)).stdout
    return {name: float(ns) for name, ns in (line.split() for line in out.splitlines())}


def main():
    torch = duel.have_torch()
    best = [{}, {}]
    commands = [[duel.program("overhead")]] + ([duel.peer("torch_overhead.py")] if torch else [])
    for _ in range(ROUNDS):
        for kept, command in zip(best, commands):
            for name, ns in values(command).items():
                kept[name] = min(ns, kept.get(name, ns))
    rows = []
    for name, text in ROWS:
        ours, theirs = best[0][name], best[1].get(name)
        rows.append([text, ours, theirs, f"{theirs / ours:.1f}" if theirs else None])
    duel.table(["ns", "Tern", "PyTorch", "ratio"], rows)
    if not torch:
        duel.no_torch()


main()
