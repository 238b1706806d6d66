"""Convolutions against PyTorch's: layers, forward and both gradients, and training steps of a CNN and of ResNet-18.

Options: rounds (9); the cases whose name contains a word (all).
"""
import os
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel

# Images, channels in and out, size, kernel, stride, padding.
LAYERS = {
    "3x3 64 of 56": (8, 64, 64, 56, 3, 1, 1),
    "ResNet 3 to 64": (32, 3, 64, 32, 3, 1, 1),
    "ResNet 64 of 32": (32, 64, 64, 32, 3, 1, 1),
    "ResNet 64 to 128": (32, 64, 128, 32, 3, 2, 1),
    "ResNet 128 of 16": (32, 128, 128, 16, 3, 1, 1),
    "ResNet 256 of 8": (32, 256, 256, 8, 3, 1, 1),
    "ResNet 512 of 4": (32, 512, 512, 4, 3, 1, 1),
    "ResNet 1x1 64 to 128": (32, 64, 128, 32, 1, 2, 0),
    "MNIST 1 to 32": (64, 1, 32, 28, 3, 1, 0),
    "MNIST 32 to 64": (64, 32, 64, 26, 3, 1, 0),
}
PASSES = ("forward", "of the input", "of the weight")
NETWORKS = {"CNN, batch 64": ("cnn", 64), "ResNet-18, batch 32": ("resnet18", 32), "ResNet-18, batch 128": ("resnet18", 128)}


def flops(n, inside, out, size, kernel, stride, padding):
    places = (size + 2 * padding - kernel) // stride + 1
    return 2 * n * out * places ** 2 * inside * kernel ** 2


def run_layer(name, shape, peers, rounds):
    """GFLOP/s of each pass, and the ratio of times in each round."""
    workers = [duel.Worker([duel.program("conv"), "layer", *map(str, shape)])]
    workers += [duel.Worker(p.command("torch_conv.py", duel.THREADS, "layer", *shape)) for p in peers]
    times = [[[] for _ in PASSES] for _ in workers]
    steps = 3 * max(2, min(20, int(1e11 / flops(*shape))))
    for r in range(rounds + 1):
        order = list(enumerate(workers))
        for i, w in order if r % 2 == 0 else reversed(order):
            ms = w.run(steps)[1]
            for k in range(len(PASSES)):
                if r > 0:  # the first warms up
                    times[i][k].append(statistics.median(ms[k::3]))
    for w in workers:
        w.close()
    rows = []
    for k, what in enumerate(PASSES):
        row = [f"{name}, {what}", flops(*shape) / statistics.median(times[0][k]) / 1e6]
        for i in range(1, len(workers)):
            ratios = sorted(b / a for a, b in zip(times[0][k], times[i][k]))
            row += [flops(*shape) / statistics.median(times[i][k]) / 1e6, duel.ratio_text(ratios)]
        rows.append(row)
    return rows


def run_network(name, kind, batch, peers, rounds):
    with tempfile.TemporaryDirectory() as folder:
        tern = duel.Worker([duel.program("conv"), kind, str(batch), folder])
        tern.ask("memory")  # now the folder is written
        others = [duel.Worker(p.command("torch_conv.py", duel.THREADS, kind, batch, folder)) for p in peers]
        r = duel.duel([tern, *others], rounds, 10 if kind == "cnn" else 2, 2, agree=1e-3)
    duel.compare(f"{name}, {duel.THREADS} threads", r, peers)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    word = sys.argv[2] if len(sys.argv) > 2 else ""
    peers = duel.find_peers()
    rows = [row for name, shape in LAYERS.items() if word in name for row in run_layer(name, shape, peers, rounds)]
    if rows:
        head = ["GFLOP/s, %d threads" % duel.THREADS, "Tern"]
        for p in peers:
            head += [p.name, "ratio (of the rounds)"]
        duel.table(head, rows)
    for name, (kind, batch) in NETWORKS.items():
        if word in name:
            run_network(name, kind, batch, peers, rounds)


main()
