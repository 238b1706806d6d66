"""Convolutions on random shapes against PyTorch's: results, gradients, and the gradient of a penalty on the gradient."""
from twin import cases, close as close_some, run_cases, torch
import torch.nn.functional as F


def close(got, want, what, tolerance):
    """An empty batch has only a shape to compare."""
    if got.shape != want.shape or want.numel():
        close_some(got, want, what, tolerance)


def check(name, case):
    _, function, keywords = name.split("|")
    given = [case[k].requires_grad_(True) if k in case else None for k in "xwb"]
    y = getattr(F, function)(*given, **eval("dict(%s)" % keywords))
    close(case["y"], y.detach(), "result", 1e-13)
    for k, wanted in zip("xwb", torch.autograd.grad(y, [t for t in given if t is not None], case["gy"], create_graph=True)):
        close(case["g" + k], wanted.detach(), "gradient of " + k, 1e-13)
        if k == "x":
            penalty = wanted.square().sum()
    wanted = torch.autograd.grad(penalty, given[1], allow_unused=True)[0]  # PyTorch has none for an empty batch
    close(case["pw"], torch.zeros_like(given[1]) if wanted is None else wanted, "gradient of the penalty", 1e-12)


run_cases(cases("dump_convs"), lambda name: name.split("|")[1], check)
