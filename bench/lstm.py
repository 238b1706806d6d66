"""LSTMs over characters: training steps, Tern and PyTorch in turns. Options: rounds, steps per turn.

Two layers of 256 units over 100 time steps, and one of 512 over 64, each on 32 sequences. All begin with the same weights and learn
the same batch: their losses agree.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel

SIZES = [(2, 256, 32, 100), (1, 512, 32, 64)]  # layers, width, batch, time steps


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    peers = duel.find_peers()
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            tern = duel.Worker([duel.program("lstm"), *map(str, size), folder])
            tern.ask("memory")  # now the folder is written
            others = [duel.Worker(p.command("torch_lstm.py", folder, duel.THREADS, *size[:2])) for p in peers]
            r = duel.duel([tern, *others], rounds, steps, warm_up=3, agree=1e-4)
        duel.compare("LSTM, %d x %d, B %d, T %d, %d threads" % (*size, duel.THREADS), r, peers)


main()
