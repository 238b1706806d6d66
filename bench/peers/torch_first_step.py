"""The first training step of ../first_step.c in PyTorch: ms since START with the library loaded, the model, the step."""
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

started = float(sys.argv[1])
loaded = time.monotonic()
net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
opt = torch.optim.AdamW(net.parameters())
built = time.monotonic()
x, y = torch.rand(64, 784), torch.randint(10, (64,))
F.cross_entropy(net(x), y).backward()
opt.step()
opt.zero_grad(set_to_none=True)
stepped = time.monotonic()
print(*(f"{(t - started) * 1e3:.3f}" for t in (loaded, built, stepped)))
