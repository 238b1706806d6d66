"""Pooling, interpolation and patches on random shapes against PyTorch's, with gradients; dump_windows draws them."""
from twin import cases, close, run_cases, torch
import torch.nn.functional as F


def check(name, case):
    _, function, keywords = name.split("|")
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


run_cases(cases("dump_windows"), lambda name: name.split("|")[1], check)
