"""GPT-2 124M in f32: one training step on 4 sequences of 64 and of 256 tokens, Tern and PyTorch in turns.

Options: rounds, tokens. Each turn is two steps. All begin with the same weights and learn the same batch: their losses agree.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel


def main():
    peers = duel.find_peers()
    for T in [int(sys.argv[2])] if len(sys.argv) > 2 else [64, 256]:
        rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6 if T < 256 else 4
        with tempfile.TemporaryDirectory() as folder:
            tern = duel.Worker([duel.program("gpt2"), "--share", folder, str(T)])
            tern.ask("memory")  # now the folder is written
            others = [duel.Worker(p.command("torch_gpt2.py", "--share", folder, T, duel.THREADS)) for p in peers]
            r = duel.duel([tern, *others], rounds, 2, warm_up=1, agree=1e-4)
        duel.compare(f"GPT-2 124M, f32, T = {T}, {duel.THREADS} threads", r, peers)


main()
