"""What PyTorch calls the operations of ops/loss/, where it has another name or other arguments."""
import torch
import torch.nn.functional as F

# PyTorch has no gradients of weights. If a loss has some here, its twin is written out, and its result must match PyTorch's.


def defined(each, want, reduction, over=None):
    """Reduces each row's loss, and checks the result against PyTorch's."""
    out = each if reduction == "none" else each.sum() if reduction == "sum" else each.mean() if over is None else each.sum() / over.sum()
    torch.testing.assert_close(out.detach(), want.detach().reshape(out.shape), equal_nan=True)
    return out


def over_rows(f):
    """Losses of (…, C) and labels (…), which PyTorch takes as (N, C) and (N)."""
    def twin(x, y, reduction="mean", **more):
        out = f(x.reshape(-1, x.shape[-1]), y.reshape(-1).long(), reduction=reduction, **more)
        return out.reshape(y.shape) if reduction == "none" else out
    return twin


def row_weights(weight, y, ignore_index):
    counts = y != ignore_index
    return weight[torch.where(counts, y, torch.zeros_like(y)).long()] * counts


def nll(x, y, weight=None, reduction="mean", ignore_index=-100):
    twin = over_rows(F.nll_loss)
    if weight is None:
        return twin(x, y, reduction, ignore_index=ignore_index)
    share = row_weights(weight, y, ignore_index)
    each = twin(x, y, "none", ignore_index=ignore_index) * share
    return defined(each, twin(x, y, reduction, weight=weight.detach(), ignore_index=ignore_index), reduction, share)


def cross_entropy(x, y, weight=None, reduction="mean", ignore_index=-100, label_smoothing=0.0, consume_logits=False):
    twin = over_rows(F.cross_entropy)
    more = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    if weight is None:
        return twin(x, y, reduction, **more)
    share, logp = row_weights(weight, y, ignore_index), x.log_softmax(-1)
    smooth = -(logp * weight).mean(-1) * (y != ignore_index)
    each = (1 - label_smoothing) * nll(logp, y, weight, "none", ignore_index) + label_smoothing * smooth
    return defined(each, twin(x, y, reduction, weight=weight.detach(), **more), reduction, share)


def bce(x, t, weight=None, reduction="mean"):
    if weight is None:
        return F.binary_cross_entropy(x, t, reduction=reduction)
    want = F.binary_cross_entropy(x, t, weight.detach(), reduction=reduction)
    return defined(F.binary_cross_entropy(x, t, reduction="none") * weight, want, reduction)


def bce_with_logits(x, t, weight=None, pos_weight=None, reduction="mean"):
    w, p = (1.0 if k is None else k for k in (weight, pos_weight))
    detached = [None if k is None else k.detach() for k in (weight, pos_weight)]
    each = w * ((1 - t) * x - (1 + (p - 1) * t) * F.logsigmoid(x))
    return defined(each, F.binary_cross_entropy_with_logits(x, t, detached[0], pos_weight=detached[1], reduction=reduction), reduction)


def ctc(x, targets, frames, labels, **more):
    return F.ctc_loss(F.log_softmax(x, 2), targets.long(), frames.long(), labels.long(), **more)


TWINS = {
    "ctc": ctc,
    "mse": F.mse_loss, "l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss, "huber": F.huber_loss, "kl_div": F.kl_div,
    "cross_entropy": cross_entropy, "weighted_cross_entropy": cross_entropy, "nll": nll, "bce": bce, "bce_with_logits": bce_with_logits,
    "triplet_margin": F.triplet_margin_loss,
}
