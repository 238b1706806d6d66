"""GPT-2 generating text or reading a prompt, as ../decode.c, in PyTorch.

torch_decode.py --share FOLDER [--batch N] [--precision f32|bf16] WHAT N THREADS

A plain loop with preallocated caches: less overhead around the products than any library for generation has.
"""
import argparse
import os

import torch
import torch.nn.functional as F

from serve import serve
from shared import read

FED, HEADS = 64, 12


def attend(q, k, v, causal):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(q.shape[2], k.shape[2]).triu(1) == 1, float("-inf"))
    return scores.softmax(-1) @ v


class Decoder:
    def __init__(self, weights, batch, N):
        self.w, self.batch, self.N = weights, batch, N
        self.layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("h."))
        width, dtype = weights["wte.weight"].shape[1], weights["wte.weight"].dtype
        self.k = [torch.zeros(batch, HEADS, N + FED, width // HEADS, dtype=dtype) for _ in range(self.layers)]
        self.v = [torch.zeros_like(k) for k in self.k]
        self.place = 0

    def linear(self, x, name):
        return F.linear(x, self.w[name + ".weight"], self.w[name + ".bias"])

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.w[name + ".weight"], self.w[name + ".bias"])

    def call(self, T):
        """The largest logit after T more tokens."""
        start, end, B = self.place, self.place + T, self.batch
        tokens = (torch.arange(start, end) * 7919 % 50257).expand(B, T)
        x = F.embedding(tokens, self.w["wte.weight"]) + self.w["wpe.weight"][start:end]
        for i in range(self.layers):
            q, k, v = (z.view(B, T, HEADS, -1).transpose(1, 2) for z in self.linear(self.norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").chunk(3, 2))
            self.k[i][:, :, start:end] = k
            self.v[i][:, :, start:end] = v
            y = attend(q, self.k[i][:, :, :end], self.v[i][:, :, :end], T > 1)
            x = x + self.linear(y.transpose(1, 2).reshape(B, T, -1), f"h.{i}.attn.c_proj")
            x = x + self.linear(F.gelu(self.linear(self.norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate="tanh"), f"h.{i}.mlp.c_proj")
        self.place = end
        return F.linear(self.norm(x[:, -1:], "ln_f"), self.w["wte.weight"])[0].float().max().item()

    def token(self):
        if self.place == self.N + FED:
            self.place = self.N
        return self.call(1)

    def prompt(self):
        self.place = 0
        return self.call(self.N)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--share", required=True)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--precision", default="f32")
    p.add_argument("what", choices=["token", "prompt"])
    p.add_argument("N", type=int)
    p.add_argument("threads", type=int)
    o = p.parse_args()
    torch.set_num_threads(o.threads)
    weights = read(os.path.join(o.share, "weights.safetensors"))
    if o.precision == "bf16":
        weights = {name: w.bfloat16() for name, w in weights.items()}
    with torch.inference_mode():
        d = Decoder(weights, o.batch, o.N)
        if o.what == "token":
            d.call(o.N)
        serve(getattr(d, o.what))


main()
