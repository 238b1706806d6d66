"""GPT-2 124M with f32 parameters, computed in bf16: beside Tern's own f32, and beside PyTorch.

PyTorch runs under its autocast, but without AVX-512 in f32: its bf16 products are plain loops there and a step takes minutes.
Options: rounds, tokens. 4 sequences of 64 and of 256 tokens, or of so many; a turn is two steps. Products in bf16 are faster
than in f32 where the processor has instructions for them (avx512_bf16, amx_bf16); elsewhere operands become f32 on their way
into a product, and bf16 saves memory but no arithmetic.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel


def cpu_flags():
    with open("/proc/cpuinfo") as f:
        return set(f.read().split())


def worker(command, T, dtype, *more):
    return duel.Worker(command + ["--precision", dtype, str(T), *more])


def tern(T, dtype):
    return worker([duel.program("gpt2")], T, dtype)


def pytorch(T, dtype):
    return worker(duel.peer("torch_gpt2.py"), T, dtype, str(duel.THREADS))


def main():
    torch, flags = duel.have_torch(), cpu_flags()
    theirs = "bf16" if "avx512f" in flags else "f32"
    rows = []
    lengths = [int(sys.argv[2])] if len(sys.argv) > 2 else [64, 256]
    for T in lengths:
        rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6 if T < 256 else 4
        own = duel.duel(tern(T, "bf16"), tern(T, "f32"), rounds, 2, warm_up=1)
        rows += [
            [f"T = {T}: ms a step, beside own f32", own["tern"], own["torch"], duel.ratio_text(own)],
            ["  MiB in tensors at most", own["memory"][0][1], own["memory"][1][1], None],
            ["  last loss", own["loss"][0], own["loss"][1], None],
        ]
        if torch:
            r = duel.duel(tern(T, "bf16"), pytorch(T, theirs), rounds, 2, warm_up=1)
            rows.append([f"  ms a step, beside PyTorch's {theirs}", r["tern"], r["torch"], duel.ratio_text(r)])
    duel.table([f"{duel.THREADS} threads", "Tern bf16", "the other", "ratio (of the rounds)"], rows)
    found = sorted(flags & {"avx512_bf16", "amx_bf16"})
    print(f"bf16 arithmetic of this processor: {', '.join(found) if found else 'none'}")
    if not torch:
        duel.no_torch()


main()
