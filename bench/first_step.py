"""From the start of a process to its first training step of a small classifier, in ms; Tern and PyTorch in turns."""
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel


def start(command):
    """[ms at main or with the library loaded, with the model, after the step]"""
    out = subprocess.run(
        command + [f"{time.monotonic():.6f}"], check=True, capture_output=True, text=True, env=duel.fair_environment()
    ).stdout
    return [float(x) for x in out.split()]


def main():
    peers = duel.find_peers()
    ours, theirs = [], [[] for _ in peers]
    for i in range(15):
        ours.append(start([duel.program("first_step")]))
        for p, times in zip(peers, theirs):
            if i % 3 == 0:
                times.append(start(p.command("torch_first_step.py")))
    head, rows = ["ms after the start", "Tern"], []
    for p in peers:
        head += [p.name, "ratio"]
    for i, text in enumerate(["the library is loaded", "the model is there", "one step is done"]):
        a = statistics.median(x[i] for x in ours)
        rows.append([text, a])
        for times in theirs:
            b = statistics.median(x[i] for x in times)
            rows[-1] += [b, f"{b / a:.0f}"]
    duel.table(head, rows)


main()
