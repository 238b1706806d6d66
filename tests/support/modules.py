"""Modules as functions of PyTorch: f(x, p) with p the parameters by name, below the prefix `name`."""
import math

from twin import torch
import torch.nn.functional as F


def linear(x, p, name=""):
    return F.linear(x, p[name + "weight"], p.get(name + "bias"))


def layer_norm(x, p, name=""):
    return F.layer_norm(x, x.shape[-1:], p[name + "weight"], p.get(name + "bias"), 1e-5)


def rms_norm(x, p, name="", eps=1e-5):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * p[name + "weight"]


def attend(q, k, v, causal, mask):
    """q (B, H, T, D), k and v (B, G, T, D) -> (B, T, H D)"""
    b, h, t, d = q.shape
    k, v = (x.repeat_interleave(h // x.shape[1], 1) for x in (k, v))
    seen = torch.ones(t, t, dtype=torch.bool).tril() if causal else torch.ones(t, t, dtype=torch.bool)
    seen = (seen if mask is None else seen & mask).expand(b, h, t, t)
    blind = ~seen.any(-1, keepdim=True)  # a position that sees nothing: zeros
    scores = (q @ k.transpose(-2, -1) / math.sqrt(d)).masked_fill(~seen, -math.inf).masked_fill(blind, 0.0)
    return (scores.softmax(-1).masked_fill(blind, 0.0) @ v).transpose(1, 2).reshape(b, t, h * d)


def split(x, width):
    """(B, T, H D) -> (B, H, T, D)"""
    return x.view(x.shape[0], x.shape[1], -1, width).transpose(1, 2)


def attention(x, p, heads, causal=True, mask=None, name=""):
    c = x.shape[-1]
    q, k, v = (split(z, c // heads) for z in linear(x, p, name + "c_attn.").split(c, 2))
    return linear(attend(q, k, v, causal, mask), p, name + "c_proj.")


GELU_TANH = lambda x: F.gelu(x, approximate="tanh")


def mlp(activation):
    return lambda x, p, name="": linear(activation(linear(x, p, name + "c_fc.")), p, name + "c_proj.")


def block(x, p, heads, mask=None, name=""):
    x = x + attention(layer_norm(x, p, name + "ln_1."), p, heads, mask=mask, name=name + "attn.")
    return x + mlp(GELU_TANH)(layer_norm(x, p, name + "ln_2."), p, name + "mlp.")


def gpt(tokens, positions, mask, p, layers, heads):
    x = p["wte.weight"][tokens] + p["wpe.weight"][positions]
    for i in range(int(layers)):
        x = block(x, p, int(heads), mask, "h.%d." % i)
    return layer_norm(x, p, "ln_f.") @ p["wte.weight"].T


def frequencies(width, theta, factor, low, high, context):
    """Hugging Face's _compute_llama3_parameters; factor 1: its default."""
    f = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    if factor == 1.0:
        return f
    length = 2 * math.pi / f
    blend = (context / length - low) / (high - low)
    between = (1 - blend) * f / factor + blend * f
    slowed = torch.where(length > context / low, f / factor, between)
    return torch.where(length < context / high, f, slowed)


def rotary(x, angle):
    """x (B, H, T, D), angle (B or 1, T, D / 2)"""
    angle = torch.cat((angle, angle), -1)[:, None]
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)  # rotate_half
    return x * angle.cos().to(x.dtype) + turned * angle.sin().to(x.dtype)


def llama(tokens, positions, mask, p, layers, heads, width, eps, *rope):
    width = int(width)
    angle = positions.reshape(-1, tokens.shape[1], 1).double() * frequencies(width, *rope)
    x = p["embed_tokens.weight"][tokens]
    for i in range(int(layers)):
        name = "layers.%d." % i
        y = rms_norm(x, p, name + "input_layernorm.", eps)
        q, k, v = (split(linear(y, p, name + "self_attn.%s_proj." % z), width) for z in "qkv")
        y = attend(rotary(q, angle), rotary(k, angle), v, True, mask)
        x = x + linear(y, p, name + "self_attn.o_proj.")
        y = rms_norm(x, p, name + "post_attention_layernorm.", eps)
        y = F.silu(linear(y, p, name + "mlp.gate_proj.")) * linear(y, p, name + "mlp.up_proj.")
        x = x + linear(y, p, name + "mlp.down_proj.")
    return rms_norm(x, p, "norm.", eps) @ p.get("lm_head.weight", p["embed_tokens.weight"]).T
