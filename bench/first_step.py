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
    torch = duel.have_torch()
    ours, theirs = [], []
    for i in range(15):
        ours.append(start([duel.program("first_step")]))
        if torch and i % 3 == 0:
            theirs.append(start(duel.peer("torch_first_step.py")))
    rows = []
    for i, text in enumerate(["the library is loaded", "the model is there", "one step is done"]):
        a = statistics.median(x[i] for x in ours)
        b = statistics.median(x[i] for x in theirs) if torch else None
        rows.append([text, a, b, f"{b / a:.0f}" if torch else None])
    duel.table(["ms after the start", "Tern", "PyTorch", "ratio"], rows)
    if not torch:
        duel.no_torch()


main()
