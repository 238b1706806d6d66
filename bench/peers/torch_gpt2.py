"""Training steps of GPT-2, as ../gpt2.c, in PyTorch.

torch_gpt2.py [--size 124M] [--batch 4] [--vocab 50257] [--device cpu] [--precision f32] [--compile] [--share FOLDER]
              [--stage 2|3 | --split tp|sequence | --micros N] T THREADS

Meant for Debian's PyTorch 1.13 on the CPU, and for a current one on a GPU, where --compile fuses what it can and attention is
the flash kernel. FOLDER has the weights and the batch of Tern's program; without it both are drawn here. With --stage this is one
of several ranks (torchrun's variables), each with its rows of that batch, and FSDP2 shards the model over them; with --split or
--micros all ranks have the whole batch (torch_split.py, torch_pipeline.py).
"""
import argparse
import contextlib
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from serve import peak_rss, serve
from shared import load_batches, load_weights

CONTEXT = 1024
SIZES = {"tiny": (4, 4, 256), "124M": (12, 12, 768), "350M": (24, 16, 1024), "774M": (36, 20, 1280), "1.5B": (48, 25, 1600)}


class Attention(nn.Module):
    def __init__(self, T, heads, width):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        if not hasattr(F, "scaled_dot_product_attention"):
            future = torch.ones(T, T).triu(1) == 1
            self.register_buffer("future", future[None, None])

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(2, 3)) * (C // self.heads) ** -0.5
            y = scores.masked_fill(self.future, -math.inf).softmax(dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, -1))


class Block(nn.Module):
    def __init__(self, T, heads, width):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(width), Attention(T, heads, width), nn.LayerNorm(width)
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, T, vocab, layers, heads, width, context=CONTEXT):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.h = nn.Sequential(*(Block(T, heads, width) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.wte.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        logits = self.lm_head(self.ln_f(self.h(h)))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def spread(model, stage):
    """Shards as ZeRO's stage 3, or as stage 2, where parameters stay whole from forward to backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for m in [*model.h, model]:
        fully_shard(m, mesh=mesh, reshard_after_forward=stage == 3)


def rows_of_rank(t):
    return t.chunk(dist.get_world_size())[dist.get_rank()]


def adamw(model):
    """Fused, three times as fast on the CPU, where this PyTorch can; else one parameter at a time, which needs the least memory.
    DTensors and other tensors are in groups of their own: one call of the fused kernel takes no mixture."""
    kinds = {}
    for p in model.parameters():
        kinds.setdefault(type(p), []).append(p)
    groups = [{"params": params} for params in kinds.values()]
    try:
        return torch.optim.AdamW(groups, lr=1e-4, fused=True)
    except (TypeError, RuntimeError):  # before 2.0; before 2.4 on the CPU
        return torch.optim.AdamW(groups, lr=1e-4, foreach=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="124M")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--share")
    parser.add_argument("--stage", type=int, choices=[2, 3])
    parser.add_argument("--split", choices=["tp", "sequence"])
    parser.add_argument("--micros", type=int)
    parser.add_argument("T", type=int)
    parser.add_argument("threads", type=int)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(1337)
    device, before = o.device.split(":")[0], peak_rss()
    model = GPT2(o.T, o.vocab, *SIZES[o.size])
    if o.share:
        load_weights(model, o.share)
    model = model.to(o.device)
    if o.stage:
        spread(model, o.stage)
    if o.split:
        from torch_split import loss_parallel, split

        split(model, o.split == "sequence")
    loss_context = loss_parallel if o.split else contextlib.nullcontext
    if o.micros:
        from torch_pipeline import pipeline

        model, run = pipeline(model, o.micros)
    opt = adamw(model)
    call = torch.compile(model) if o.compile else model
    if o.share:
        x, y = ((rows_of_rank(t[0]) if o.stage else t[0]).to(o.device) for t in load_batches(o.share))
    else:
        x, y = (torch.randint(50257, (o.batch, o.T), device=o.device) for _ in range(2))

    def pipeline_step():
        opt.zero_grad(set_to_none=True)
        loss = run(x, y)
        opt.step()
        return loss.item()

    def step():
        with loss_context():
            with torch.autocast(device, torch.bfloat16, enabled=o.precision == "bf16"):
                loss = call(x, y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
        opt.step()
        return loss.item()

    serve(pipeline_step if o.micros else step, before=before if o.stage else None)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
