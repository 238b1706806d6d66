"""The character GPT of ../char_gpt.c in PyTorch, from its weights and with its batches: torch_char_gpt.py FOLDER THREADS VOCAB"""
import itertools
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from serve import serve
from shared import load_batches, load_weights

LAYERS, HEADS, WIDTH, CONTEXT, BATCH = 4, 4, 128, 64, 12


class LayerNorm(nn.Module):
    """Without a bias, which nn.LayerNorm of old versions does not support."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return F.layer_norm(x, (WIDTH,), self.weight)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        future = torch.ones(CONTEXT, CONTEXT).triu(1) == 1
        self.register_buffer("future", future[None, None])

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, HEADS, -1).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(2, 3)) * (C // HEADS) ** -0.5
            y = scores.masked_fill(self.future[:, :, :T, :T], -math.inf).softmax(dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = LayerNorm(), Attention(), LayerNorm()
        self.c_fc = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.c_proj = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.ln_f = LayerNorm()

    def forward(self, x, y):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        logits = F.linear(self.ln_f(self.h(h)), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def main():
    torch.set_num_threads(int(sys.argv[2]))
    xs, ys = load_batches(sys.argv[1])
    model = GPT(int(sys.argv[3]))
    load_weights(model, sys.argv[1])
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    opt = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), foreach=True)

    turn = itertools.count()

    def batch():
        i = next(turn) % len(xs)
        return xs[i], ys[i]

    def step(x, y):
        loss = model(x, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return loss.item()

    serve(step, batch)


main()
