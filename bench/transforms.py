"""The cost of one transform on one image and one thread, in us: Tern, and torchvision's definitions in PyTorch, in turns."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel

ROUNDS = 3
NAMES = ("crop", "flip", "jitter", "normalize", "resize")


def values(command):
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=duel.fair_environment(1)).stdout
    return {name: float(us) for name, us in (line.split() for line in out.splitlines())}


def main():
    peers = duel.find_peers()
    commands = [[duel.program("transforms")]] + [p.command("torch_transforms.py") for p in peers]
    best = [{} for _ in commands]
    for _ in range(ROUNDS):
        for kept, command in zip(best, commands):
            for name, us in values(command).items():
                kept[name] = min(us, kept.get(name, us))
    head, rows = ["us an image", "Tern"], []
    for p in peers:
        head += [p.name, "ratio"]
    for side in (32, 224):
        for name in NAMES:
            key = f"{name}_{side}"
            row = [f"{name}, 3 x {side} x {side}", best[0][key]]
            for theirs in best[1:]:
                row += [theirs[key], f"{theirs[key] / best[0][key]:.1f}"]
            rows.append(row)
    duel.table(head, rows)


main()
