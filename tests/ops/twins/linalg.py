"""What PyTorch calls the operations of ops/linalg/, where it has another name or other arguments."""
import torch
import torch.nn.functional as F

TWINS = {
    "einsum": lambda *t, equation: torch.einsum(equation, *t),
    "linear_q8": lambda x, w, s, b=None: F.linear(x, s.to(x.dtype)[:, None] * w.to(x.dtype), b),
    "mlp": lambda x, w1, b1, w2, b2: F.linear(F.gelu(F.linear(x, w1, b1), approximate="tanh"), w2, b2),
    "linear_gelu": lambda x, w, b=None: F.gelu(F.linear(x, w, b), approximate="tanh"),
}
