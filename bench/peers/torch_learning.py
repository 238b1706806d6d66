"""The GPT-2 of ../learning.c in PyTorch, from its weights and with its batches: torch_learning.py FOLDER THREADS

Writes the losses to FOLDER/torch.csv.
"""
import math
import os
import sys

import torch
import torch.nn as nn

from shared import load_batches, load_weights
from torch_gpt2 import GPT2

VOCAB, CONTEXT, LAYERS, HEADS, WIDTH = 50257, 64, 4, 4, 128
PEAK, END, WARM_UP = 6e-4, 6e-5, 100


def rate(step, steps):
    """A linear warm-up, then a cosine."""
    if step < WARM_UP:
        return PEAK * (step + 1) / (WARM_UP + 1)
    t = min(1.0, (step - WARM_UP) / (steps - WARM_UP)) if steps > WARM_UP else 1.0
    return END + (PEAK - END) * (1 + math.cos(math.pi * t)) / 2


def main():
    folder = sys.argv[1]
    torch.set_num_threads(int(sys.argv[2]))
    xs, ys = load_batches(folder)
    model = GPT2(CONTEXT, VOCAB, LAYERS, HEADS, WIDTH, context=CONTEXT)
    load_weights(model, folder)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    opt = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95))
    with open(os.path.join(folder, "torch.csv"), "w") as file:
        file.write("step,loss\n")
        for step, (x, y) in enumerate(zip(xs, ys)):
            for group in opt.param_groups:
                group["lr"] = rate(step, len(xs))
            loss = model(x, y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            file.write(f"{step},{loss.item():.9g}\n")
    print(torch.__version__)


main()
