"""A pipeline: GPT-2 124M on 2 ranks with 1 thread each, 8 micro-batches, beside one rank with 1 thread that accumulates them.

Options: rounds [SIZE]. A turn is one step; all begin with the same weights and batch. SIZE "tiny" is a quick trial. The last line
is the share of the ideal that is reached: 2 ranks are twice as fast, less the bubble of the schedule.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel
from ranks import Ranks

RANKS, MICROS, T = 2, 8, 256


def ours(size, ranks, *more):
    return Ranks([duel.program("fsdp"), "--size", size, "--batch", str(MICROS), "--micros", str(MICROS), *more, str(T)], ranks)


def main():
    rounds, size = [*sys.argv[1:], *["4", "124M"][len(sys.argv) - 1:]][:2]
    names = ["1 rank", "1F1B", "interleaved, 2 stages a rank"]
    chunks = [1, 1, 2]
    workers = [ours(size, 1), ours(size, RANKS), ours(size, RANKS, "--chunks", "2")]
    r = duel.duel(workers, int(rounds), 1, warm_up=1, agree=1e-4)
    ideal = [1] + [RANKS / (1 + (RANKS - 1) / v / MICROS) for v in chunks[1:]]
    rows = [["ms a step", *r["ms"]], ["  times 1 rank's speed (of the rounds)", *(duel.ratio_text(sorted(1 / y for y in x)) for x in r["ratios"])],
            ["  at most, without links", *(f"{x:.2f}" for x in ideal)]]
    for turn in (0, len(r["after"]) - 1):
        rows.append([f"loss of step {r['after'][turn]}", *(f"{x[turn]:.6f}" for x in r["losses"])])
    duel.table([f"{size}, T = {T}, M = {MICROS}, 1 thread a rank", *names], rows)


main()
