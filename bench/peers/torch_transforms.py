"""torchvision's transforms of one image, written out in PyTorch: lines NAME US, as bench/transforms.c."""
import random
import time

import torch
from torch.nn import functional as F

IMAGES, ROUNDS = 64, 5
MEAN, STD = torch.full((3, 1, 1), 0.5), torch.full((3, 1, 1), 0.2)


def crop(x):
    height, width = x.shape[-2:]
    top, left = random.randint(0, 8), random.randint(0, 8)
    return F.pad(x, (4, 4, 4, 4))[:, top:top + height, left:left + width].clone()


def flip(x):
    return x.flip(-1) if random.random() < 0.5 else x.clone()


def blend(x, other, factor):
    return (factor * x + (1.0 - factor) * other).clamp_(0, 1)


def gray(x):
    return (0.2989 * x[0] + 0.587 * x[1] + 0.114 * x[2]).unsqueeze(0)


def jitter(x):
    for what in random.sample("bcs", 3):
        factor = random.uniform(0.8, 1.2)
        other = torch.zeros_like(x) if what == "b" else gray(x).mean() if what == "c" else gray(x)
        x = blend(x, other, factor)
    return x


def normalize(x):
    return (x - MEAN) / STD


def resize(x):
    side = x.shape[-1] * 3 // 4
    return F.interpolate(x[None], (side, side), mode="bilinear", antialias=True)[0]


torch.set_num_threads(1)
for side in (32, 224):
    images = torch.rand(IMAGES, 3, side, side)
    count = 20 * IMAGES if side < 100 else IMAGES
    for function in (crop, flip, jitter, normalize, resize):
        best = float("inf")
        for _ in range(ROUNDS):
            begin = time.monotonic()
            for i in range(count):
                function(images[i % IMAGES])
            best = min(best, (time.monotonic() - begin) / count * 1e6)
        print("%s_%d %.3f" % (function.__name__, side, best))
