"""A model split over ranks: GPT-2 124M on 2 ranks with 1 thread each, tensor parallelism against DDP over the same tokens, and
context parallelism against one rank of 2 threads.

Options: rounds [SIZE]. Each turn is two steps; all begin with the same weights and batch. SIZE "tiny" is a quick trial.
Tensor parallelism also against PyTorch's DTensors over gloo (2.4 or later: TERN_BENCH_PYTHON); ours is over shared memory.

Context parallelism has no peer: PyTorch's does not run on a CPU. In 2.15 attention within context_parallel raises "Operator
aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy registered", and with SDPBackend.MATH
"aten.add.Tensor got mixed torch.Tensor and DTensor".
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel
from ranks import Ranks

RANKS = 2
AGREE = 1e-5  # of the losses of the second step: rows of q, k and v that are grouped wrongly make a difference of 5e-5 (tiny)


def ours(size, T, batch, *more):
    return Ranks([duel.program("fsdp"), "--size", size, "--batch", str(batch), *more, str(T)], RANKS)


def show(title, names, r):
    rows = [["ms a step", *r["ms"]], ["  times the first's (of the rounds)", *(duel.ratio_text(x) for x in r["ratios"])]]
    for turn in (0, len(r["after"]) - 1):
        rows.append([f"loss of step {r['after'][turn]}", *(f"{x[turn]:.6f}" for x in r["losses"])])
    duel.table([title, *names], rows)
    print(flush=True)


def tensor(rounds, size):
    T = 256
    workers = [ours(size, T, 2, "--stage", "0"), ours(size, T, 4, "--mesh", "tp=2"), ours(size, T, 4, "--mesh", "tp=2,sequence")]
    show(f"{size}, T = {T}, {RANKS} ranks x 1 thread", ["DDP", "tp 2", "tp 2, sequence"], duel.duel(workers, rounds, 2, warm_up=2, agree=AGREE))


def beside_torch(rounds, size):
    T = 256
    peers = [p for p in duel.find_peers(since=(2, 4)) if not p.crippled]
    for peer in peers:
        for mesh, kind in (("tp=2", "tp"), ("tp=2,sequence", "sequence")):
            with tempfile.TemporaryDirectory() as folder:
                tern = ours(size, T, 4, "--mesh", mesh, "--share", folder)
                tern.ask("memory")  # now the folder is written
                theirs = Ranks(peer.command("torch_gpt2.py", "--size", size, "--split", kind, "--share", folder, T, 1), RANKS)
                r = duel.duel([tern, theirs], rounds, 2, warm_up=2, agree=AGREE)
            duel.note(f"{size}, {mesh}, T = {T}, 2 ranks x 1 thread", r["ms"][0], [peer.name], r["ratios"][1:])
            show(f"{size}, T = {T}, {mesh}", ["Tern", f"{peer.name}, DTensor"], r)
    if not peers:
        print("no PyTorch has tensor parallelism: skipped; name one with TERN_BENCH_PYTHON\n")


def context(rounds, size):
    T = 1024 if size == "tiny" else 2048
    workers = [Ranks([duel.program("fsdp"), "--size", size, "--context", str(T), "--batch", "1", "--stage", "0", str(T)], 1, RANKS),
               ours(size, T, 1, "--context", str(T), "--mesh", "cp=2"), ours(size, T, 1, "--context", str(T), "--mesh", "cp=2,keys")]
    show(f"{size}, T = {T}", [f"1 rank x {RANKS}", "cp 2, heads", "cp 2, keys"], duel.duel(workers, rounds, 2, warm_up=2, agree=AGREE))


def main():
    rounds, size = [*sys.argv[1:], *["4", "124M"][len(sys.argv) - 1:]][:2]
    if not duel.NOTES:
        tensor(int(rounds), size)
        context(int(rounds), size)
    beside_torch(int(rounds), size)


main()
