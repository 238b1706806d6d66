"""What PyTorch calls the operations of ops/nn/, where it has another name or other arguments."""
import math

import torch
import torch.nn.functional as F


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


def channels(x):
    """All dimensions but the channels'."""
    return [d for d in range(x.dim()) if d != 1]


def batch_norm(x, w=None, b=None, eps=1e-5):
    """torch.batch_norm, unlike F's, takes one element per channel. The statistics are results too."""
    y = torch.batch_norm(x, w, b, None, None, True, 0.0, eps, False) if x.numel() else x * 1
    return y, x.mean(channels(x)), x.var(channels(x), unbiased=False)


def batch_norm_given(x, w=None, b=None, mean=None, var=None, eps=1e-5):
    """F.batch_norm in eval mode; but PyTorch has no gradients of the statistics."""
    shape = [1, -1] + [1] * (x.dim() - 2)
    y = (x - mean.reshape(shape)) / torch.sqrt(var.reshape(shape) + eps)
    y = y if w is None else y * w.reshape(shape)
    y = y if b is None else y + b.reshape(shape)
    with torch.no_grad():
        assert torch.allclose(y, F.batch_norm(x, mean, var, w, b, False, 0.0, eps), rtol=1e-4, atol=1e-5)
    return y


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


TWINS = {
    "embedding": lambda w, i: F.embedding(i.long(), w),
    "softmax": lambda x, dim: torch.softmax(x, dim),
    "log_softmax": lambda x, dim: torch.log_softmax(x, dim),
    "layer_norm": lambda x, w=None, b=None, eps=1e-5: F.layer_norm(x, x.shape[-1:], w, b, eps),
    "rms_norm": rms_norm,
    "batch_norm": batch_norm,
    "batch_norm_given": batch_norm_given,
    "add_layer_norm": lambda a, b, w=None, bias=None, eps=1e-5: (F.layer_norm(a + b, a.shape[-1:], w, bias, eps), a + b),
    "add_rms_norm": lambda a, b, w=None, eps=1e-5: (rms_norm(a + b, w, eps), a + b),
    "attention": attention,
    "attention_qkv": attention_qkv,
    "rotary": rotary,
    "rotary_qkv": lambda q, k, v, positions, **more: (rotary(q, positions, **more), rotary(k, positions, **more), v * 1),
}

# Gradients that are differences of much larger terms: how much larger than the result's weights those terms are.
TERMS = {
    "layer_norm": lambda x, *_, eps: 1.0 / math.sqrt(x.var(-1, unbiased=False).min().item() + eps) if x.numel() else 1.0,
    "add_layer_norm": lambda a, b, *_, eps: TERMS["layer_norm"](a + b, eps=eps),
    "batch_norm": lambda x, *_, eps: 1.0 / math.sqrt(x.var(channels(x), unbiased=False).min().item() + eps) if x.numel() else 1.0,
    "add_rms_norm": lambda a, b, *_, eps: TERMS["rms_norm"](a + b, eps=eps),
    "rms_norm": lambda x, *_, eps: 1.0 / math.sqrt(x.pow(2).mean(-1).min().item() + eps) if x.numel() else 1.0,
}
