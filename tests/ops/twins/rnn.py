"""PyTorch's twins of ops/rnn."""
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


def recurrent(kind, x, w_ih, w_hh, b_ih, b_hh, lengths, h0, c0=None, reverse=False):
    """One layer in one direction. PyTorch has reverse only with forward: both get the same weights, and half is dropped."""
    units, ways = w_hh.shape[1], 2 if reverse else 1
    zeros, none = torch.zeros(w_hh.shape[0], dtype=x.dtype), torch.zeros(x.shape[1], units, dtype=x.dtype)
    weights = [w_ih, w_hh, zeros if b_ih is None else b_ih, zeros if b_hh is None else b_hh] * ways
    states = [torch.stack([none if s is None else s] * ways) for s in ((h0, c0) if kind == "lstm" else (h0,))]
    run = getattr(torch._VF, kind)
    if lengths is None or not len(lengths):
        y, *last = run(x, states if kind == "lstm" else states[0], weights, True, 1, 0.0, False, reverse, False)
    else:
        order = lengths.argsort(descending=True)
        packed = pack_padded_sequence(x[:, order], lengths[order].long())
        states = [s[:, order] for s in states]
        flat, *last = run(packed.data, packed.batch_sizes, states if kind == "lstm" else states[0], weights, True, 1, 0.0, False, reverse)
        y = pad_packed_sequence(PackedSequence(flat, packed.batch_sizes), total_length=x.shape[0])[0]
        y, last = y[:, order.argsort()], [s[:, order.argsort()] for s in last]
    return (y[..., -units:], *(s[-1] for s in last))


TWINS = {
    "rnn": lambda *x, relu=False, **more: recurrent("rnn_relu" if relu else "rnn_tanh", *x, **more),
    "gru": lambda *x, **more: recurrent("gru", *x, **more),
    "lstm": lambda *x, **more: recurrent("lstm", *x, **more),
}
