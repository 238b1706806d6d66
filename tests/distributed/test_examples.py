#!/usr/bin/env python3
"""The examples of parallel training do what their first lines say: 08_threads_dp, 09_hogwild, 10_local_sgd, 24_two_devices, 26_rpc,
29_powersgd."""
import os
import pathlib
import re
import subprocess
import tempfile

root = pathlib.Path(__file__).resolve().parents[2]
programs = pathlib.Path(os.environ.get("TERN_EXAMPLE_BIN", root / "build/release/examples"))
tern = programs.parent / "tools" / "tern"


def lines(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.splitlines()


def numbers(line, pattern):
    match = re.search(pattern, line)
    assert match, f"not {pattern!r}: {line}"
    return [float(x) for x in match.groups()]


def threads():
    """Any number of ranks takes the same steps, and their models stay equal to the last bit."""
    pattern = r"^ranks (\d)  loss (\S+) (\S+) (\S+)  parameters that differ between ranks: (\d+)$"
    found = [numbers(line, pattern) for line in lines(programs / "08_threads_dp")]
    assert [int(x[0]) for x in found] == [1, 2, 4], found
    for _, first, middle, last, different in found:
        assert different == 0 and last < middle < first < 0.1, found
        assert abs(last - found[0][3]) < 1e-3 * last, found


def hogwild():
    """Without a lock the loss still falls; every process takes part, and no step is taken twice."""
    for workers in (1, 3):
        out = lines(programs / "09_hogwild", "--processes", workers)
        pattern = r"^(\d) processes: test loss (\S+) after (\S+) s; steps taken by each: (.*)$"
        match = re.match(pattern, out[-1])
        assert match and int(match.group(1)) == workers, out
        taken = [int(x) for x in match.group(4).split()]
        assert len(taken) == workers and sum(taken) == 8000, out
        assert float(match.group(2)) < 0.01, out


def full_output():
    """Every program fails if it cannot print; what it saves goes to a temporary folder."""
    with open("/dev/full", "wb") as full, tempfile.TemporaryDirectory() as folder:
        for name in ("01_tour", "02_line", "03_mlp", "05_custom_op", "06_save_load", "07_ddp", "08_threads_dp", "09_hogwild", "10_local_sgd",
                     "12_fsdp", "24_two_devices", "26_rpc", "29_powersgd"):
            done = subprocess.run([programs / name], cwd=folder, env=dict(os.environ, TMPDIR=folder), stdout=full,
                                  stderr=subprocess.PIPE, timeout=120)
            assert done.returncode == 1, f"{name}: status {done.returncode} with a full stdout: {done.stderr}"


def local_sgd():
    """With a sixteenth of the traffic, the loss falls just as far."""
    for start in ([], [tern, "run", "-n", "2"]):
        out = [re.sub(r"^\[0\] ", "", line) for line in lines(*start, programs / "10_local_sgd")]
        sent = r"^average every +(\d+): each of (\d) ranks? has sent (\d+) kB$"
        curve = r"^average every +(\d+)  step +(\d+)  test loss (\S+)  drift before it (\S+)$"
        often, seldom = [numbers(out[i], sent) for i in (4, 9)]
        assert often[1] == seldom[1] == (2 if start else 1), out
        assert (often[0], seldom[0]) == (1, 16) and abs(often[2] - 16 * seldom[2]) <= 16, out
        losses = [numbers(out[i], curve) for i in (0, 3, 5, 8)]
        assert losses[1][2] < losses[0][2] and losses[3][2] < losses[2][2], out
        assert losses[3][2] < 2 * losses[1][2], out
        assert (losses[3][3] > 0) == bool(start), out


def diloco():
    """With an outer optimiser too, and it is told a mistake."""
    out = [re.sub(r"^\[0\] ", "", line) for line in lines(tern, "run", "-n", "2", programs / "10_local_sgd", "--every", 32, "--diloco")]
    curve = r"^average every +(\d+)  step +(\d+)  test loss (\S+)  drift before it (\S+)$"
    ends = [numbers(out[i], curve) for i in (3, 5, 8)]
    assert ends[2][0] == 32 and ends[2][2] < ends[1][2] and ends[2][2] < 2 * ends[0][2], out
    for wrong in (["--every", "0"], ["4"], ["--every", "4", "--dilocco"]):
        assert subprocess.run([programs / "10_local_sgd", *wrong], stderr=subprocess.PIPE, timeout=60).returncode == 64, wrong


def powersgd():
    """With a tenth of the bytes the loss falls as far, within 2 %."""
    out = [re.sub(r"^\[0\] ", "", line) for line in lines(tern, "run", "-n", "2", programs / "29_powersgd")]
    (whole, all_sent), (thin, sent) = (numbers(line, r"^\w+ gradients: loss (\S+), (\d+) kB sent$") for line in out)
    assert abs(thin - whole) < 0.02 * whole and 10 * sent < all_sent, out


def two_devices():
    """With the CPU in the place of both: blocks end with the loss of one device, copies sum gradients in another order."""
    copies = [(["--copies", "--devices", ",".join(["cpu"] * n)], "copies", 1e-4) for n in (1, 2, 3, 4, 5)]  # some do not divide the batch
    for more, name, tolerance in ([], "two blocks", 0), *copies:
        (line,) = lines(programs / "24_two_devices", *more)
        one, two = numbers(line, rf"^one device: loss (\S+)  {name}: loss (\S+)$")
        assert one < 0.01 and abs(one - two) <= tolerance * one, line


def rpc():
    """A rank that calls itself, and one that calls another: the same losses, and they fall."""
    alone = lines(programs / "26_rpc")
    two = [re.sub(r"^\[0\] ", "", line) for line in lines(tern, "run", "-n", "2", programs / "26_rpc")]
    assert alone[0].endswith("on rank 0") and two[0].endswith("on rank 1") and alone[1:] == two[1:], two
    losses = [numbers(line, r"^step +\d+  loss (\S+)$")[0] for line in two[1:]]
    assert len(losses) == 4 and losses[-1] < losses[0] / 2, losses


tests = [threads, hogwild, local_sgd, diloco, powersgd, two_devices, rpc, full_output]
print(f"1..{len(tests)}", flush=True)
for number, test in enumerate(tests, 1):
    try:
        test()
        print(f"ok {number} - {test.__name__}", flush=True)
    except Exception as error:  # one line per error
        print(f"not ok {number} - {test.__name__}")
        print("# " + f"{type(error).__name__}: {error}".replace("\n", "\n# "), flush=True)
