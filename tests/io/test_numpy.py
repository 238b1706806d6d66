#!/usr/bin/env python3
"""NumPy's files against NumPy: what NumPy writes is read and written back, and NumPy reads the same arrays from it."""
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings
import zipfile

try:
    import numpy
except ImportError:
    if os.environ.get("CI"):
        sys.exit("numpy is not installed")
    print("1..1\nok 1 - comparison with NumPy # SKIP numpy is not installed")
    sys.exit(0)

PROGRAM = os.path.join(os.environ.get("TERN_TEST_BIN", "build/test/tests"), "dump_numpy")
WIDENED = {"i2": "i4", "u2": "i4", "u4": "i8"}


def arrays():
    """{name: array} of every dtype that is read, in several shapes, byte orders and dimension orders."""
    found, draw = {}, numpy.random.default_rng(1)
    for kind in ("f4", "f8", "f2", "i8", "i4", "i1", "u1", "b1", "i2", "u2", "u4"):
        whole = draw.integers(-100, 100, (3, 4, 5)).astype(kind)
        if kind[0] in "iu" and kind not in WIDENED:
            whole.flat[:2] = numpy.iinfo(kind).min, numpy.iinfo(kind).max
        if kind in WIDENED:
            whole.flat[:2] = numpy.iinfo(kind).min, numpy.iinfo(kind).max
        found[kind] = whole
        found[kind + " fortran"] = numpy.asfortranarray(whole)
        found[kind + " big"] = whole.astype(whole.dtype.newbyteorder(">"))
        found[kind + " row"] = whole[1, 2]
        found[kind + " one"] = numpy.array(whole[0, 0, 1])
    found["empty"] = numpy.zeros((3, 0, 2), "f4")
    found["nan"] = numpy.array([numpy.nan, numpy.inf, -0.0], "f4")
    return found


def wanted(x):
    kind = x.dtype.str[1:]
    return numpy.ascontiguousarray(x.astype(WIDENED.get(kind, kind))).reshape(x.shape)


def same(x, y, name):
    assert y.dtype == wanted(x).dtype and y.shape == x.shape, (name, x.dtype, y.dtype, x.shape, y.shape)
    assert wanted(x).tobytes() == y.tobytes(), name


def run(*args):
    subprocess.run([PROGRAM, *map(str, args)], check=True, timeout=60)


def single_arrays(folder):
    for number, (name, x) in enumerate(pair for pair in arrays().items() if pair[0].split()[0] in ("f4", "b1", "u2", "empty")):
        numpy.save(folder / f"{number}.npy", x)
        run(folder / f"{number}.npy", folder / "out.npy")
        same(x, numpy.load(folder / "out.npy"), name)


def archives(folder):
    everything = list(arrays().items())
    for begin in range(0, len(everything), 30):
        part = {name.replace(" ", "_"): x for name, x in everything[begin:begin + 30]}
        for save in (numpy.savez, numpy.savez_compressed):
            save(folder / "in.npz", **part)
            for more in ((), ("compressed",)):
                run(folder / "in.npz", folder / "out.npz", *more)
                with zipfile.ZipFile(folder / "out.npz") as archive:
                    assert archive.testzip() is None
                out = numpy.load(folder / "out.npz")
                assert sorted(out.files) == sorted(part)
                for name, x in part.items():
                    same(x, out[name], name)


def names_beyond_ascii(folder):
    """Written with ZIP's flag for UTF-8 only if needed; read with and without it."""
    x = {name: numpy.full(3, number, "f4") for number, name in enumerate(("größe", "重み", "plain", "😀"))}
    numpy.savez(folder / "in.npz", **x)
    run(folder / "in.npz", folder / "out.npz")
    out = numpy.load(folder / "out.npz")
    assert sorted(out.files) == sorted(x), out.files
    for name in x:
        same(x[name], out[name], name)
    with zipfile.ZipFile(folder / "out.npz") as archive:
        assert {entry.filename: entry.flag_bits for entry in archive.infolist()} == {name + ".npy": 0 if name == "plain" else 0x800 for name in x}
    data = (folder / "out.npz").read_bytes()
    for head in (b"PK\x03\x04\x14\x00", b"PK\x01\x02\x14\x00\x14\x00"):
        assert data.count(head + b"\x00\x08") == 3
        data = data.replace(head + b"\x00\x08", head + b"\x00\x00")
    (folder / "no_flag.npz").write_bytes(data)
    run(folder / "no_flag.npz", folder / "again.npz")
    assert sorted(numpy.load(folder / "again.npz").files) == sorted(x)


def versions_of_the_header(folder):
    x = numpy.arange(6, dtype="f4").reshape(2, 3)
    for version in ((1, 0), (2, 0), (3, 0)):
        with open(folder / "v.npy", "wb") as f:
            numpy.lib.format.write_array(f, x, version=version)
        run(folder / "v.npy", folder / "out.npy")
        same(x, numpy.load(folder / "out.npy"), version)


def a_name_twice(folder):
    """Of two entries with one name, the last counts."""
    for number in (1, 2):
        numpy.save(folder / f"{number}.npy", numpy.full(2, number, "f4"))
    with warnings.catch_warnings(), zipfile.ZipFile(folder / "twice.npz", "w") as archive:
        warnings.simplefilter("ignore")
        for number in (1, 2):
            archive.write(folder / f"{number}.npy", "x.npy")
        archive.write(folder / "1.npy", "y.npy")
    assert numpy.load(folder / "twice.npz")["x"][0] == 2
    run(folder / "twice.npz", folder / "out.npy", "x")
    same(numpy.full(2, 2, "f4"), numpy.load(folder / "out.npy"), "x")


def main():
    tests = [single_arrays, archives, names_beyond_ascii, versions_of_the_header, a_name_twice]
    print(f"1..{len(tests)}")
    failed = False
    with tempfile.TemporaryDirectory(prefix="tern_test_") as top:
        for number, test in enumerate(tests, 1):
            try:
                test(pathlib.Path(top))
                print(f"ok {number} - {test.__name__}")
            except Exception as error:  # pylint: disable=broad-except
                failed = True
                print(f"not ok {number} - {test.__name__}\n# {type(error).__name__}: {error}")
    sys.exit(failed)


main()
