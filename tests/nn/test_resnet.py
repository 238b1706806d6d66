"""The ResNet of examples/15_resnet.c against PyTorch's, same weights: scores, gradients, losses of a few steps, statistics."""
import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path[:0] = [os.path.join(ROOT, "tests", "support"), os.path.join(ROOT, "bench", "peers")]
from twin import below, close, dump, run, torch
from torch_resnet import ResNet

DATA = dump("dump_resnet")
FIRST = below(DATA, "first/")
MODEL = ResNet(8, 10)
START = below(DATA, "start/")
MODEL.load_state_dict({**below(START, "p."), **below(START, "b.")})


def losses_of(steps):
    opt = torch.optim.SGD(MODEL.parameters(), lr=0.02, momentum=0.9)
    for i in range(steps):
        y = MODEL(FIRST["x"])
        loss = torch.nn.functional.cross_entropy(y, FIRST["label"])
        opt.zero_grad()
        loss.backward()
        yield i, y.detach(), loss.item()
        opt.step()


def check_training():
    """Twenty layers in f32: 1e-4 of the largest number, which is a few hundred roundings."""
    losses = []
    for i, y, loss in losses_of(len(DATA["steps/losses"])):
        losses.append(loss)
        if i == 0:
            close(FIRST["y"], y, "scores", 1e-4)
            for name, p in MODEL.named_parameters():
                close(FIRST["g." + name], p.grad, "gradient of " + name, 1e-3)
    close(DATA["steps/losses"], torch.tensor(losses), "losses", 1e-3)
    if losses[-1] > 0.7 * losses[0]:
        raise AssertionError("nothing was learned: %s" % losses)


def check_buffers():
    end, buffers = below(below(DATA, "end/"), "b."), dict(MODEL.named_buffers())
    if set(end) != set(buffers):
        raise AssertionError("buffers %s" % sorted(set(end) ^ set(buffers)))
    for name, b in buffers.items():
        if b.is_floating_point():
            close(end[name], b, name, 1e-3)
        elif not torch.equal(end[name], b):
            raise AssertionError("%s is %s, PyTorch's %s" % (name, end[name], b))


run([("scores, gradients and losses", check_training), ("running statistics", check_buffers)])
