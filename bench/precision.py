"""GPT-2 124M with f32 parameters, computed in bf16: against Tern's own f32, and against PyTorch.

PyTorch runs under its autocast, but without AVX-512 in f32: its bf16 products are plain loops there and a step takes minutes.
Options: rounds, tokens. 4 sequences of 64 and of 256 tokens, or of `tokens`; a turn is two steps. Products in bf16 are faster
than in f32 where the processor has instructions for them (avx512_bf16, amx_bf16); elsewhere operands are converted to f32 for a
product, and bf16 saves memory but no arithmetic.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel


def cpu_flags():
    with open("/proc/cpuinfo") as f:
        return set(f.read().split())


def measure(T, rounds, peers, theirs):
    """Tern's bf16 first, its own f32, then the peers'."""
    with tempfile.TemporaryDirectory() as folder:
        tern = duel.Worker([duel.program("gpt2"), "--precision", "bf16", "--share", folder, str(T)])
        tern.ask("memory")  # now the folder is written
        own = duel.Worker([duel.program("gpt2"), "--precision", "f32", str(T)])  # from the same seed
        others = [duel.Worker(p.command("torch_gpt2.py", "--precision", theirs, "--share", folder, T, duel.THREADS)) for p in peers]
        return duel.duel([tern, own, *others], rounds, 2, warm_up=1, agree=2e-3)


class Own:
    """Tern's f32, as a column."""

    name, crippled = "Tern f32", ""


def main():
    peers, flags = duel.find_peers(), cpu_flags()
    theirs = "bf16" if "avx512f" in flags else "f32"
    for T in [int(sys.argv[2])] if len(sys.argv) > 2 else [64, 256]:
        rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6 if T < 256 else 4
        r = measure(T, rounds, peers, theirs)
        duel.compare(f"GPT-2 124M, bf16 (PyTorch: {theirs}), T = {T}, {duel.THREADS} threads", r, [Own, *peers])
    found = sorted(flags & {"avx512_bf16", "amx_bf16"})
    print(f"bf16 arithmetic of this processor: {', '.join(found) if found else 'none'}")


main()
