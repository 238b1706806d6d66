"""What an operation costs apart from its arithmetic: on one element, in ns, Tern and PyTorch taking turns."""
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
    peers = duel.find_peers()
    commands = [[duel.program("overhead")]] + [p.command("torch_overhead.py") for p in peers]
    best = [{} for _ in commands]
    for _ in range(ROUNDS):
        for kept, command in zip(best, commands):
            for name, ns in values(command).items():
                kept[name] = min(ns, kept.get(name, ns))
    head, rows = ["ns", "Tern"], []
    for p in peers:
        head += [p.name, "ratio"]
    for name, text in ROWS:
        ours = best[0][name]
        rows.append([text, ours])
        for theirs in best[1:]:
            rows[-1] += [theirs.get(name), f"{theirs[name] / ours:.1f}" if name in theirs else None]
    duel.table(head, rows)


main()
