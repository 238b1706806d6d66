"""Pooling, interpolation and patches on random shapes against PyTorch's, with gradients; dump_windows draws them."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from twin import close, dump, run, torch
import torch.nn.functional as F

CASES = {}
for name, tensor in dump("dump_windows").items():
    case, part = name.rsplit("/", 1)
    CASES.setdefault(case, {})[part] = tensor


def check(name):
    number, function, keywords = name.split("|")
    case = CASES[name]
    x = case["x"].requires_grad_(True)
    y = getattr(F, function)(x, **eval("dict(%s)" % keywords))
    if not torch.allclose(case["y"], y.detach(), rtol=1e-12, atol=1e-12):
        raise AssertionError("the result differs")
    if function == "interpolate" and "nearest" in keywords and "scale_factor" in keywords:
        # PyTorch's own gradient takes the scale from the sizes. A linear map's must have <gx, x> = <gy, y>.
        close((case["gx"] * x).sum().detach(), (case["gy"] * y).sum().detach(), "gradient", 1e-10)
        return
    y.backward(case["gy"])
    if torch.isfinite(y).all():  # if a window is all padding, PyTorch writes its gradient past the image's end
        close(case["gx"], x.grad, "gradient", 1e-12)


def check_all(function):
    names = [name for name in CASES if name.split("|")[1] == function]
    for name in names:
        try:
            check(name)
        except Exception as error:
            raise AssertionError("%s of %s: %s" % (name, list(CASES[name]["x"].shape), error))


FUNCTIONS = sorted({name.split("|")[1] for name in CASES})
run([("%s, %d shapes" % (f, sum(name.split("|")[1] == f for name in CASES)), lambda f=f: check_all(f)) for f in FUNCTIONS])
