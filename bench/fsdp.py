"""A sharded model: GPT-2 124M at T = 256, 2 ranks with 1 thread each, FSDP's stages against DDP and against PyTorch's FSDP2.

Options: rounds [T [SIZE]]. Each turn is two steps, of 4 sequences altogether; all begin with the same weights and batch. The
comparisons are separate, so that few models are in memory at a time: stage 3 and one rank of 2 threads against DDP; stages 1 and 2
against DDP; PyTorch's FSDP2 over gloo (2.4 or later: TERN_BENCH_PYTHON) against stages 3 and 2. SIZE "tiny" tries it in a minute.

A large model, by itself (the launcher is build/release/tools/tern; the tables of docs/sharding.md say what it needs, 1.5B without
Adam's state half of that):

    tern run -n 4 build/release/bench/fsdp --size 774M --recompute --defer --batch 1 --steps 3 256
    tern run -n 4 build/release/bench/fsdp --size 1.5B --sgd --recompute --defer --batch 1 --steps 3 256
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel
from ranks import Ranks

RANKS, BATCH = 2, 2
FACTS = ["MiB of a rank's process, peak", "  in tensors, peak", "  shared with other ranks", "  parts", "  gradients' buffers",
         "  gathered, peak", "gathers per step", "scatters per step", "ms waiting per step"]  # as bench/fsdp.c reports them


def ours(stage, size, T, *more):
    return Ranks([duel.program("fsdp"), "--stage", str(stage), "--size", size, "--batch", str(BATCH), *more, T], RANKS)


def show(title, names, r, workers):
    """Times, their ratios to the first's, losses, and a rank's memory."""
    rows = [["ms a step", *r["ms"]], ["  times the first's (of the rounds)", *(duel.ratio_text(x) for x in r["ratios"])]]
    for turn in (0, len(r["after"]) - 1):
        rows.append([f"loss of step {r['after'][turn]}", *(f"{x[turn]:.6f}" for x in r["losses"])])
    facts = [[x / w.size for x in memory] + w.reports[0][1:2] + w.reports[0][3:] for memory, w in zip(r["memory"], workers)]
    rows += [[name, *(f[i] if i < len(f) else None for f in facts)] for i, name in enumerate(FACTS)]
    duel.table([title, *names], rows)
    print(flush=True)


def beside_ddp(rounds, T, size):
    head = f"{size}, T = {T}, {RANKS} ranks x 1 thread"
    workers = [ours(0, size, T), ours(3, size, T), Ranks([duel.program("gpt2"), "--size", size, T], 1, RANKS)]
    show(head, ["DDP", "stage 3", f"1 rank x {RANKS}"], duel.duel(workers, rounds, 2, warm_up=2, agree=1e-4), workers)
    workers = [ours(stage, size, T) for stage in (0, 2, 1)]
    show(head, ["DDP", "stage 2", "stage 1"], duel.duel(workers, rounds, 2, warm_up=2, agree=1e-4), workers)


def beside_torch(rounds, T, size):
    peers = duel.find_peers(since=(2, 4))
    for peer in peers:
        for stage in (3, 2):
            with tempfile.TemporaryDirectory() as folder:
                tern = ours(stage, size, T, "--share", folder)
                tern.ask("memory")  # now the folder is written
                theirs = Ranks(peer.command("torch_gpt2.py", "--size", size, "--stage", stage, "--share", folder, T, 1), RANKS)
                r = duel.duel([tern, theirs], rounds, 2, warm_up=2, agree=1e-4)
            duel.note(f"{size}, FSDP stage {stage}, T = {T}, 2 ranks x 1 thread", r["ms"][0], [peer.name], r["ratios"][1:])
            show(f"{size}, T = {T}, stage {stage}", ["Tern", f"{peer.name}, FSDP2"], r, [tern, theirs])
    if not peers:
        print("no PyTorch has FSDP2: name one with TERN_BENCH_PYTHON")


def main():
    rounds, T, size = [*sys.argv[1:], *["4", "256", "124M"][len(sys.argv) - 1:]][:3]
    if not duel.NOTES:
        beside_ddp(int(rounds), T, size)
    beside_torch(int(rounds), T, size)


main()
