"""Modules against PyTorch's with the same weights: results, gradients of inputs and parameters, and initial distributions."""
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from twin import below, close, dump, run, torch
import torch.nn.functional as F

DATA = dump("dump_nn")


# ---- Twins: f(x, p) with p the parameters by name ---------------------------------------------------------------------------

def linear(x, p, name=""):
    return F.linear(x, p[name + "weight"], p.get(name + "bias"))


def layer_norm(x, p, name=""):
    return F.layer_norm(x, x.shape[-1:], p[name + "weight"], p.get(name + "bias"), 1e-5)


def rms_norm(x, p):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * p["weight"]


def attention(x, p, heads, causal=True, mask=None, name=""):
    b, t, c = x.shape
    q, k, v = (z.view(b, t, heads, c // heads).transpose(1, 2) for z in linear(x, p, name + "c_attn.").split(c, 2))
    seen = torch.ones(t, t, dtype=torch.bool).tril() if causal else torch.ones(t, t, dtype=torch.bool)
    seen = seen if mask is None else seen & mask
    scores = (q @ k.transpose(-2, -1) / math.sqrt(c // heads)).masked_fill(~seen, -math.inf)
    weights = torch.nan_to_num(scores.softmax(-1))  # a position that sees nothing gives zeros
    return linear((weights @ v).transpose(1, 2).reshape(b, t, c), p, name + "c_proj.")


GELU_TANH = lambda x: F.gelu(x, approximate="tanh")


def mlp(activation):
    return lambda x, p, name="": linear(activation(linear(x, p, name + "c_fc.")), p, name + "c_proj.")


def block(x, p, heads, name=""):
    x = x + attention(layer_norm(x, p, name + "ln_1."), p, heads, name=name + "attn.")
    return x + mlp(GELU_TANH)(layer_norm(x, p, name + "ln_2."), p, name + "mlp.")


def gpt(tokens, p, heads, layers):
    x = p["wte.weight"][tokens] + p["wpe.weight"][torch.arange(tokens.shape[1])]
    for i in range(layers):
        x = block(x, p, heads, "h.%d." % i)
    return layer_norm(x, p, "ln_f.") @ p["wte.weight"].T


TWINS = {
    "linear": linear, "linear_without_bias": linear, "embedding": lambda i, p: F.embedding(i, p["weight"]),
    "layer_norm": layer_norm, "rms_norm": rms_norm,
    "masked_attention": lambda x, p, mask: attention(x, p, 3, causal=False, mask=mask),
    "mlp_gelu": mlp(F.gelu), "mlp_gelu_tanh": mlp(GELU_TANH), "mlp_relu": mlp(F.relu), "mlp_silu": mlp(F.silu),
    "block": lambda x, p: block(x, p, 4), "block_without_bias": lambda x, p: block(x, p, 4),
}


# ---- Tests ------------------------------------------------------------------------------------------------------------------

def parameters(case):
    return {name: t.requires_grad_(True) for name, t in below(case, "p.").items()}


def check_gradients(case, p, tolerance):
    grads = below(case, "g.")
    if set(grads) != set(p):
        raise AssertionError("gradients of %s" % sorted(grads))
    for name, t in p.items():
        close(grads[name], t.grad, "gradient of " + name, tolerance)


def check_module(name):
    case = below(DATA, name + "/")
    p, x = parameters(case), case["x"]
    if x.is_floating_point():
        x.requires_grad_(True)
    y = TWINS[name](x, p, case["mask"]) if "mask" in case else TWINS[name](x, p)
    close(case["y"], y.detach(), "result", 1e-12)
    y.backward(case["gy"])
    if x.is_floating_point():
        close(case["gx"], x.grad, "gradient of x", 1e-11)
    check_gradients(case, p, 1e-11)


def check_mixed():
    """A policy is PyTorch's autocast here: four products and an activation round to bf16 (2**-9) at the same places, and some
    numbers to the other side."""
    case = below(DATA, "mixed/")
    p, x = parameters(case), case["x"].requires_grad_(True)
    with torch.autocast("cpu", torch.bfloat16):
        y = mlp(GELU_TANH)(x, p)
    close(case["y"], y.detach().float(), "result", 2 ** -7)
    if not torch.equal(case["y"], case["y"].bfloat16().float()):
        raise AssertionError("the result is not of bf16")
    y.float().backward(case["gy"])
    close(case["gx"], x.grad, "gradient of x", 2 ** -6)
    check_gradients(case, p, 2 ** -6)


def check_gpt(name, tolerance):
    case = below(DATA, name + "/")
    p = parameters(case)
    logits = gpt(case["tokens"], p, 2, 3)
    loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), case["targets"].view(-1))
    close(case["logits"], logits.detach(), "logits", tolerance)
    close(case["loss"], loss.detach(), "loss", tolerance)
    loss.backward()
    check_gradients(case, p, tolerance)


def check_gpt_init():
    """GPT's initial weights: standard deviations, zeros and ones."""
    for name, t in below(DATA, "gpt_f32/p.").items():
        if t.dim() == 2:
            std = 0.02 / math.sqrt(6) if name.endswith("c_proj.weight") else 0.02
            error = std * 5 / math.sqrt(2 * t.numel())
            if abs(t.std().item() - std) > error or abs(t.mean().item()) > 5 * std / math.sqrt(t.numel()):
                raise AssertionError("%s: mean %g, std %g" % (name, t.mean().item(), t.std().item()))
        elif not torch.equal(t, torch.zeros_like(t) if name.endswith("bias") else torch.ones_like(t)):
            raise AssertionError("%s is %s" % (name, t))


def same_distribution(got, want):
    """Two-sample Kolmogorov-Smirnov, at a level that a right draw misses once in a million; and the same bounds."""
    a, b = got.flatten().sort()[0].double(), want.flatten().sort()[0].double()
    both = torch.cat([a, b])
    gap = (torch.searchsorted(a, both, right=True) / a.numel() - torch.searchsorted(b, both, right=True) / b.numel()).abs().max().item()
    limit = math.sqrt(-math.log(0.5e-6) / 2 * (a.numel() + b.numel()) / (a.numel() * b.numel()))
    if gap > limit:
        raise AssertionError("the distributions differ by %g (limit %g); mean %g and %g, std %g and %g" % (
            gap, limit, a.mean(), b.mean(), a.std(), b.std()))


def check_init(name, make, bounded):
    got = DATA["init/" + name]
    torch.manual_seed(1)
    want = make(torch.empty(got.shape)).detach()
    same_distribution(got, want)
    if bounded and got.numel() > 10000:
        for a, b in ((got.min(), want.min()), (got.max(), want.max())):
            if abs(a - b).item() > 0.01 * (want.max() - want.min()).item():
                raise AssertionError("from %g to %g, PyTorch's %g to %g" % (got.min(), got.max(), want.min(), want.max()))


I = torch.nn.init
INITS = {
    "linear.weight": (lambda t: torch.nn.Linear(150, 200).weight, True),
    "linear.bias": (lambda t: torch.nn.Linear(150, 200).bias, True),
    "embedding.weight": (lambda t: torch.nn.Embedding(200, 150).weight, False),
    "xavier_uniform": (lambda t: I.xavier_uniform_(t, 1.5), True), "xavier_normal": (lambda t: I.xavier_normal_(t, 1.5), False),
    "kaiming_uniform": (lambda t: I.kaiming_uniform_(t, 1.5), True), "kaiming_normal": (lambda t: I.kaiming_normal_(t, 1.5), False),
    "uniform": (lambda t: I.uniform_(t, -2.0, 3.0), True), "normal": (lambda t: I.normal_(t, 1.0, 0.5), False),
    "constant": (lambda t: I.constant_(t, 0.25), True),
}

run([(name, lambda name=name: check_module(name)) for name in TWINS] +
    [("mixed precision", check_mixed), ("gpt in f64", lambda: check_gpt("gpt", 1e-11)), ("gpt in f32", lambda: check_gpt("gpt_f32", 2e-5)),
     ("initial weights of gpt", check_gpt_init)] +
    [("init " + name, lambda name=name: check_init(name, *INITS[name])) for name in INITS])
