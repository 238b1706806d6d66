"""Transforms, padding and mixup against PyTorch: torchvision's definitions written out (it need not be there), with the parameters
that Tern drew."""
import math

from twin import below, close, dump, run, torch
from torch.nn import functional as F

ALL = dump("dump_transforms")


def each(name, function, tolerance=0.0):
    """For every image of a case, function(x, what was drawn for it) is the output."""
    case = below(ALL, name + "/")
    for i, (x, draws) in enumerate(zip(case["x"], case["draws"].tolist())):
        close(case["y"][i], function(x, draws), "%s of image %d" % (name, i), tolerance)


def crop(x, draws):
    top, left = int(draws[0]), int(draws[1])
    return F.pad(x, (2, 2, 2, 2))[:, top:top + 8, left:left + 10]


def flip(x, draws):
    return x.flip(-1) if draws[0] < 0.4 else x


def blend(x, other, factor):
    return (factor * x + (1.0 - factor) * other).clamp(0, 1)


def gray(x):
    return (0.2989 * x[0] + 0.587 * x[1] + 0.114 * x[2]).unsqueeze(0) if x.shape[0] == 3 else x


def jitter(*amounts):
    orders = ["bcs", "bsc", "cbs", "csb", "sbc", "scb"]

    def colours(x, draws):
        ranges = [(max(0.0, 1 - a), 1 + a) for a in amounts]
        factor = {name: low + u * (high - low) for name, (low, high), u in zip("bcs", ranges, draws[1:])}
        for what in orders[int(draws[0])]:
            if what == "b":
                x = blend(x, torch.zeros_like(x), factor[what])
            elif what == "c":
                x = blend(x, gray(x).mean(), factor[what])
            elif x.shape[0] == 3:
                x = blend(x, gray(x), factor[what])
        return x

    return colours


def normalize(x, _):
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    return (x - mean[:, None, None]) / std[:, None, None]


def center(height, width):
    def cut(x, _):
        h, w = x.shape[-2:]
        if width > w or height > h:
            x = F.pad(x, (max(0, width - w) // 2, max(0, width - w + 1) // 2, max(0, height - h) // 2, max(0, height - h + 1) // 2))
            h, w = x.shape[-2:]
        top, left = int(round((h - height) / 2.0)), int(round((w - width) / 2.0))
        return x[:, top:top + height, left:left + width]

    return cut


def resize(height, width):
    def interpolate(x, _):
        return F.interpolate(x[None], (height, width), mode="bilinear", align_corners=False, antialias=True)[0]

    return interpolate


def resized_crop(height, width, least):
    """torchvision's RandomResizedCrop.get_params, with the numbers that Tern drew."""
    low, high = math.log(3 / 4), math.log(4 / 3)

    def window(rows, columns, draws):
        for k in range(10):
            area = rows * columns * (least + (1 - least) * draws[2 * k])
            ratio = math.exp(low + (high - low) * draws[2 * k + 1])
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= columns and 0 < h <= rows:
                return int(draws[2 * k + 2] * (rows - h + 1)), int(draws[2 * k + 3] * (columns - w + 1)), h, w
        h, w = rows, columns
        if columns / rows < 3 / 4:
            h = round(w / (3 / 4))
        elif columns / rows > 4 / 3:
            w = round(h * (4 / 3))
        return (rows - h) // 2, (columns - w) // 2, h, w

    def cut(x, draws):
        top, left, h, w = window(x.shape[1], x.shape[2], draws)
        return resize(height, width)(x[:, top:top + h, left:left + w], None)

    return cut


def windows():
    each("crop", crop)
    each("flip", flip)
    each("center", center(4, 5))
    each("center_pad", center(8, 3))
    flipped = (below(ALL, "flip/")["draws"][:, 0] < 0.4).sum().item()
    if not 0 < flipped < 12:
        raise AssertionError("%d of 12 images were flipped" % flipped)


def colours():
    each("jitter", jitter(0.4, 1.5, 0.7), 1e-6)
    each("jitter1", jitter(0.4, 0.5, 0.7), 1e-6)
    each("normalize", normalize, 1e-6)


def sizes():
    each("smaller", resize(13, 7), 1e-6)
    each("larger", resize(12, 6), 1e-6)
    each("both", resize(3, 11), 1e-6)
    each("window", resized_crop(8, 9, 0.08), 1e-6)
    each("window_high", resized_crop(8, 9, 0.9), 1e-6)  # none fits: the one in the middle
    each("window_broad", resized_crop(4, 4, 0.5), 1e-6)


def padding():
    case = below(ALL, "pad/")
    rows = [case[str(i)] for i in range(12)]
    close(case["x"], torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-2.5), "the batch", 0)
    close(case["lengths"], torch.tensor([len(row) for row in rows]), "the lengths", 0)


def mixup():
    case = below(ALL, "mixup/")
    x, y = case["x"], F.one_hot(case["y"], 4).float()
    mixed, rolled = case["mixed_x"], x.roll(1, 0)
    factor = ((mixed - rolled) / (x - rolled)).median().item()
    if not 0 < factor < 1:
        raise AssertionError("lambda is %g" % factor)
    close(mixed, factor * x + (1 - factor) * rolled, "x", 1e-5)
    close(case["mixed_y"], factor * y + (1 - factor) * y.roll(1, 0), "y", 1e-5)
    logits = case["logits"].clone().requires_grad_()
    F.cross_entropy(logits, case["mixed_y"]).backward()
    close(case["grad"], logits.grad, "the gradient of the cross entropy", 1e-5)


run([("crop, flip and center crop", windows), ("colours and normalising", colours), ("other sizes", sizes),
     ("padding is pad_sequence's", padding), ("mixup, and its loss", mixup)])
