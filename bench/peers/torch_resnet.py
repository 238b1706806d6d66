"""The ResNet-18 of ../../examples/15_resnet.c in PyTorch, from its weights and with its batch: torch_resnet.py FOLDER THREADS WIDTH"""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F


class BasicBlock(nn.Module):
    def __init__(self, n, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or n != out:
            self.downsample = nn.Sequential(nn.Conv2d(n, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + (self.downsample(x) if self.downsample else x))


def stage(n, out, stride):
    return nn.Sequential(BasicBlock(n, out, stride), BasicBlock(out, out, 1))


class ResNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.layer1, self.layer2 = stage(width, width, 1), stage(width, 2 * width, 2)
        self.layer3, self.layer4 = stage(2 * width, 4 * width, 2), stage(4 * width, 8 * width, 2)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(h)))).mean((2, 3)))


def main():
    from serve import serve
    from shared import load_batches, read
    torch.set_num_threads(int(sys.argv[2]))
    x, y = load_batches(sys.argv[1])
    model = ResNet(int(sys.argv[3]), 10)
    model.load_state_dict(read(os.path.join(sys.argv[1], "weights.safetensors")))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, foreach=True)

    def step():
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        return loss.item()

    serve(step)


if __name__ == "__main__":
    main()
