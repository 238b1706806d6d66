"""Data parallelism: GPT-2 124M at T = 256, 2 ranks with 1 thread each against 1 rank with 2 threads, 4 sequences a step in both.

Options: rounds [T]. Each turn is two steps. `exposed` is the time that backward waits for gradients at its end; the rest of the
communication is hidden behind backward. The trace of rank 0 shows how much: build/bench-ddp-trace.json, for chrome://tracing.
"""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel
from ranks import Ranks

GLOBAL_BATCH = 4
TRACE = os.path.join(duel.ROOT, "build", "bench-ddp-trace.json")


def hidden_share(path):
    """The share of the time of all-reduces that was within a backward."""
    with open(path) as f:
        events = json.load(f)
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == "backward"]
    buckets = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("all_reduce")]
    total = sum(b - a for a, b in buckets)
    inside = sum(max(0, min(b, d) - max(a, c)) for a, b in buckets for c, d in spans)
    return inside / total if total else 0.0


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    T = sys.argv[2] if len(sys.argv) > 2 else "256"
    os.makedirs(os.path.dirname(TRACE), exist_ok=True)
    ranks = Ranks([duel.program("ddp"), T, str(GLOBAL_BATCH // 2), TRACE], 2)
    alone = duel.Worker([duel.program("gpt2"), T], 2)
    r = duel.duel([ranks, alone], rounds, 2, warm_up=2)
    waiting, steps, buckets, mib = ranks.reports[0]
    tokens = GLOBAL_BATCH * int(T)
    duel.table([f"T = {T}, {GLOBAL_BATCH} sequences", "2 ranks x 1 thread", "1 rank x 2 threads", "ratio (of the rounds)"], [
        ["ms a step", *r["ms"], duel.ratio_text(r["ratios"][1])],
        ["tokens a second", *(1e3 * tokens / ms for ms in r["ms"]), None],
        ["  MiB at most", r["memory"][0][0], r["memory"][1][0], None],
        [f"  ms exposed ({buckets:.0f} buckets, {mib:.0f} MiB)", 1e3 * waiting / steps, None, f"{100 * 1e3 * waiting / steps / r['ms'][0]:.1f} % of a step"],
        ["  share of travelling behind backward", f"{100 * hidden_share(TRACE):.0f} %", None, None],
    ])


main()
