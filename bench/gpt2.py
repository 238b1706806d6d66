"""GPT-2 124M in f32: one training step on 4 sequences of 64 and of 256 tokens, Tern and PyTorch in turns.

Options: rounds. Each turn is two steps. The losses are those of the same number of steps on other random tokens.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel


def main():
    torch = duel.have_torch()
    rows = []
    for T, rounds in (64, 6), (256, 4):
        rounds = int(sys.argv[1]) if len(sys.argv) > 1 else rounds
        tern = duel.Worker([duel.program("gpt2"), str(T)])
        peer = duel.Worker(duel.peer("torch_gpt2.py") + [str(T), str(duel.THREADS)]) if torch else None
        r = duel.duel(tern, peer, rounds, 2, warm_up=1)
        rows += [
            [f"T = {T}: ms a step", r["tern"], r["torch"], duel.ratio_text(r)],
            ["  MiB at most", r["memory"][0][0], r["memory"][1][0] if torch else None,
             f"{r['memory'][1][0] / r['memory'][0][0]:.2f}" if torch else None],
            ["  MiB in tensors at most", r["memory"][0][1], None, None],
            ["  last loss", r["loss"][0], r["loss"][1], None],
        ]
    duel.table([f"{duel.THREADS} threads", "Tern", "PyTorch", "ratio (of the rounds)"], rows)
    if not torch:
        duel.no_torch()


main()
