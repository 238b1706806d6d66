"""Printing against NumPy: what dump_print writes is how NumPy lays out the same array, each element by itself in the fewest digits."""
import os
import subprocess
import tempfile

from twin import run
import numpy as np

nan, inf = float("nan"), float("inf")
f4, f8, f2, i8, i4, u1, i1 = np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8, np.int8
r = np.random.RandomState(1)

CASES = [
    ("integers_as_floats", np.array([1, 2, 3], f4)),
    ("halves", np.array([[0.5, 1.25], [-2, 100.125]], f4)),
    ("shortest_digits", np.array([0.1, 0.2, 0.3], f4)),
    ("shortest_digits_f64", np.array([0.1, 1 / 3, 2 / 3], f8)),
    ("negative_zero", np.array([0.0, -0.0, 1.5], f4)),
    ("zeros", np.zeros((2, 3), f4)),
    ("small", np.array([1e-5, 2e-5], f4)),
    ("large", np.array([1e8, 123456789], f8)),
    ("wide_range", np.array([0.001, 1, 10000], f4)),
    ("range_of_1000", np.array([0.001, 0.5, 1], f8)),
    ("three_digit_exponents", np.array([1e-300, 1, -2.5e100], f8)),
    ("nan_and_inf", np.array([1, nan, inf, -inf], f4)),
    ("only_nan", np.array([nan, nan], f4)),
    ("nan_and_fractions", np.array([0.12345, nan, -7], f8)),
    ("nan_scientific", np.array([1e-10, nan, -inf], f8)),
    ("f16_exact_integers", np.array([17360, 5472, 0.25], f2)),
    ("f16", np.array([0.1, 65504, 1], f2)),
    ("i64_limits", np.array([-2**63, 0, 2**63 - 1], i8)),
    ("i32", np.array([[1, -20], [300, 4]], i4)),
    ("u8", np.arange(6).reshape(2, 3).astype(u1)),
    ("bytes_with_signs", np.array([[-128, 0], [7, 127]], i1)),
    ("booleans", np.array([[True, False], [False, True]])),
    ("scalar", np.array(2.5, f4)),
    ("scalar_whole", np.array(3, f4)),
    ("scalar_small", np.array(1.5e-5, f4)),
    ("scalar_large", np.array(1e16, f8)),
    ("scalar_nan", np.array(nan, f4)),
    ("scalar_integer", np.array(-7, i8)),
    ("scalar_bool", np.array(True)),
    ("empty", np.zeros((0,), f4)),
    ("empty_2d", np.zeros((3, 0, 2), f4)),
    ("wraps", np.arange(40).astype(i8)),
    ("wraps_with_fractions", np.round(r.randn(2, 25), 3).astype(f4)),
    ("three_dimensions", np.arange(12).reshape(2, 3, 2).astype(f4)),
    ("four_dimensions", np.arange(16).reshape(2, 2, 2, 2).astype(i4)),
    ("not_summarised", np.arange(1000).astype(i4)),
    ("summarised", np.arange(1001).astype(f4)),
    ("summarised_2d", np.arange(2000).reshape(20, 100).astype(i8)),
    ("summarised_short_side", np.arange(3000).reshape(3, 1000).astype(f8)),
    ("summarised_3d", (np.arange(8000).reshape(20, 20, 20) / 8).astype(f4)),
    ("summary_ignores_the_middle", np.where(np.arange(1200) == 600, 1e30, 1).astype(f8)),
]


def printed():
    """What Tern prints for each case: as it is, and as a view with gaps."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "cases.npz")
        np.savez(path, **dict(CASES))
        program = os.path.join(os.environ["TERN_TEST_BIN"], "dump_print")
        texts = subprocess.run([program, path], check=True, stdout=subprocess.PIPE).stdout.decode().split("\0")
    assert len(texts) == 2 * len(CASES) + 1
    return zip(texts[::2], texts[1::2])


def word(x, digits=8):
    """A number in the fewest digits that give it in its dtype, at most these."""
    if x.dtype.kind != "f" or not np.isfinite(x):
        return str(x)
    mantissa, exponent = np.format_float_scientific(x, precision=digits - 1, trim="-", exp_digits=2).split("e")
    if not -4 <= int(exponent) < digits:
        return mantissa + "e" + exponent
    places = sum(c.isdigit() for c in mantissa) - 1 - int(exponent)
    return "%#.*f" % (max(places, 0), x)  # before the point all digits are the number's


def expected(array):
    if array.ndim == 0:
        return word(array[()], 17)
    seen = array
    for axis in range(array.ndim if array.size > 1000 else 0):
        seen = seen.take([0, 1, 2, -3, -2, -1], axis) if seen.shape[axis] > 6 else seen
    width = max([len(word(x)) for x in seen.flat], default=0)
    return np.array2string(array, formatter={"all": lambda x: word(x).rjust(width)})


def compare(array, plain, view):
    for text in plain, view:
        if text != expected(array):
            raise AssertionError("expected\n%s\nprinted\n%s" % (expected(array), text))


run([(name, lambda a=array, t=texts: compare(a, *t)) for (name, array), texts in zip(CASES, printed())])
