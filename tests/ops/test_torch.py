"""Every result and gradient of every operation against PyTorch's, on the registry's samples in f32 and f64.

dump_samples writes what Tern computes; here each operation has its PyTorch twin. An operation without a twin fails. Prints TAP, one
test an operation. Without PyTorch the whole test is skipped, except in CI, where that is a failure.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from twin import torch
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "i8": torch.int8, "bool": torch.bool}


def reduction(f, empty_is_all=True):
    def twin(x, dim=(), keepdim=False, **more):
        dims = tuple(dim) if isinstance(dim, (list, tuple)) else (dim,)
        dims = dims or tuple(range(x.dim()))
        return f(x, dims, keepdim, **more) if dims else f(x.reshape(1), (0,), False, **more)
    return twin


def sum_to(x, size):
    return x.sum_to_size(*size) if size else x.sum()


def attention(q, k, v, mask=None, causal=False, scale=0.0):
    scale = scale or 1.0 / math.sqrt(q.shape[-1])
    repeat = q.shape[1] // max(1, k.shape[1])
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = q @ k.transpose(-2, -1) * scale
    t, s = scores.shape[-2:]
    seen = torch.ones(t, s, dtype=torch.bool)
    if causal:
        seen = torch.arange(s)[None, :] <= torch.arange(t)[:, None] + (s - t)
    if mask is not None:
        seen = seen & mask
    scores = scores.masked_fill(~seen, float("-inf"))
    # A query that sees nothing gives zeros (PyTorch would give NaN).
    blind = ~seen.expand(scores.shape).any(-1, keepdim=True)
    p = torch.softmax(scores.masked_fill(blind, 0.0), -1).masked_fill(blind, 0.0)
    return p @ v


def attention_qkv(qkv, mask=None, heads=1, **more):
    b, t, c = qkv.shape
    q, k, v = [z.reshape(b, t, heads, c // 3 // heads).transpose(1, 2) for z in qkv.split(c // 3, 2)]
    return attention(q, k, v, mask, **more).transpose(1, 2).reshape(b, t, c // 3)


def rms_norm(x, w=None, eps=1e-5):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if w is None else y * w


def rotary(x, positions, theta=10000.0, factor=1.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192, inverse=False):
    """Hugging Face's Llama: _compute_llama3_parameters, rotate_half, apply_rotary_pos_emb."""
    d = x.shape[-1]
    frequency = 1.0 / theta ** (torch.arange(0, d, 2, dtype=torch.float64) / max(d, 1))
    if factor != 1.0:
        length = 2 * math.pi / frequency
        blend = (original_context / length - low_freq_factor) / (high_freq_factor - low_freq_factor)
        between = (1 - blend) * frequency / factor + blend * frequency
        slowed = torch.where(length > original_context / low_freq_factor, frequency / factor, between)
        frequency = torch.where(length < original_context / high_freq_factor, frequency, slowed)
    each = positions if positions.dim() == 2 else positions[None]
    angle = each[:, None, :, None].double() * frequency * (-1.0 if inverse else 1.0)
    angle = torch.cat((angle, angle), -1)
    turned = torch.cat((-x[..., d // 2:], x[..., :d // 2]), -1)
    return x * angle.cos().to(x.dtype) + turned * angle.sin().to(x.dtype)


def cross_entropy(x, y, **more):
    more.pop("consume_logits", None)
    c = x.shape[-1]
    out = F.cross_entropy(x.reshape(-1, c), y.reshape(-1).long(), **more)
    return out.reshape(y.shape) if more.get("reduction") == "none" else out


def scatter_rows(src, index, dim, size):
    dims = list(src.shape)
    dims[dim] = size
    return torch.zeros(dims, dtype=src.dtype).index_add(dim, index.long(), src)


def place(x, dim, start, step, size):
    dims = list(x.shape)
    dims[dim] = size
    index = torch.arange(x.shape[dim]) * step + start
    return torch.zeros(dims, dtype=x.dtype).index_add(dim, index, x)


TWINS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "maximum": torch.maximum, "minimum": torch.minimum,
    "add_scalar": lambda x, k: x + k, "mul_scalar": lambda x, k: x * k, "sub_scalar": lambda x, k: x - k,
    "div_scalar": lambda x, k: x / k, "rsub_scalar": lambda x, k: k - x,
    "rdiv_scalar": lambda x, k: k / x, "pow_scalar": lambda x, k: x ** k,
    "clamp": torch.clamp,
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "square": torch.square, "sin": torch.sin, "cos": torch.cos, "erf": torch.erf, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "relu": torch.relu, "silu": F.silu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "where": torch.where, "masked_fill": lambda x, mask, value: torch.where(mask, torch.full((), value, dtype=x.dtype), x),
    "sum": reduction(lambda x, d, k: x.sum(d, keepdim=k)), "mean": reduction(lambda x, d, k: x.mean(d, keepdim=k)),
    "max": reduction(lambda x, d, k: x.amax(d, keepdim=k)), "min": reduction(lambda x, d, k: x.amin(d, keepdim=k)),
    "var": reduction(lambda x, d, k, correction: x.var(d, correction=correction, keepdim=k)),
    "logsumexp": reduction(lambda x, d, k: torch.logsumexp(x, d, keepdim=k)),
    "argmax": lambda x, dim, keepdim: torch.argmax(x, dim, keepdim), "any": torch.any, "all": torch.all, "sum_to": sum_to,
    "reshape": lambda x, shape: x.reshape(shape), "permute": lambda x, dims: x.permute(dims), "expand": lambda x, size: x.expand(size),
    "slice": lambda x, dim, start, length, step: x.index_select(dim, torch.arange(length) * step + start), "place": place,
    "select": lambda x, dim, index: x.select(dim, index), "identity": lambda x: x.view(x.shape), "copy": torch.clone,
    "to": lambda x, device: x.to(device),
    "cast": lambda x, dtype: x.to(DTYPES[dtype]),
    "cat": lambda *x, dim: torch.cat(x, dim), "stack": lambda *x, dim: torch.stack(x, dim),
    "matmul": torch.matmul, "linear": F.linear,
    "linear_q8": lambda x, w, s, b=None: F.linear(x, s.to(x.dtype)[:, None] * w.to(x.dtype), b),
    "linear_gelu": lambda x, w, b=None: F.gelu(F.linear(x, w, b), approximate="tanh"),
    "index_select": lambda x, i, dim: torch.index_select(x, dim, i), "gather": lambda x, i, dim: torch.gather(x, dim, i.long()),
    "scatter_rows": scatter_rows,
    "scatter_add": lambda src, i, dim, shape: torch.zeros(*shape, dtype=src.dtype).scatter_add(dim, i.long(), src),
    "embedding": lambda w, i: F.embedding(i.long(), w),
    "softmax": lambda x, dim: torch.softmax(x, dim), "log_softmax": lambda x, dim: torch.log_softmax(x, dim),
    "layer_norm": lambda x, w=None, b=None, eps=1e-5: F.layer_norm(x, x.shape[-1:], w, b, eps), "rms_norm": rms_norm,
    "add_layer_norm": lambda a, b, w=None, bias=None, eps=1e-5: (F.layer_norm(a + b, a.shape[-1:], w, bias, eps), a + b),
    "attention": attention, "attention_qkv": attention_qkv, "rotary": rotary,
    "mse": lambda x, y, reduction="mean": F.mse_loss(x, y, reduction=reduction), "cross_entropy": cross_entropy,
}


# Gradients that are differences of much larger terms: how much larger than the result's weights those terms are.
TERMS = {
    "layer_norm": lambda x, *_, eps: 1.0 / math.sqrt(x.var(-1, unbiased=False).min().item() + eps) if x.numel() else 1.0,
    "add_layer_norm": lambda a, b, *_, eps: TERMS["layer_norm"](a + b, eps=eps),
    "rms_norm": lambda x, *_, eps: 1.0 / math.sqrt(x.pow(2).mean(-1).min().item() + eps) if x.numel() else 1.0,
}


def check_dropout(case, x, got, weights, grad):
    """Random, so without a twin: each element is kept and scaled, or zero; about p of them are zero; backward has the same mask."""
    p = eval("dict(%s)" % case["keywords"])["p"]
    kept = got != 0
    scale = 1.0 / (1.0 - p) if p < 1 else 0.0
    close(got, torch.where(kept, x * scale, torch.zeros_like(x)), "result")
    close(grad, torch.where(kept, weights * scale, torch.zeros_like(x)), "gradient")
    n = x.numel()
    if n >= 100 and abs((~kept).double().mean().item() - p) > 5 * math.sqrt(p * (1 - p) / n) + 1e-12:
        raise AssertionError("%g of the elements are zero, not %g" % ((~kept).double().mean().item(), p))


def close(got, want, what, terms=0.0):
    if got.dtype != want.dtype:
        raise AssertionError("%s is %s, PyTorch's %s" % (what, got.dtype, want.dtype))
    if got.shape != want.shape:
        raise AssertionError("%s is %s, PyTorch's %s" % (what, list(got.shape), list(want.shape)))
    if not got.dtype.is_floating_point:
        if not torch.equal(got, want):
            raise AssertionError("%s differs" % what)
        return
    # Relative to each number and, for sums that cancel, to the largest of them.
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}.get(got.dtype, 0.0)  # a cast rounds exactly alike
    finite = want[torch.isfinite(want)].abs()
    top = max(finite.max().item() if finite.numel() else 0.0, terms)
    if not torch.allclose(got, want, rtol=10 * tolerance, atol=tolerance * top + 1e-30, equal_nan=True):
        error = (got - want).abs()
        raise AssertionError("%s differs by up to %g (largest value %g)" % (what, error[torch.isfinite(error)].max().item() if torch.isfinite(error).any() else math.nan, top))


def load(data, array):
    if array is None:
        return None
    dtype = DTYPES[array["dtype"]]
    count = math.prod(array["dims"])
    if count == 0:
        return torch.empty(array["dims"], dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=array["offset"]).reshape(array["dims"]).clone()


def compare(case, data):
    inputs, results, weights, grads = ([load(data, a) for a in case[k]] for k in ("inputs", "results", "weights", "grads"))
    if case["op"] == "dropout":
        check_dropout(case, inputs[0], results[0], weights[0], grads[0])
        return
    twin = TWINS.get(case["op"])
    if twin is None:
        raise AssertionError("the operation has no PyTorch twin in test_torch.py")
    for t in inputs:
        if t is not None and t.dtype.is_floating_point:
            t.requires_grad_(True)
    keywords = eval("dict(%s)" % case["keywords"])
    want = twin(*inputs, **keywords)
    want = want if isinstance(want, (tuple, list)) else (want,)
    for got, expected in zip(results, want):
        close(got, expected.detach(), "result")
    if weights[0] is None:
        return
    if any(w.requires_grad for w in want):
        torch.autograd.backward(want, weights)
    terms = TERMS[case["op"]](*(x.detach() for x in inputs if x is not None), **keywords) if case["op"] in TERMS else 0.0
    for i, (t, got) in enumerate(zip(inputs, grads)):
        if got is not None:
            close(got, t.grad if t.grad is not None else torch.zeros_like(t), "gradient of input %d" % i, terms)


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([os.path.join(os.environ["TERN_TEST_BIN"], "dump_samples"), folder], check=True)
        with open(os.path.join(folder, "data.bin"), "rb") as file:
            data = bytearray(file.read())
        with open(os.path.join(folder, "index.jsonl")) as file:
            cases = [json.loads(line) for line in file]
    names = list(dict.fromkeys(case["op"] for case in cases))
    print("1..%d" % len(names))
    for number, name in enumerate(names, 1):
        count = 0
        try:
            for case in cases:
                if case["op"] == name:
                    compare(case, data)
                    count += 1
            print("ok %d - %s (%d cases)" % (number, name, count))
        except Exception as error:  # the twin itself may refuse the inputs
            print("not ok %d - %s" % (number, name))
            print("# sample %d (%s), %s: %s: %s" % (case["sample"], case["keywords"], [a and (a["dtype"], a["dims"]) for a in case["inputs"]], type(error).__name__, error))


main()
