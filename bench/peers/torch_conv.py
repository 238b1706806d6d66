"""../conv.c in PyTorch: torch_conv.py THREADS layer N C O SIZE KERNEL STRIDE PADDING, or THREADS cnn|resnet18 BATCH FOLDER"""
import itertools
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from serve import serve
from shared import load_batches, load_weights


def layer(n, channels, out, size, kernel, stride, padding):
    x, w = torch.randn(n, channels, size, size), torch.randn(out, channels, kernel, kernel)
    dy = torch.randn_like(F.conv2d(x, w, None, stride, padding))
    turn = itertools.count()

    def step():
        i = next(turn) % 3
        if i == 0:
            F.conv2d(x, w, None, stride, padding)
        else:
            torch.ops.aten.convolution_backward(
                dy, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, [i == 1, i == 2, False])
        return 0.0

    return step


class Block(nn.Module):
    def __init__(self, inside, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if inside != out:
            self.downsample = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + (x if self.downsample is None else self.downsample(x)))


def resnet18():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), Block(64, 64, 1), Block(64, 64, 1), Block(64, 128, 2),
        Block(128, 128, 1), Block(128, 256, 2), Block(256, 256, 1), Block(256, 512, 2), Block(512, 512, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9216, 128),
        nn.ReLU(), nn.Linear(128, 10))


def network(make, folder):
    net = make()
    load_weights(net, folder)
    x, y = load_batches(folder)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, foreach=True)

    def step():
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        return loss.item()

    return step


torch.set_num_threads(int(sys.argv[1]))
if sys.argv[2] == "layer":
    serve(layer(*map(int, sys.argv[3:])))
else:
    serve(network({"cnn": cnn, "resnet18": resnet18}[sys.argv[2]], sys.argv[4]))
