"""GPT-2 124M with f32 parameters, computed in bf16: beside Tern's own f32, and beside PyTorch under autocast.

Options: rounds. 4 sequences of 64 and of 256 tokens; a turn is two steps. Products in bf16 are faster than in f32 where the
processor has instructions for them (avx512_bf16, amx_bf16); elsewhere operands become f32 on their way into a product, and
bf16 saves memory but no arithmetic.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel


def arithmetic():
    with open("/proc/cpuinfo") as f:
        flags = set(f.read().split())
    return sorted(flags & {"avx512_bf16", "amx_bf16"})


def worker(T, dtype):
    return duel.Worker([duel.program("precision"), str(T), dtype])


def main():
    torch = duel.have_torch()
    rows = []
    for T, rounds in (64, 6), (256, 4):
        rounds = int(sys.argv[1]) if len(sys.argv) > 1 else rounds
        own = duel.duel(worker(T, "bf16"), worker(T, "f32"), rounds, 2, warm_up=1)
        rows += [
            [f"T = {T}: ms a step, beside own f32", own["tern"], own["torch"], duel.ratio_text(own)],
            ["  MiB in tensors at most", own["memory"][0][1], own["memory"][1][1], None],
            ["  last loss", own["loss"][0], own["loss"][1], None],
        ]
        if torch:
            peer = duel.Worker(duel.peer("torch_gpt2.py") + [str(T), str(duel.THREADS), "bf16"])
            r = duel.duel(worker(T, "bf16"), peer, rounds, 2, warm_up=1)
            rows.append(["  ms a step, beside PyTorch", r["tern"], r["torch"], duel.ratio_text(r)])
    duel.table([f"{duel.THREADS} threads", "Tern bf16", "the other", "ratio (of the rounds)"], rows)
    found = arithmetic()
    print(f"bf16 arithmetic of this processor: {', '.join(found) if found else 'none'}")
    if not torch:
        duel.no_torch()


main()
