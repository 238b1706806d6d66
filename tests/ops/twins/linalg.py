"""What PyTorch calls the operations of ops/linalg/, where it has another name or other arguments."""
import torch
import torch.nn.functional as F


def linear_cat(x, w1, w2=None, w3=None, s1=None, s2=None, s3=None, add=None):
    weights = [w if s is None else s.to(x.dtype)[:, None] * w.to(x.dtype) for w, s in ((w1, s1), (w2, s2), (w3, s3)) if w is not None]
    y = F.linear(x, torch.cat(weights))
    return y if add is None else y + add


TWINS = {
    "einsum": lambda *t, equation: torch.einsum(equation, *t),
    "linear_cat": linear_cat,
    "linear_q8": lambda x, w, s, b=None: F.linear(x, s.to(x.dtype)[:, None] * w.to(x.dtype), b),
    "mlp": lambda x, w1, b1, w2, b2: F.linear(F.gelu(F.linear(x, w1, b1), approximate="tanh"), w2, b2),
    "linear_gelu": lambda x, w, b=None: F.gelu(F.linear(x, w, b), approximate="tanh"),
}
