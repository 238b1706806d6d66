"""What is to be known of a processor with tiles (amx_bf16), in one command of at most fifteen minutes.

What its registers compute; products of GPT-2's shapes in bf16 and f32, with one thread and two, beside Tern at level v4 (without
tiles) and PyTorch; a small GPT-2 in bf16 beside its own f32; GPT-2 124M in bf16 and f32, and LSTMs, beside PyTorch. TERN_BENCH_PYTHON
names a Python with PyTorch 2. Runs on any machine, and says whether this one has tiles. A part that is not done in its time is left out.
"""
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "peers"))
import duel

MINUTES = 15
BEGIN = time.monotonic()


def seconds_left():
    return BEGIN + 60 * MINUTES - time.monotonic()


def in_time(command, threads, **more):
    """What a program prints; "" if it fails, or nothing is left of the time."""
    env = {**duel.fair_environment(threads), **more}
    try:
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=max(1, seconds_left()), check=True).stdout
    except (subprocess.SubprocessError, OSError) as e:
        print(f"left out: {' '.join(command)}: {e}", flush=True)
        return ""


def products(dtype, threads, peers, limit):
    """GFLOP/s; the best of two turns."""
    ours = [duel.program("products"), dtype]
    runs = [(ours, {})] + ([(ours, {"TERN_CPU": "v4"})] if "v4 amx" in LEVELS and dtype == "bf16" else [])
    names = ["Tern"] + (["Tern at v4"] if len(runs) > 1 else []) + [p.name for p in peers]
    runs += [(p.command("torch_products.py", dtype), {}) for p in peers]
    best = [{} for _ in runs]
    for _ in range(2):
        for kept, (command, more) in zip(best, runs):
            for name, ms in (line.split() for line in in_time(command, threads, **more).splitlines()):
                kept[name] = min(float(ms), kept.get(name, float(ms)))
    rows = []
    for name, ms in best[0].items():
        m, n, k = (int(x) for x in name.split("_")[0].split("x"))
        rate = [2e-6 * m * n * k / x[name] if name in x else None for x in best]
        rows.append([name.replace("_", ", "), rate[0], f"{100 * rate[0] / limit:.0f} %" if limit else None])
        for theirs in rate[1:]:
            rows[-1] += [theirs, f"{rate[0] / theirs:.2f}" if theirs else None]
    head = [f"{dtype}, {threads} threads, GFLOP/s", names[0], "of f32's registers"]
    for name in names[1:]:
        head += [name, "ratio"]
    duel.table(head, rows)
    print(flush=True)


def small_model():
    """Tern's bf16 and its own f32, a step of a small GPT-2 (4 sequences of 128)."""
    for threads in (1, duel.THREADS):
        pair = [duel.Worker([duel.program("gpt2"), "--size", "tiny", "--precision", p, "128"], threads) for p in ("bf16", "f32")]
        r = duel.duel(pair, 3, 4, warm_up=1, agree=5e-2)
        duel.table([f"a small GPT-2, {threads} threads", "bf16", "f32", "ratio (of the rounds)"],
                   [["ms a step", *r["ms"], duel.ratio_text(r["ratios"][1])]])
        print(flush=True)


def main():
    rates = in_time([duel.program("machine")], duel.THREADS)
    print(rates, flush=True)
    limits = [float(x) for line in rates.splitlines() if line.startswith("f32") for x in line.split()[1:]]
    print("tiles here" if "amx" in LEVELS else f"NO TILES HERE (levels {LEVELS}): these are not the figures that are wanted", flush=True)
    peers = [p for p in duel.find_peers() if not p.crippled]
    for dtype in ("bf16", "f32"):
        for i, threads in enumerate((1, duel.THREADS)):
            fast = [p for p in peers if dtype == "f32" or "amx" in LEVELS or "v4" in LEVELS]  # elsewhere minutes: plain loops
            products(dtype, threads, fast, limits[i] if limits else 0)
    small_model()
    for name, *options in (["precision", "3", "64"], ["gpt2", "3", "64"], ["lstm", "3"], ["precision", "2", "256"], ["gpt2", "2", "256"]):
        command = [sys.executable, os.path.join(HERE, name + ".py"), *options]
        try:
            subprocess.run(command, timeout=max(1, seconds_left()), check=True)
        except subprocess.SubprocessError as e:
            print(f"left out: {name} {' '.join(options)}: {e}", flush=True)


LEVELS = subprocess.run([duel.program("machine"), "levels"], capture_output=True, text=True, check=True).stdout.strip()
main()
