"""ResNet-18 on CIFAR-10's shape: training steps of 32 pictures, Tern and PyTorch in turns. Options: rounds, width.

All begin with the same weights and learn the same batch, so their losses agree except for rounding, which grows with the steps.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    width = sys.argv[2] if len(sys.argv) > 2 else "64"
    peers = duel.find_peers()
    with tempfile.TemporaryDirectory() as folder:
        tern = duel.Worker([duel.program("resnet"), folder, width])
        tern.ask("memory")  # now the folder is written
        others = [duel.Worker(p.command("torch_resnet.py", folder, duel.THREADS, width)) for p in peers]
        r = duel.duel([tern, *others], rounds, 2, warm_up=2, agree=2e-2)
    duel.compare(f"ResNet-18, width {width}, {duel.THREADS} threads", r, peers)


main()
