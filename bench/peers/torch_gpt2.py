"""One training step of GPT-2 124M in f32, as ../gpt2.c, in PyTorch. Usage: torch_gpt2.py T THREADS"""
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from serve import serve

VOCAB, CONTEXT, LAYERS, HEADS, WIDTH, BATCH = 50257, 1024, 12, 12, 768, 4


class Attention(nn.Module):
    def __init__(self, T):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        future = torch.ones(T, T).triu(1) == 1
        self.register_buffer("future", future[None, None])

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, HEADS, -1).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(2, 3)) * (C // HEADS) ** -0.5
            y = scores.masked_fill(self.future, -math.inf).softmax(dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, T):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), Attention(T), nn.LayerNorm(WIDTH)
        self.c_fc, self.c_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, T):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.Sequential(*(Block(T) for _ in range(LAYERS)))
        self.ln_f = nn.LayerNorm(WIDTH)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        logits = F.linear(self.ln_f(self.h(h)), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def main():
    T = int(sys.argv[1])
    torch.set_num_threads(int(sys.argv[2]))
    torch.manual_seed(1337)
    model = GPT2(T)
    # foreach=True would be no faster here and keeps more temporaries.
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    x, y = torch.randint(VOCAB, (BATCH, T)), torch.randint(VOCAB, (BATCH, T))

    def step():
        loss = model(x, y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        return loss.item()

    serve(step)


main()
