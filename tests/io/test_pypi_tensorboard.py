#!/usr/bin/env python3
"""Event files against TensorBoard itself: what its EventAccumulator reads from a file of ours, from one whose writer was
killed, and from one whose last record is torn."""
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import pypi  # pylint: disable=wrong-import-position

pypi.need("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # pylint: disable=wrong-import-position

PROGRAM = os.path.join(os.environ.get("TERN_TEST_BIN", "build/test/tests"), "dump_tensorboard")
LIMIT = 60


def accumulated(folder):
    seen = EventAccumulator(str(folder), size_guidance={name: 0 for name in ("scalars", "histograms", "images", "tensors")})
    seen.Reload()
    return seen


def png_rows(data):
    """The rows of a PNG whose filter is `none` throughout."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, rows = 8, b""
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length:at + 12 + length])[0] == zlib.crc32(name + body)
        if name == b"IHDR":
            width, height, depth, kind = struct.unpack(">IIBB", body[:10])
            assert depth == 8
        rows += body if name == b"IDAT" else b""
        at += 12 + length
    channels = {0: 1, 4: 2, 2: 3, 6: 4}[kind]
    raw = zlib.decompress(rows)
    step = width * channels + 1
    assert len(raw) == height * step and not any(raw[::step])
    return width, height, [list(raw[y * step + 1:(y + 1) * step]) for y in range(height)]


def reads_everything(folder):
    subprocess.run([PROGRAM, folder], check=True, timeout=LIMIT)
    seen = accumulated(folder)
    tags = seen.Tags()
    assert set(tags["scalars"]) == {"loss/train", "far"}, tags
    losses = [(e.step, round(e.value, 6)) for e in seen.Scalars("loss/train")]
    assert losses == [(0, 1.0), (1, 0.5), (2, 0.333333), (3, -1.0)], losses  # 3 and 4 of the first file are purged
    assert seen.Scalars("far") == []  # purged, too
    assert set(tags["histograms"]) == {"normal", "few"}, tags
    few = seen.Histograms("few")[0].histogram_value
    assert (few.min, few.max, few.num, few.sum, few.sum_squares) == (-3, 3, 7, 0, 28), few
    assert sum(few.bucket) == 7 and few.bucket[0] == 0 and few.bucket[-1] == 1 and len(few.bucket) == len(few.bucket_limit)
    for value in range(-3, 4):  # each is in its bucket
        place = next(i for i, limit in enumerate(few.bucket_limit) if value < limit)
        assert few.bucket[place] == 1, (value, place)
    assert list(few.bucket_limit) == sorted(few.bucket_limit)
    normal = seen.Histograms("normal")[0].histogram_value
    assert sum(normal.bucket) == normal.num == 1000 and -5 < normal.min < -2 and 2 < normal.max < 5
    text = seen.Tensors("note")[0].tensor_proto
    assert text.string_val[0].decode() == "# a head\nand é" and text.tensor_shape.dim[0].size == 1
    assert seen.summary_metadata["note"].plugin_data.plugin_name == "text"
    grey, red = seen.Images("grey")[0], seen.Images("red")[0]
    assert (grey.height, grey.width) == (2, 3) and png_rows(grey.encoded_image_string) == (3, 2, [[0, 1, 2], [3, 4, 5]])
    assert png_rows(red.encoded_image_string) == (5, 4, [[255, 0, 0] * 5] * 4)


def as_pytorch(folder):
    """torch.utils.tensorboard makes the same histogram of the same numbers."""
    try:
        import numpy
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return
    with SummaryWriter(folder / "torch") as writer:
        writer.add_histogram("few", numpy.arange(-3, 4), 2)
    theirs = accumulated(folder / "torch").Histograms("few")[0].histogram_value
    mine = accumulated(folder).Histograms("few")[0].histogram_value
    assert list(theirs.bucket) == list(mine.bucket), (theirs, mine)
    assert all(abs(a - b) <= 1e-12 * abs(a) for a, b in zip(theirs.bucket_limit, mine.bucket_limit)), (theirs, mine)


def killed(folder):
    p = subprocess.Popen([PROGRAM, folder, "forever"], stdout=subprocess.PIPE)
    lines = [p.stdout.readline() for _ in range(500)]
    p.send_signal(signal.SIGKILL)
    p.wait(LIMIT)
    lines += p.stdout.readlines()
    p.stdout.close()
    last = max(int(line.split()[1]) for line in lines if line.endswith(b"\n"))
    steps = [e.step for e in accumulated(folder).Scalars("loss")]
    assert steps == list(range(len(steps))) and len(steps) > last, (len(steps), last)


def torn(folder):
    """Wherever the file is cut, the records before the cut are read."""
    file, = folder.glob("*tfevents*")
    whole = file.read_bytes()[:2000]
    for size in range(len(whole) - 60, len(whole)):
        file.write_bytes(whole[:size])
        at, records = 0, 0
        while at + 12 <= size and at + 16 + struct.unpack("<Q", whole[at:at + 8])[0] <= size:
            at += 16 + struct.unpack("<Q", whole[at:at + 8])[0]
            records += 1
        assert len(accumulated(folder).Scalars("loss")) == records - 1, size


def main():
    tests = [reads_everything, as_pytorch, killed, torn]
    print(f"1..{len(tests)}")
    failed = False
    with tempfile.TemporaryDirectory(prefix="tern_test_") as top:
        for number, test in enumerate(tests, 1):
            folder = pathlib.Path(top) / ("killed" if test in (killed, torn) else "all")
            try:
                test(folder)
                print(f"ok {number} - {test.__name__}")
            except Exception as error:  # pylint: disable=broad-except
                failed = True
                print(f"not ok {number} - {test.__name__}\n# {type(error).__name__}: {error}")
    sys.exit(failed)


main()
