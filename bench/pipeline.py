"""A pipeline: GPT-2 124M on 2 ranks with 1 thread each, 8 micro-batches, beside one rank with 1 thread that accumulates them.

Options: rounds [SIZE]. A turn is one step; all begin with the same weights and batch. SIZE "tiny" is a quick trial. "At most" is
twice the speed less the bubble of the schedule. Then the same pipeline beside PyTorch's over gloo (2.5 or later: TERN_BENCH_PYTHON);
ours is over shared memory.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel
from ranks import Ranks

RANKS, MICROS, T = 2, 8, 256
AGREE = 1e-5  # of the losses of the second step


def ours(size, ranks, *more):
    return Ranks([duel.program("fsdp"), "--size", size, "--batch", str(MICROS), "--micros", str(MICROS), *more, str(T)], ranks)


def show(names, r, more=()):
    rows = [["ms a step", *r["ms"]], *more]
    for turn in (0, len(r["after"]) - 1):
        rows.append([f"loss of step {r['after'][turn]}", *(f"{x[turn]:.6f}" for x in r["losses"])])
    duel.table(names, rows)
    print(flush=True)


def beside_one_rank(rounds, size):
    workers = [ours(size, 1), ours(size, RANKS), ours(size, RANKS, "--chunks", "2")]
    r = duel.duel(workers, rounds, 1, warm_up=2, agree=AGREE)
    speeds = (sorted(1 / x for x in ratios) if ratios else None for ratios in r["ratios"])
    most = [1, *(RANKS / (1 + (RANKS - 1) / chunks / MICROS) for chunks in (1, 2))]
    show([f"{size}, T = {T}, M = {MICROS}, 1 thread a rank", "1 rank", "1F1B", "interleaved, 2 stages a rank"], r,
         [["  times 1 rank's speed (of the rounds)", *(duel.ratio_text(x) for x in speeds)], ["  at most", *(f"{x:.2f}" for x in most)]])


def beside_torch(rounds, size):
    peers = [p for p in duel.find_peers(since=(2, 5)) if not p.crippled]
    for peer in peers:
        with tempfile.TemporaryDirectory() as folder:
            tern = ours(size, RANKS, "--share", folder)
            tern.ask("memory")  # now the folder is written
            theirs = Ranks(peer.command("torch_gpt2.py", "--size", size, "--micros", MICROS, "--share", folder, T, 1), RANKS)
            r = duel.duel([tern, theirs], rounds, 1, warm_up=2, agree=AGREE)
        duel.note(f"{size}, pp=2, T = {T}, 2 ranks x 1 thread", r["ms"][0], [peer.name], r["ratios"][1:])
        show([f"{size}, 1F1B", "Tern", peer.name], r, [["  times Tern's (of the rounds)", *(duel.ratio_text(x) for x in r["ratios"])]])
    if not peers:
        print("no PyTorch has pipelines: skipped; name one with TERN_BENCH_PYTHON\n")


def main():
    rounds, size = [*sys.argv[1:], *["4", "124M"][len(sys.argv) - 1:]][:2]
    if not duel.NOTES:
        beside_one_rank(int(rounds), size)
    beside_torch(int(rounds), size)


main()
