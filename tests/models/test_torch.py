"""Whole models against PyTorch's with the same weights: logits, loss, every gradient, and initial distributions."""
import math

from twin import below, check_gradients, close, dump, parameters, run, torch
from modules import gpt, llama
import torch.nn.functional as F

DATA = dump("dump_models")
CASES = list(dict.fromkeys(name.split("/")[0] for name in DATA))


def check_model(name):
    case, tolerance = below(DATA, name + "/"), 2e-5 if name.endswith("f32") else 1e-11
    p, model = parameters(case), gpt if name.startswith("gpt") else llama
    positions = case.get("positions", torch.arange(case["tokens"].shape[1])[None])
    logits = model(case["tokens"], positions, case.get("mask"), p, *case["options"].tolist())
    loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), case["targets"].view(-1))
    close(case["logits"], logits.detach(), "logits", tolerance)
    close(case["loss"], loss.detach(), "loss", tolerance)
    loss.backward()
    check_gradients(case, p, tolerance)


def check_init(name, std_of):
    """Initial weights: standard deviations, zeros and ones."""
    for path, t in below(DATA, name + "/p.").items():
        if t.dim() == 2:
            std = std_of(path)
            error = std * 5 / math.sqrt(2 * t.numel())
            if abs(t.std().item() - std) > error or abs(t.mean().item()) > 5 * std / math.sqrt(t.numel()):
                raise AssertionError("%s: mean %g, std %g" % (path, t.mean().item(), t.std().item()))
        elif not torch.equal(t, torch.zeros_like(t) if path.endswith("bias") else torch.ones_like(t)):
            raise AssertionError("%s is %s" % (path, t))


run([(name, lambda name=name: check_model(name)) for name in CASES] + [
    ("initial weights of gpt", lambda: check_init("gpt_f32", lambda path: 0.02 / (math.sqrt(6) if path.endswith("c_proj.weight") else 1))),
    ("initial weights of llama", lambda: check_init("llama_f32", lambda path: 0.02))])
