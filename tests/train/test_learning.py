#!/usr/bin/env python3
"""A small GPT-2 with the real vocabulary learns as PyTorch's does from the same weights and batches: 20 steps of bench/learning.c,
whose 500 on tiny Shakespeare are `./run bench learning`."""
import os, pathlib, subprocess, sys, tempfile

from runs import check, helpers, root

STEPS = 20

try:
    import torch  # noqa: F401
except ImportError:
    print("PyTorch (python3-torch) is missing: nothing was compared")
    sys.exit(1 if os.environ.get("CI") else 77)


def losses(path):
    return [float(row.split(",")[1]) for row in path.read_text().splitlines()[1:]]


with tempfile.TemporaryDirectory() as top:
    folder = pathlib.Path(top)
    (folder / "text").write_text((root / "README.md").read_text())
    subprocess.run([helpers / "learning_program", folder / "text", "-", folder, str(STEPS)], check=True, timeout=600)
    subprocess.run([sys.executable, root / "bench/peers/torch_learning.py", folder, "1"], check=True, timeout=600)
    ours, theirs = losses(folder / "tern.csv"), losses(folder / "torch.csv")
    check(len(ours) == len(theirs) == STEPS, f"{len(ours)} and {len(theirs)} losses")
    check(10.5 < ours[0] < 11.2 and ours[-1] < ours[0] - 0.5, f"it does not learn: {ours}")
    far = max(abs(a - b) / b for a, b in zip(ours, theirs))
    check(far <= 1e-5, f"{far}: {ours} but {theirs}")
    print(f"{STEPS} losses, relative difference {far:.1e}")
