"""Tables as datasets: text, against Python's csv module, and NumPy's files."""
import csv
import gzip
import os
import random
import subprocess
import tempfile

from twin import read, run, torch
import numpy

DUMP = os.path.join(os.environ["TERN_TEST_BIN"], "dump_examples")
NAN = float("nan")


def examples(folder, *words):
    """x, y and the names of classes."""
    out = os.path.join(folder, "out.safetensors")
    names = subprocess.run([DUMP, out, *words], check=True, stdout=subprocess.PIPE).stdout.decode("utf-8")
    tensors = read(out)
    return tensors["x"], tensors.get("y"), names.split("\n")[:-1]


def same(got, want, what):
    """The same bits, except that all NaNs are equal."""
    got, want = got.numpy(), numpy.asarray(want)
    if got.shape != want.shape or got.dtype != want.dtype:
        raise AssertionError("%s is %s %s, not %s %s" % (what, got.dtype, got.shape, want.dtype, want.shape))
    if not numpy.array_equal(got, want, equal_nan=got.dtype.kind == "f"):
        raise AssertionError("%s differs:\n%s\n%s" % (what, got, want))


def number(draw):
    """A number as it may be written in a table."""
    kind = draw.randrange(6)
    value = draw.uniform(-1, 1) * 10.0 ** draw.randrange(-30, 30)
    return (repr(value) if kind < 3 else "%.3e" % value if kind < 4 else str(draw.randrange(-999, 999)) if kind < 5
            else draw.choice([".5", "5.", "+7", "1E5", "-inf", "Infinity", "-0", "00012"]))


def texts():
    """Whatever Python's csv writes, quotes, delimiters and line ends within fields too, is what Tern reads."""
    draw = random.Random(3)
    labels = ["plain", "with, comma", 'with "quotes"', "two\nlines", "two\r\nlines again", "and\rmore", "é 汉", '"', "; and\ttab", "x" * 300]
    for case in range(40):
        delimiter = draw.choice([",", ";", "\t", "|"])
        end = draw.choice(["\n", "\r\n", "\r"])
        quoting = csv.QUOTE_ALL if end == "\r" else draw.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
        columns, rows = draw.randrange(2, 6), draw.randrange(1, 30) if case else 20000  # more than is read at once
        table = [[number(draw) for _ in range(columns)] for _ in range(rows)]
        where = draw.randrange(columns)
        for row in table:
            row[where] = draw.choice([text for text in labels if quoting == csv.QUOTE_ALL or text != "and\rmore"])  # which Python writes without quotes
        names = ["column, %d" % i for i in range(columns)]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "table.csv" + draw.choice(["", ".gz"]))
            with (gzip.open if path.endswith(".gz") else open)(path, "wt", newline="", encoding=draw.choice(["utf-8", "utf-8-sig"])) as f:
                writer = csv.writer(f, delimiter=delimiter, quoting=quoting, lineterminator=end)
                writer.writerows([names] + table)
            x, y, classes = examples(folder, "csv", path, "error", "classes", delimiter, "header", draw.choice([names[where], str(where), str(where - columns)]))
        wanted = sorted({row[where] for row in table}, key=lambda text: text.encode())
        if "\n".join(classes) != "\n".join(wanted):
            raise AssertionError("classes %r, not %r" % (classes, wanted))
        same(y, [wanted.index(row[where]) for row in table], "y")
        same(x, numpy.array([[float(v) for i, v in enumerate(row) if i != where] for row in table], dtype=numpy.float32), "x")


def write(folder, text, name="t.csv"):
    path = os.path.join(folder, name)
    with open(path, "w", newline="", encoding="utf-8") as f:
        f.write(text)
    return path


def choices():
    """Columns by name and by number, numbers and classes as targets, missing values."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(folder, "a,b,c,class\n1,2,3,10\n 4 ,NA,6, 9\n\n \t \n7,8,,10\n10,11,12,2")
        x, y, classes = examples(folder, "csv", path, "nan", "classes", ",", "header", "class")
        same(x, numpy.array([[1, 2, 3], [4, NAN, 6], [7, 8, NAN], [10, 11, 12]], dtype=numpy.float32), "x")
        same(y, [2, 1, 2, 0], "y")
        assert classes == ["2", "9", "10"], classes
        x, y, classes = examples(folder, "csv", path, "drop", "numbers", ",", "header", "-1", "c", "0")
        same(x, numpy.array([[3, 1], [6, 4], [12, 10]], dtype=numpy.float32), "x")
        same(y, numpy.array([10, 9, 2], dtype=numpy.float32), "y")
        x, y, classes = examples(folder, "csv", write(folder, "1;2\n3;4\n"), "error", "classes", ";", "plain", "")
        same(x, numpy.array([[1, 2], [3, 4]], dtype=numpy.float32), "x")
        assert y is None and classes == []


def arrays():
    """Rows of NumPy's files, in either byte order."""
    draw = numpy.random.default_rng(1)
    widened = {"i2": "i4", "u2": "i4", "u4": "i8"}
    with tempfile.TemporaryDirectory() as folder:
        x_path, y_path = os.path.join(folder, "x.npy"), os.path.join(folder, "y.npy")
        for kind in ("f4", "f8", "f2", "i8", "i4", "i1", "u1", "b1", "i2", "u2", "u4"):
            for order in "<>":
                x = (draw.standard_normal((9, 3, 2)) * 200).astype("i8" if kind[0] == "u" else "f8").astype(order + kind)
                y = numpy.arange(9).astype(">i4")
                numpy.save(x_path, x)
                numpy.save(y_path, y)
                got_x, got_y, _ = examples(folder, "npy", x_path, y_path)
                same(got_x, x.astype(widened.get(kind, kind)), "x")
                same(got_y, y.astype("i4"), "y")


run([("whatever Python's csv writes is read as it was", texts),
     ("columns, targets and missing values are those that were asked for", choices),
     ("rows of NumPy's files", arrays)])
