"""PyTorch's tensor parallelism for GPT2 (torch_gpt2.py), with the plan of its tutorial for a Transformer, over gloo.

A linear layer before an activation or attention computes some columns of its result on each rank (ColwiseParallel), one after it
a part of a sum (RowwiseParallel); the vocabulary's matrix and the logits are cut by tokens (loss_parallel). With `sequence` a rank
has T / N positions between these regions (SequenceParallel). The embedding and the last layer share their matrix.
"""
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module


def regroup_heads(c_attn, ranks):
    """Rows of q, k, v become rows of rank 0's q, k, v, then of rank 1's: a rank's part is a smaller matrix of the same form."""
    with torch.no_grad():
        for p in c_attn.parameters():
            p.copy_(p.unflatten(0, (3, ranks, -1)).transpose(0, 1).reshape(p.shape))


def split(model, sequence):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    here = Shard(1) if sequence else Replicate()  # between the regions
    into, out = ColwiseParallel(input_layouts=here), RowwiseParallel(output_layouts=here)
    plan = {
        "wte": RowwiseParallel(input_layouts=Replicate(), output_layouts=here),
        "h.*.attn.c_attn": into,
        "h.*.attn.c_proj": out,
        "h.*.c_fc": into,
        "h.*.c_proj": out,
        "lm_head": ColwiseParallel(input_layouts=here, use_local_output=False),
    }
    if sequence:
        plan |= {"wpe": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))}
        plan |= {name: SequenceParallel() for name in ("h.*.ln_1", "h.*.ln_2", "ln_f")}
    for block in model.h:
        regroup_heads(block.attn.c_attn, mesh.size())
        block.attn.heads //= mesh.size()
    parallelize_module(model, mesh, plan)
    model.lm_head.weight = model.wte.weight
