"""PyTorch's pipeline parallelism for GPT2 (torch_gpt2.py) over gloo: a stage on each rank, 1F1B (torch.distributed.pipelining).

Blocks are dealt so that stages multiply about equally many elements, as Tern's are: the last has the matrix of the logits. The first
and the last rank have the embedding, and add up its gradients.
"""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class Stage(nn.Module):
    def __init__(self, model, first, last):
        super().__init__()
        blocks, vocab = len(model.h), model.wte.weight.numel()
        each = sum(p.numel() for p in model.h[0].parameters())
        share = (blocks * each + vocab) / dist.get_world_size()
        ends = [min(blocks, round(share * r / each)) for r in range(dist.get_world_size())] + [blocks]
        self.blocks = model.h[ends[dist.get_rank()]:ends[dist.get_rank() + 1]]
        if first:
            self.wte, self.wpe = model.wte, model.wpe
        if last:
            self.ln_f, self.lm_head = model.ln_f, model.lm_head

    def forward(self, x):
        if hasattr(self, "wte"):
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        x = self.blocks(x)
        return self.lm_head(self.ln_f(x)) if hasattr(self, "lm_head") else x


def pipeline(model, micros):
    """This rank's stage, and a function that runs forward and backward of a batch and returns the mean loss."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = Stage(model, rank == 0, rank == ranks - 1)
    schedule = Schedule1F1B(PipelineStage(stage, rank, ranks, torch.device("cpu")), micros,
                            loss_fn=lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()))
    ends = dist.new_group([0, ranks - 1])

    def run(x, y):
        losses = []
        if rank == 0:
            schedule.step(x)
        elif rank == ranks - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        if rank in (0, ranks - 1):
            dist.all_reduce(model.wte.weight.grad, group=ends)
        loss = torch.stack(losses).mean() if losses else torch.zeros(())
        dist.all_reduce(loss)
        return loss

    return stage, run
