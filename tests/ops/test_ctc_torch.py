"""CTC losses of random shapes against PyTorch's: any blank, padded and joined targets, labels that repeat, empty targets and inputs,
targets that fit no alignment. The gradient of log-probabilities is PyTorch's, except for such targets, where it is 0 here."""
from twin import below, close, dump, run, torch
import torch.nn.functional as F

DATA = dump("dump_ctc")
NAMES = sorted({name.split("/")[0] for name in DATA})


def losses(case, x):
    """One sequence at a time: some versions of PyTorch refuse an input without frames."""
    blank, _, infinity = case["options"].tolist()
    rows, at = [], 0
    for n, (frames, labels) in enumerate(zip(case["frames"].tolist(), case["labels"].tolist())):
        target = case["targets"][at:at + labels] if case["targets"].dim() == 1 else case["targets"][n, :labels]
        at += labels
        if frames == 0:
            rows.append(torch.tensor(0.0 if labels == 0 or infinity else float("inf"), dtype=x.dtype))
            continue
        rows.append(F.ctc_loss(x[:, n:n + 1], target[None], (frames,), (labels,), blank, "none", bool(infinity))[0])
    return torch.stack(rows)


def check(name):
    case = below(DATA, name + "/")
    x, how = case["x"].requires_grad_(True), case["options"][1].item()
    each = losses(case, x)
    share = case["labels"].clamp(min=1).to(each.dtype)
    want = each if how == 0 else (each / share).mean() if how == 1 else each.sum()
    finite = torch.isfinite(want)
    if not torch.equal(torch.isfinite(case["y"]), finite):
        raise AssertionError("%s, PyTorch's %s" % (case["y"].tolist(), want.tolist()))
    tolerance = 1e-11 if x.dtype == torch.float64 else 2e-5
    if finite.any():
        close(case["y"][finite], want.detach()[finite], "loss", tolerance)
    weight = case["dy"] if how == 0 else case["dy"] / (share * len(share)) if how == 1 else case["dy"].expand(len(share))
    kept = torch.isfinite(each)
    if kept.any() and each[kept].requires_grad:
        each[kept].backward(weight[kept])
    gradient = torch.zeros_like(x) if x.grad is None else torch.where(kept[None, :, None], x.grad, torch.zeros_like(x))
    close(case["gx"], gradient, "gradient", tolerance)


run([(name, lambda name=name: check(name)) for name in NAMES])
