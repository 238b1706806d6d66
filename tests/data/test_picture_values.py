"""Pictures against PIL, bit for bit: every kind of PNG, JPEGs, other sizes, folders of classes."""
import os
import random
import subprocess
import sys
import tempfile
import warnings

from png_writer import DEPTHS, chunk, png
from twin import read, run, torch
import numpy

try:
    from PIL import Image, features
except ImportError:
    print("1..1")
    if os.environ.get("CI"):
        print("not ok 1 - PIL (python3-pil) is missing: nothing was compared")
        sys.exit(1)
    print("ok 1 - comparison with PIL # SKIP python3-pil is not installed")
    sys.exit(0)

DUMP = os.path.join(os.environ["TERN_TEST_BIN"], "dump_examples")


def dumped(folder, *words):
    out = os.path.join(folder, "out.safetensors")
    result = subprocess.run([DUMP, out, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if b"-Dimages=enabled" in result.stderr:
        print("1..1\nok 1 - comparison with PIL # SKIP this build reads no pictures (-Dimages=enabled)")
        sys.exit(0)
    if result.returncode:
        raise AssertionError(result.stderr.decode())
    return read(out), result.stdout.decode("utf-8").split("\n")[:-1]


def planes(image):
    return numpy.asarray(image).transpose(2, 0, 1)


def same(got, want, what, apart=0):
    got = got.numpy()
    if got.shape != want.shape or got.dtype != want.dtype or numpy.abs(got.astype(float) - want).max() > apart:
        raise AssertionError("%s: %s %s, PIL's %s %s; %s" % (
            what, got.dtype, got.shape, want.dtype, want.shape,
            "up to %s apart" % numpy.abs(got.astype(float) - want).max() if got.shape == want.shape else "another shape"))


def compare(folder, paths, wanted):
    """The pictures in files, as u8 and as f32, against PIL's."""
    tensors, _ = dumped(folder, "image", *paths)
    for i, path in enumerate(paths):
        same(tensors["u%d" % i], wanted[i], os.path.basename(path))
        same(tensors["f%d" % i], wanted[i].astype(numpy.float32) / numpy.float32(255), os.path.basename(path) + " as f32")


def pngs():
    draw = random.Random(5)
    with tempfile.TemporaryDirectory() as folder:
        paths, wanted = [], []
        for colour, depths in DEPTHS.items():
            for depth in depths:
                for interlaced in (False, True):
                    for size in [(1, 1), (draw.randrange(2, 9), 3), (draw.randrange(9, 40), draw.randrange(9, 40))]:
                        colours = min(256, 1 << depth)
                        palette = bytes(draw.randrange(256) for _ in range(3 * colours)) if colour == 3 else b""
                        clear = bytes(draw.randrange(256) for _ in range(draw.randrange(1, colours + 1))) if colour == 3 else bytes(6 if colour == 2 else 2)
                        before = chunk(b"gAMA", (220000).to_bytes(4, "big"))
                        before += chunk(b"tRNS", clear) if colour in (0, 2, 3) and draw.randrange(2) else b""
                        path = os.path.join(folder, "%d_%d_%d_%dx%d.png" % (colour, depth, interlaced, *size))
                        with open(path, "wb") as f:
                            f.write(png(*size, colour, depth, lambda x, y, c: draw.randrange(1 << depth), interlaced, lambda y: draw.randrange(5), palette, before))
                        image = Image.open(path)
                        if colour == 0 and depth == 16:  # PIL clips these at 255, which leaves white
                            grey = (numpy.asarray(image, dtype=numpy.int64) >> 8).astype(numpy.uint8)
                            wanted.append(numpy.stack([grey] * 3))
                        else:
                            wanted.append(planes(image.convert("RGB")))
                        paths.append(path)
        compare(folder, paths, wanted)


def scene(draw, width, height):
    """Something smooth with edges in it, and noise."""
    y, x = numpy.mgrid[0:height, 0:width].astype(float)
    out = []
    for _ in range(3):
        a, b, c = draw.uniform(-.4, .4), draw.uniform(-.4, .4), draw.uniform(0, 6)
        out.append(127 + 90 * numpy.sin(a * x + b * y + c) + 60 * ((x - y * draw.uniform(-1, 1)) > width / 2) + draw.uniform(0, 30) * numpy.sin(x * y * 1.7))
    return Image.fromarray(numpy.clip(numpy.stack(out, -1), 0, 255).astype(numpy.uint8))


def jpegs():
    draw = random.Random(6)
    with tempfile.TemporaryDirectory() as folder:
        paths, wanted = [], []
        for i in range(60):
            picture = scene(draw, draw.randrange(1, 70), draw.randrange(1, 70))
            mode = draw.choice(["RGB", "RGB", "L", "CMYK"])
            settings = {"quality": draw.randrange(5, 100), "subsampling": draw.randrange(3), "progressive": draw.randrange(2) == 1,
                        "optimize": draw.randrange(2) == 1}
            paths.append(os.path.join(folder, "%d_%s.jpg" % (i, mode)))
            picture.convert(mode).save(paths[-1], **settings)
            wanted.append(planes(Image.open(paths[-1]).convert("RGB")))
        compare(folder, paths, wanted)


def other_sizes():
    """PIL rounds to 8 bits after rows and after columns; Tern keeps real numbers."""
    draw = random.Random(7)
    for case in range(12):
        height, width = draw.randrange(1, 90), draw.randrange(1, 90)
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "a"))
            wanted = []
            for i in range(6):
                picture = scene(draw, draw.randrange(1, 120), draw.randrange(1, 120))
                picture.save(os.path.join(folder, "a", "%d.png" % i))
                wanted.append(planes(picture.resize((width, height), Image.BILINEAR)).astype(numpy.float32) / numpy.float32(255))
            tensors, _ = dumped(folder, "images", folder, str(height), str(width))
            same(tensors["x"], numpy.stack(wanted), "%d x %d" % (width, height), 1.001 / 255)


def folders():
    """The order of torchvision's ImageFolder."""
    names = ["b/2.png", "b/10.png", "b/sub/1.PNG", "b/a.jpeg", "b/sub-1/x.png", "B/z.JPG", "a b/deep/er/0.png", "é/1.png", "b/z.png"]
    ignored = ["b/notes.txt", "top.png", "b/.hidden.png", ".git/1.png", "b/4.pngx"]
    draw = random.Random(8)
    with tempfile.TemporaryDirectory() as folder:
        for name in names + ignored:
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            scene(draw, 5, 4).save(path, format="JPEG" if name.lower().endswith(("jpg", "jpeg")) else "PNG")
        classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
        wanted, labels = [], []
        for label, name in enumerate(classes):  # torchvision.datasets.folder.make_dataset
            for root, _, files in sorted(os.walk(os.path.join(folder, name), followlinks=True)):
                for file in sorted(files):
                    if file.lower().endswith((".jpg", ".jpeg", ".png")) and file[0] != ".":
                        wanted.append(planes(Image.open(os.path.join(root, file)).convert("RGB")).astype(numpy.float32) / numpy.float32(255))
                        labels.append(label)
        tensors, printed = dumped(folder, "images", folder, "0", "0")
        assert printed == classes, printed
        assert len(labels) == len(names)
        same(tensors["y"], numpy.array(labels), "y")
        same(tensors["x"], numpy.stack(wanted), "x")


warnings.simplefilter("ignore")  # PIL warns about palettes with transparency
print("# PIL %s with libjpeg %s" % (Image.__version__, features.version("jpg")))
run([("PNGs of every kind are PIL's convert(\"RGB\")", pngs),
     ("JPEGs are PIL's: grey, colour, CMYK, progressive", jpegs),
     ("resizing is PIL's BILINEAR except for its rounding", other_sizes),
     ("classes and pictures in torchvision's order", folders)])
