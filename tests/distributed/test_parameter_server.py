#!/usr/bin/env python3
"""examples/27_parameter_server.c: in step it has the bits of one process; with a bound and without it learns; who dies is named, and
no one waits for it."""
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parents[2]
programs = pathlib.Path(os.environ.get("TERN_EXAMPLE_BIN", root / "build/release/examples"))
program, tern = programs / "27_parameter_server", programs.parent / "tools" / "tern"
PATIENCE = 60  # seconds; under a sanitizer everything takes longer


def losses(out):
    """{pushes: the loss, as text}"""
    found = dict(re.findall(r"pushes +(\d+)  time +\S+  test loss (\S+)$", out, flags=re.M))
    assert found, out
    return found


def trained(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return losses(done.stdout)


def bits_in_step():
    """Any number of workers in step, also more than an rpc has threads by default: the losses of one process, to the last digit."""
    for workers, steps in ((1, 480), (3, 480), (17, 30)):
        assert trained(tern, "run", "-n", workers + 1, program, "--steps", steps) == trained(program, "--alone", workers, "--steps", steps)


def four_workers_learn():
    """0.18 to begin with. In step, bounded and free, with steps that take longer at random: as docs/asynchronous.svg is drawn."""
    with tempfile.TemporaryDirectory() as folder:
        drawing = pathlib.Path(folder, "asynchronous.svg")
        subprocess.run([sys.executable, root / "docs/draw_asynchronous.py", tern, program, drawing, "1800", "0.2"], check=True, timeout=PATIENCE)
        found = re.findall(r"<title>([^:<]+): (\S+) at 7200<", drawing.read_text())
    assert [name for name, _ in found] == ["in step", "at most 4 steps ahead", "free"], found
    assert all(float(loss) < 0.02 for _, loss in found), found


def everyone_ends():
    """Also who is ahead of one that has ended."""
    for _ in range(8):
        subprocess.run([tern, "run", "-n", "6", program, "--staleness", "1", "--delay", "0.05", "--steps", "10"], check=True, timeout=PATIENCE,
                       stdout=subprocess.DEVNULL)


class Ranks:
    """Four ranks without a launcher, which would end them all when one dies."""

    def __init__(self, *options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self.ranks = [subprocess.Popen(
            [program, "--steps", "1000000", "--delay", "1", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="4", LOCAL_RANK=str(rank),
                     LOCAL_WORLD_SIZE="4", TERN_TIMEOUT="30")) for rank in range(4)]

    def __enter__(self):
        assert self.ranks[0].stdout.readline().startswith("pushes"), self.ranks[0].stderr.read()
        return self.ranks

    def __exit__(self, *error):
        for rank in self.ranks:
            rank.kill()
            rank.communicate()


def a_worker_dies():
    """In step the others end, and name it."""
    with Ranks() as ranks:
        ranks[2].send_signal(signal.SIGKILL)
        for k in (0, 1, 3):
            out, errors = ranks[k].communicate(timeout=PATIENCE)
            assert ranks[k].returncode == 1 and "2 is gone" in out + errors, (k, ranks[k].returncode, out, errors)


def the_others_go_on():
    """Without a bound they learn on."""
    with Ranks("--staleness", "free") as ranks:
        ranks[2].send_signal(signal.SIGKILL)
        lines = [ranks[0].stdout.readline() for _ in range(20)]
        assert sum(line.startswith("worker 2 is gone") for line in lines) == 1 and lines[-1].startswith("pushes"), lines
        assert all(ranks[k].poll() is None for k in (0, 1, 3))


def the_server_dies():
    with Ranks("--staleness", "4") as ranks:
        ranks[0].send_signal(signal.SIGKILL)
        for k in (1, 2, 3):
            _, errors = ranks[k].communicate(timeout=PATIENCE)
            assert ranks[k].returncode == 1 and "rank 0" in errors, (k, ranks[k].returncode, errors)


tests = [bits_in_step, four_workers_learn, everyone_ends, a_worker_dies, the_others_go_on, the_server_dies]
print(f"1..{len(tests)}", flush=True)
for number, test in enumerate(tests, 1):
    try:
        test()
        print(f"ok {number} - {test.__name__}", flush=True)
    except Exception as error:  # one line per error
        print(f"not ok {number} - {test.__name__}")
        print("# " + f"{type(error).__name__}: {error}".replace("\n", "\n# "), flush=True)
