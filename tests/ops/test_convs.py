"""Convolutions on random shapes against PyTorch's: results, gradients, and the gradient of a penalty on the gradient."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from twin import close as close_some, dump, run, torch
import torch.nn.functional as F

CASES = {}
for name, tensor in dump("dump_convs").items():
    case, part = name.rsplit("/", 1)
    CASES.setdefault(case, {})[part] = tensor


def close(got, want, what, tolerance):
    """An empty batch has only a shape to compare."""
    if got.shape != want.shape or want.numel():
        close_some(got, want, what, tolerance)


def check(name):
    _, function, keywords = name.split("|")
    case = CASES[name]
    given = [case[k].requires_grad_(True) if k in case else None for k in "xwb"]
    y = getattr(F, function)(*given, **eval("dict(%s)" % keywords))
    close(case["y"], y.detach(), "result", 1e-13)
    for k, wanted in zip("xwb", torch.autograd.grad(y, [t for t in given if t is not None], case["gy"], create_graph=True)):
        close(case["g" + k], wanted.detach(), "gradient of " + k, 1e-13)
        if k == "x":
            penalty = wanted.square().sum()
    wanted = torch.autograd.grad(penalty, given[1], allow_unused=True)[0]  # PyTorch has none for an empty batch
    close(case["pw"], torch.zeros_like(given[1]) if wanted is None else wanted, "gradient of the penalty", 1e-12)


def check_all(function):
    for name in (name for name in CASES if name.split("|")[1] == function):
        try:
            check(name)
        except Exception as error:
            raise AssertionError("%s of %s and %s: %s" % (name, list(CASES[name]["x"].shape), list(CASES[name]["w"].shape), error))


FUNCTIONS = sorted({name.split("|")[1] for name in CASES})
run([("%s, %d shapes" % (f, sum(name.split("|")[1] == f for name in CASES)), lambda f=f: check_all(f)) for f in FUNCTIONS])
