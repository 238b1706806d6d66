"""What PyTorch calls the operations of ops/elementwise/, where it has another name or other arguments."""
import torch
import torch.nn.functional as F

TWINS = {
    "add_scalar": lambda x, k: x + k,
    "mul_scalar": lambda x, k: x * k,
    "sub_scalar": lambda x, k: x - k,
    "div_scalar": lambda x, k: x / k,
    "rsub_scalar": lambda x, k: k - x,
    "rdiv_scalar": lambda x, k: k / x,
    "pow_scalar": lambda x, k: x ** k,
    "silu_mul": lambda a, b: F.silu(a) * b,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardsigmoid": lambda x: F.relu6(x + 3) / 6,  # its own gradient has 1 / 6 in f32 for f64 too
    "clamp": lambda x, low, high: torch.clamp(x, low, high),
    "hardtanh": lambda x, low, high: F.hardtanh(x, low, high),
    "leaky_relu": lambda x, k: F.leaky_relu(x, k),
    "elu": lambda x, alpha, scale=1.0: F.elu(x, alpha) if scale == 1.0 else F.selu(x),
    "masked_fill": lambda x, mask, value: torch.where(mask, torch.full((), value, dtype=x.dtype), x),
}

# tanh's gradient, from the result: 1 - y y.
TERMS = {"tanh": lambda x: 1.0}
