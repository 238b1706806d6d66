"""Modules against PyTorch's with the same weights: results, gradients of inputs and parameters, and initial distributions."""
import math

from twin import below, check_gradients, close, dump, parameters, run, torch
from modules import GELU_TANH, attend, attention, block, frequencies, layer_norm, linear, mlp, rms_norm, rotary, split
import torch.nn.functional as F

DATA = dump("dump_nn")


# ---- Twins: f(x, p) with p the parameters by name ---------------------------------------------------------------------------

def grouped_attention(x, p, mask=None):
    """Four heads of 6, two for keys and values; theta 100, not causal."""
    angle = torch.arange(x.shape[1]).reshape(1, -1, 1).double() * frequencies(6, 100.0, 1.0, 1.0, 4.0, 8192)
    q, k, v = (split(linear(x, p, "%s_proj." % z), 6) for z in "qkv")
    return linear(attend(rotary(q, angle), rotary(k, angle), v, False, mask), p, "o_proj.")


def gated_mlp(x, p):
    return linear(F.silu(linear(x, p, "gate_proj.")) * linear(x, p, "up_proj."), p, "down_proj.")


def conv(f, **more):
    return lambda x, p: f(x, p["weight"], p.get("bias"), **more)


TWINS = {
    "conv1d": conv(F.conv1d), "conv3d": conv(F.conv3d, stride=2, padding=1),
    "conv2d": conv(F.conv2d, stride=2, padding=1, dilation=(1, 2), groups=2),
    "conv2d_same": conv(F.conv2d, padding="same", dilation=(3, 1)),
    "conv_transpose1d": conv(F.conv_transpose1d, stride=2, padding=1), "conv_transpose3d": conv(F.conv_transpose3d),
    "conv_transpose2d": conv(F.conv_transpose2d, stride=2, padding=1, output_padding=(1, 0), dilation=(1, 2), groups=2),
    "linear": linear, "linear_without_bias": linear, "embedding": lambda i, p: F.embedding(i, p["weight"]),
    "embedding_padding": lambda i, p: F.embedding(i, p["weight"], 3),
    "layer_norm": layer_norm, "rms_norm": rms_norm,
    "masked_attention": lambda x, p, mask: attention(x, p, 3, causal=False, mask=mask),
    "mlp_gelu": mlp(F.gelu), "mlp_gelu_tanh": mlp(GELU_TANH), "mlp_relu": mlp(F.relu), "mlp_silu": mlp(F.silu),
    "grouped_attention": grouped_attention, "gated_mlp": gated_mlp,
    "block": lambda x, p: block(x, p, 4), "block_without_bias": lambda x, p: block(x, p, 4),
}


N = torch.nn
# PyTorch's own modules.
LAYERS = {
    "batch_norm1d": N.BatchNorm1d(5), "batch_norm1d_places": N.BatchNorm1d(3), "batch_norm2d": N.BatchNorm2d(4),
    "batch_norm3d": N.BatchNorm3d(2, momentum=None), "group_norm": N.GroupNorm(3, 6),
    "instance_norm1d": N.InstanceNorm1d(3, affine=True), "instance_norm2d": N.InstanceNorm2d(3, affine=True),
    "instance_norm3d": N.InstanceNorm3d(2),
    "max_pool1d": N.MaxPool1d(3, 2, 1), "max_pool2d": N.MaxPool2d((3, 2), 2, 1), "max_pool3d": N.MaxPool3d(3, 2, 1),
    "avg_pool1d": N.AvgPool1d(3, 2, 1), "avg_pool2d": N.AvgPool2d(2), "avg_pool3d": N.AvgPool3d(2),
    "adaptive_max_pool1d": N.AdaptiveMaxPool1d(4), "adaptive_max_pool2d": N.AdaptiveMaxPool2d(3),
    "adaptive_max_pool3d": N.AdaptiveMaxPool3d(2), "adaptive_avg_pool1d": N.AdaptiveAvgPool1d(4),
    "adaptive_avg_pool2d": N.AdaptiveAvgPool2d((3, 2)), "adaptive_avg_pool3d": N.AdaptiveAvgPool3d(2),
    "upsample": N.Upsample(scale_factor=2.5), "upsample_bilinear": N.UpsamplingBilinear2d((7, 5)),
    "flatten": N.Flatten(), "unflatten": N.Unflatten(-2, (3, 3)),
}


def layer(kind, **more):
    return kind(12, 3, 20, 0.0, batch_first=True, dtype=torch.float64, **more)


def attention_twin(**more):
    return torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64, **more)


def attend_twin(m, i):
    q = i[0]
    k = i.get(1, q)
    return m(q, k, i.get(2, k), key_padding_mask=i.get(3), attn_mask=i.get(4), need_weights=False)[0]


def transformer_twin(layers):
    return torch.nn.Transformer(12, 3, layers, layers, 20, 0.0, batch_first=True, dtype=torch.float64)


def call_transformer(m, i):
    mask = i.get(3, torch.triu(torch.ones(4, 4, dtype=torch.bool), 1))
    return m(i[0], i[1], tgt_mask=mask, src_key_padding_mask=i.get(5), memory_key_padding_mask=i.get(7))


FIRST = {"norm_first": True, "activation": "gelu", "layer_norm_eps": 1e-3}
NORM = lambda: torch.nn.LayerNorm(12, 1e-3, dtype=torch.float64)
MODULES = {  # The same, made late, and how they are called with inputs by number
    "mha_self": (attention_twin, attend_twin), "mha_self_masked": (attention_twin, attend_twin),
    "mha_memory": (attention_twin, attend_twin), "mha_apart": (attention_twin, attend_twin),
    "mha_dims": (lambda: attention_twin(bias=False, kdim=5, vdim=7), attend_twin),
    "encoder": (lambda: N.TransformerEncoder(layer(N.TransformerEncoderLayer), 2),
                lambda m, i: m(i[0], mask=i[1], src_key_padding_mask=i[2])),
    "encoder_norm_first": (lambda: N.TransformerEncoder(layer(N.TransformerEncoderLayer, **FIRST), 1, NORM()), lambda m, i: m(i[0])),
    "decoder_norm_first": (lambda: N.TransformerDecoder(layer(N.TransformerDecoderLayer, **FIRST), 1, NORM()),
                           lambda m, i: m(i[0], i[1], i[2], i[3], i[4], i[5])),
    "transformer": (lambda: transformer_twin(2), call_transformer),
    "transformer_causal": (lambda: transformer_twin(1), call_transformer),
}


# ---- Tests ------------------------------------------------------------------------------------------------------------------

def twin(name, case):
    """(parameters by name, buffers by name, a function of the inputs, the same in eval mode)"""
    if name in TWINS:
        p = parameters(case)
        return p, {}, *2 * (lambda i: TWINS[name](i[0], p, i[1]) if len(i) > 1 else TWINS[name](i[0], p),)
    make, call = MODULES.get(name) or (LAYERS[name].double, lambda m, i: m(i[0]))
    m = make()
    missing, unexpected = m.load_state_dict(below(case, "p."), strict=False)
    if unexpected or set(missing) - {key for key, _ in m.named_buffers()}:
        raise AssertionError("names %s, missing %s" % (unexpected, missing))
    return dict(m.named_parameters()), dict(m.named_buffers()), lambda i: call(m, i), lambda i: call(m.eval(), i)


def check_module(name):
    """Result, gradients, buffers, and the result in eval mode."""
    case = below(DATA, name + "/")
    p, buffers, call, call_in_eval = twin(name, case)
    inputs = {int(i): t.requires_grad_(t.is_floating_point()) for i, t in below(case, "in.").items()}
    y = call(inputs)
    close(case["y"], y.detach(), "result", 1e-12)
    y.backward(case["gy"])
    for i, t in inputs.items():
        if t.is_floating_point():
            close(case["gin.%d" % i], t.grad, "gradient of input %d" % i, 1e-10 if name in LAYERS else 1e-11)
    check_gradients(case, p, 1e-11)
    if set(buffers) != set(below(case, "b.")):
        raise AssertionError("buffers %s" % sorted(below(case, "b.")))
    for key, t in below(case, "b.").items():
        if not torch.allclose(t, buffers[key], rtol=1e-12):
            raise AssertionError("%s is %s, PyTorch's %s" % (key, t, buffers[key]))
    close(case["eval"], call_in_eval(inputs).detach(), "result after training", 1e-12)


def rounded(t):
    """Rounds to bf16 and back; backward rounds the gradient the same way."""
    return t.bfloat16().float()


class Autocast(torch.overrides.TorchFunctionMode):
    """What torch.autocast does with products, in f32 on rounded numbers: PyTorch's own bf16 products also round partial sums,
    on processors without instructions for them."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (F.linear, F.gelu):
            return rounded(function(*[rounded(a) for a in args], **(kwargs or {})))
        return function(*args, **(kwargs or {}))


def check_mixed():
    """A policy against PyTorch's autocast: four products and an activation round to bf16 (2**-9) in the same places, but some
    numbers round the other way."""
    case = below(DATA, "mixed/")
    p, x = parameters(case), case["in.0"].requires_grad_(True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        close(case["y"], mlp(GELU_TANH)(x, p).float(), "result", 2 ** -7)
    with Autocast():
        y = mlp(GELU_TANH)(x, p)
    close(case["y"], y.detach(), "result of rounded numbers", 2 ** -7)
    if not torch.equal(case["y"], case["y"].bfloat16().float()):
        raise AssertionError("the result is not of bf16")
    y.backward(case["gy"])
    close(case["gin.0"], x.grad, "gradient of x", 2 ** -6)
    check_gradients(case, p, 2 ** -6)


def same_distribution(got, want):
    """Two-sample Kolmogorov-Smirnov, at a level that a correct draw fails once in a million; and the same bounds."""
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
    "conv2d.weight": (lambda t: torch.nn.Conv2d(40, 300, 3).weight, True), "conv2d.bias": (lambda t: torch.nn.Conv2d(40, 300, 3).bias, True),
    "conv_transpose1d.weight": (lambda t: torch.nn.ConvTranspose1d(300, 40, 5).weight, True),
    "conv_transpose1d.bias": (lambda t: torch.nn.ConvTranspose1d(300, 40, 5).bias, True),
    "embedding.weight": (lambda t: torch.nn.Embedding(200, 150).weight, False),
    "xavier_uniform": (lambda t: I.xavier_uniform_(t, 1.5), True), "xavier_normal": (lambda t: I.xavier_normal_(t, 1.5), False),
    "kaiming_uniform": (lambda t: I.kaiming_uniform_(t, 1.5), True), "kaiming_normal": (lambda t: I.kaiming_normal_(t, 1.5), False),
    "uniform": (lambda t: I.uniform_(t, -2.0, 3.0), True), "normal": (lambda t: I.normal_(t, 1.0, 0.5), False),
    "constant": (lambda t: I.constant_(t, 0.25), True),
}

INITS.update({
    "trunc_normal": (lambda t: I.trunc_normal_(t, 1.0, 2.0, -1.0, 6.0), True),
    "kaiming_uniform_out": (lambda t: I.kaiming_uniform_(t, mode="fan_out", nonlinearity="relu"), True),
    "kaiming_normal_out": (lambda t: I.kaiming_normal_(t, mode="fan_out", nonlinearity="tanh"), False),
})


def check_same(name, make):
    got = DATA["init/" + name]
    close(got, make(torch.empty(got.shape)), name, 0.0)


def check_gains():
    names = ["linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu"]
    close(DATA["init/gains"], torch.tensor([float(I.calculate_gain(name, 0.3)) for name in names], dtype=torch.float64), "gains", 1e-15)


def check_orthogonal(name, gain):
    """Rows or columns of length `gain`, at right angles; as in PyTorch in any direction: the mean of many elements is near 0."""
    q = DATA["init/" + name].double()
    q = q.reshape(q.shape[0], -1)
    q = q if q.shape[0] <= q.shape[1] else q.T
    close(q @ q.T, gain * gain * torch.eye(q.shape[0], dtype=torch.float64), "products of rows", 1e-6)
    torch.manual_seed(1)
    want = I.orthogonal_(torch.empty(DATA["init/" + name].shape), gain)
    same_distribution(q, want)


run([(name, lambda name=name: check_module(name)) for name in (*TWINS, *MODULES, *LAYERS)] +
    [("mixed precision", check_mixed)] +
    [("init " + name, lambda name=name: check_init(name, *INITS[name])) for name in INITS] +
    [("init eye", lambda: check_same("eye", I.eye_)),
     ("init orthogonal, wide", lambda: check_orthogonal("orthogonal_wide", 3.0)),
     ("init orthogonal, tall", lambda: check_orthogonal("orthogonal_tall", 1.0)),
     ("gains", check_gains)])
