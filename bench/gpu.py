"""GPT-2 on one GPU in bf16: training steps of 124M, 350M and 1.5B against compiled PyTorch with flash attention.

gpu.py [SIZE ...]     default: 124M 350M 1.5B; skipped where there is no GPU

The micro-batch is the largest of the candidates that fits; both programs are on the GPU at once. Both have the vocabulary
50304 (50257 padded), T = 1024, AdamW with f32 weights and bf16 products. MFU counts the operations of the model's formulas,
6 N + 6 L C T for each token, as a share of the device's dense bf16 peak. --json FILE also writes the numbers.
"""
import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel

T, VOCAB, THREADS = 1024, 50304, 4
SHAPES = {"124M": (12, 768), "350M": (24, 1024), "774M": (36, 1280), "1.5B": (48, 1600)}
BATCHES = {"124M": (64, 32, 16, 8), "350M": (32, 16, 8), "774M": (16, 8, 4), "1.5B": (8, 4, 2)}
PEAKS = {"H200": 989e12, "H100": 989e12, "B200": 2250e12, "A100": 312e12}  # the makers' data sheets, dense bf16
ROUNDS, STEPS = 4, 5


def gpu_name():
    try:
        answer = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    except OSError:
        return None
    return answer.stdout.splitlines()[0].strip() if answer.returncode == 0 and answer.stdout.strip() else None


def flops_per_token(size):
    layers, width = SHAPES[size]
    weights = VOCAB * width + layers * (12 * width * width + 13 * width) + 2 * width
    return 6 * weights + 6 * layers * width * T


def start(command):
    """A worker that has run its first steps, the second with the optimiser's state allocated; None if they failed (out of memory,
    say)."""
    worker = duel.Worker(command, threads=THREADS, bind=False)
    try:
        worker.run(2)
        return worker
    except SystemExit as why:
        print(f"  {why}", file=sys.stderr)
        return None


def largest(size, command):
    """The worker with the largest batch that fits, and the batch."""
    for batch in BATCHES[size]:
        worker = start(command(batch))
        if worker:
            return worker, batch
    return None, 0


def measure(size, torch):
    options = ["--size", size, "--vocab", str(VOCAB), "--device", "cuda", "--precision", "bf16"]
    tern, batch = largest(size, lambda b: [duel.program("gpt2"), *options, "--batch", str(b), str(T)])
    peer = None
    if tern and torch:
        peer = start(torch.command("torch_gpt2.py", *options, "--compile", "--batch", batch, T, THREADS))
    workers = [w for w in (tern, peer) if w]
    ms, loss = [[] for _ in workers], [None] * 2
    for w in workers:
        w.run(5)
    for _ in range(ROUNDS):
        for i, w in enumerate(workers):
            loss[i], times = w.run(STEPS)
            ms[i].append(statistics.median(times))
    for w in workers:
        w.close()
    rate = [batch * T / (statistics.median(x) * 1e-3) for x in ms]
    return {
        "size": size,
        "batch": batch,
        "tern": rate[0] if tern else None,
        "torch": rate[1] if peer else None,
        "ratios": sorted(b / a for a, b in zip(*ms)) if peer else [],
        "loss": loss,
        "flops": flops_per_token(size),
    }


def row(r, peak):
    mfu = [f"{100 * r[k] * r['flops'] / peak:.1f} %" if r[k] and peak else None for k in ("tern", "torch")]
    ratios = r["ratios"]
    ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else None
    return [f"{r['size']}, B = {r['batch']}: tokens/s", r["tern"], r["torch"], ratio], ["  MFU", *mfu, None], ["  last loss", *r["loss"], None]


def main():
    sizes, target = [a for a in sys.argv[1:] if a in SHAPES], None
    if "--json" in sys.argv:
        target = sys.argv[sys.argv.index("--json") + 1]
    name = gpu_name()
    if not name:
        print("skipped: nvidia-smi finds no GPU here")
        return
    torch = (duel.find_peers() + [None])[0]
    peak = next((flops for part, flops in PEAKS.items() if part in name), 0)
    results = []
    for size in sizes or ("124M", "350M", "1.5B"): # each is printed and saved at once: the next may take too long
        results.append(measure(size, torch))
        duel.table([f"{name}, bf16, T = {T}", "Tern", "PyTorch", "ratio (of the rounds)"], list(row(results[-1], peak)))
        sys.stdout.flush()
        if target:
            with open(target, "w") as f:
                json.dump({"device": name, "peak": peak, "results": results}, f, indent=1)
    missing = [r["size"] for r in results if not r["tern"]]
    if missing:
        sys.exit(f"did not run: {' '.join(missing)}")


main()
