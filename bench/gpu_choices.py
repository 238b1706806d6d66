"""What a GPU's time decides: both sides of each choice, and what backends/cuda/choices.h should hold on this GPU.

gpu_choices.py [--try] [--json FILE]     about a minute; skipped where there is no GPU. --try: tiny shapes on any device, to see
                                         that every case runs

Each side is a process of gpu_choices.c with its own settings, and the sides take turns. A choice changes if the other side is
faster by more than MARGIN and than the two sides' own ranges.
"""
import argparse
import collections
import json
import os
import shutil
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel

MARGIN, ROUNDS = 1.03, 3
CHOICES = "TERN_CUDA_CHOICES"
# Settings by the name of a side. "as it is" has none.
SIDES = {
    "as it is": {},
    "apart": {CHOICES: "sums_in_product=0,gelu_in_product=0,slope_in_product=0,few_queries=0,padded_lengths=0,rounded_gradients=1"},
    "tuned": {"TERN_AUTOTUNE": "1"},
    "by arrival": {"BENCH_DETERMINISTIC": "0", "TERN_AUTOTUNE": "0"},
    "own": {CHOICES: "cudnn_attention=0"},
}
PRODUCTS = ["product:qkv", "product:out", "product:down", "product:logits"]
# The cases that decide, the other side, and what to do where that is faster.
QUESTIONS = [
    (["sums:qkv", "sums:out", "sums:up", "sums:down"], "apart", "sums_in_product 0"),
    (["gelu"], "apart", "gelu_in_product 0"),
    (["slope"], "apart", "slope_in_product 0"),
    (["attention:token"], "apart", "few_queries 0, if cuDNN's plan need not be made for each number of keys"),
    (["attention:tokens"], "apart", "the same for many sequences"),
    (["attention:odd", "attention:odd:backward"], "apart", "padded_lengths 0, for training with one odd length"),
    (["conv:gradient"], "apart", "rounded_gradients 1"),
    (PRODUCTS, "tuned", "tuned 1: for users of TERN_AUTOTUNE, or plans by shape"),
    (["attention", "attention:backward"], "own", "cudnn_attention 0"),
    (["attention:backward"], "by arrival", "tn_set_deterministic(false) in what asks for speed"),
]
BESIDE = [("conv", "conv:last", "channels last through a net of convolutions")]  # two cases of one side
MEMORY = ["copy", "batch_norm", "argmax"]


def cases_of(side):
    """What to time on it: all that a question asks of it."""
    wanted = [case for cases, other, _ in QUESTIONS for case in cases if side in ("as it is", other)]
    wanted += [case for pair in BESIDE for case in pair[:2]] + MEMORY if side == "as it is" else []
    return list(dict.fromkeys(wanted))


def measure(rounds, options):
    """({(side, case): [ms]}, {case: bytes}, what failed)."""
    times, sizes, failed = collections.defaultdict(list), {}, []
    for _ in range(rounds):
        for side, settings in SIDES.items():
            done = subprocess.run([duel.program("gpu_choices"), *options, *cases_of(side)], capture_output=True, text=True,
                                  env=dict(os.environ, **settings))
            words = done.stderr.splitlines() or [f"exit status {done.returncode}"]  # a signal leaves none
            failed += [f"{side}: {line}" for line in words] if done.returncode else []
            for line in done.stdout.splitlines():
                case, ms, size = line.split()
                times[side, case].append(float(ms))
                sizes[case] = float(size)
    return times, sizes, failed


def verdict(ours, others):
    """Whether the other side is faster, on one case or summed over several: True, False, or None for nobody knows."""
    if not all(ours) or not all(others):
        return None
    mean = [sum(statistics.median(side) for side in sides) for sides in (ours, others)]
    apart = sum(map(max, others)) < sum(map(min, ours))
    return apart and mean[0] > MARGIN * mean[1]


def shown(ms):
    return f"{statistics.median(ms):9.4f} ({min(ms):.4f} to {max(ms):.4f})" if ms else f"{'did not run':>9}"


def answers(times):
    """[what was asked, its lines, what to do or ""]."""
    pairs = [([("as it is", case) for case in cases], [(other, case) for case in cases], advice) for cases, other, advice in QUESTIONS]
    pairs += [([("as it is", a)], [("as it is", b)], advice) for a, b, advice in BESIDE]
    out = []
    for ours, others, advice in pairs:
        lines = [f"{case:20} {shown(times[a, case])}   {b if a != b else other:10} {shown(times[b, other])}"
                 for (a, case), (b, other) in zip(ours, others)]
        faster = verdict([times[key] for key in ours], [times[key] for key in others])
        out.append([advice, lines, "" if faster is False else advice if faster else f"nobody knows: {advice}"])
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--try", dest="small", action="store_true")
    parser.add_argument("--json")
    o = parser.parse_args()
    if not o.small and (not shutil.which("nvidia-smi") or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode):
        print("skipped: nvidia-smi finds no GPU here")
        return
    times, sizes, failed = measure(1 if o.small else ROUNDS, ["--small"] if o.small else [])
    print("ms, as it is beside the other side")
    changes = []
    for _, lines, change in answers(times):
        print("\n".join(lines), f"    -> {change or 'stays'}\n", sep="\n", flush=True)
        changes += [change] * bool(change)
    for case in MEMORY:
        ms = times["as it is", case]
        print(f"{case:20} {shown(ms)}" + (f"   {sizes[case] / statistics.median(ms) * 1e-6:.0f} GB/s" if ms else ""))
    print("\nchoices.h should say: " + ("; ".join(changes) or "what it says"))
    print("\n".join(failed))
    if o.json:
        with open(o.json, "w", encoding="utf-8") as f:
            json.dump({"times": [[*key, ms] for key, ms in times.items()], "changes": changes, "failed": failed}, f, indent=1)
    sys.exit(1 if failed or not times else 0)


if __name__ == "__main__":
    main()
