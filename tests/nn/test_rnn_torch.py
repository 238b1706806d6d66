"""Recurrent nets and cells of random shapes and options against PyTorch's own modules, which load Tern's weights by name: results,
last states, and every gradient."""
from twin import below, check_gradients, close, dump, run, torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

DATA = dump("dump_rnn")
NAMES = sorted({name.split("/")[0] for name in DATA})


def module(case):
    """PyTorch's module, with the weights of the case."""
    kind, layers, both, batch_first, relu, bias, cell = case["options"].tolist()
    p = below(case, "p.")
    first = p["weight_ih" if cell else "weight_ih_l0"]
    kinds = (torch.nn.RNNCell, torch.nn.GRUCell, torch.nn.LSTMCell) if cell else (torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM)
    more = {} if cell else {"num_layers": layers, "bidirectional": bool(both), "batch_first": bool(batch_first)}
    if kind == 0:
        more["nonlinearity"] = "relu" if relu else "tanh"
    hidden = p["weight_hh" if cell else "weight_hh_l0"].shape[1]
    m = kinds[kind](first.shape[1], hidden, bias=bool(bias), **more).to(first.dtype)
    m.load_state_dict(p)
    return m


def call(m, case, x, state):
    """y, hn and perhaps cn; of a cell h' and perhaps c'."""
    kind, cell, batch_first = case["options"][0].item(), case["options"][6].item(), bool(case["options"][3])
    state = None if state is None else tuple(state) if kind == 2 else state[0]
    if cell:
        out = m(x, state)
        return out if kind == 2 else (out,)
    lengths = case.get("lengths")
    if lengths is not None:
        packed, last = m(pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False), state)
        y = pad_packed_sequence(packed, batch_first, total_length=x.shape[1 if batch_first else 0])[0]
    else:
        y, last = m(x, state)
    return (y, *last) if kind == 2 else (y, last)


def check(name):
    case = below(DATA, name + "/")
    tolerance = 1e-11 if case["x"].dtype == torch.float64 else 2e-5
    m, x = module(case), case["x"].requires_grad_(True)
    state = [case[s].requires_grad_(True) for s in ("h0", "c0") if s in case] or None
    got = [case[r] for r in ("y", "hn", "cn") if r in case]
    want = call(m, case, x, state)
    if len(got) != len(want):
        raise AssertionError("%d results, PyTorch's %d" % (len(got), len(want)))
    for result, a, b in zip(("y", "hn", "cn"), got, want):
        close(a, b.detach(), result, tolerance)
    torch.autograd.backward(want, [case[w] for w in ("dy", "dhn", "dcn")[:len(want)]])
    for i in ("x", "h0", "c0"):
        if i in case:
            close(case["g" + i], case[i].grad, "gradient of " + i, tolerance)
    check_gradients(case, dict(m.named_parameters()), tolerance)


run([(name, lambda name=name: check(name)) for name in NAMES])
