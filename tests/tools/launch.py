"""What the launcher's tests share: starting `tern run`, waiting with a limit, TAP, and the check for processes left behind.

Every test is a function with @test, in a folder of its own. All processes of a test have a mark in their environment; after the
test none may be left, which is part of every test.
"""
import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import tty

TESTS = os.path.abspath(os.environ.get("TERN_TEST_BIN", "build/test/tests"))  # the programs of the tests
TERN = os.path.join(os.path.dirname(TESTS), "tools", "tern")
LIMIT = 60  # seconds; nothing here takes so long unless it hangs
MARK = "TERN_TEST_MARK"
_tests = []


def test(function):
    _tests.append(function)
    return function


class Skip(Exception):
    """The test cannot run here; the text says why."""


def need(*names):
    """Skips the test if one of these programs is not installed."""
    for name in names:
        if not shutil.which(name):
            raise Skip(f"{name} is not installed")


def environment(**more):
    """The tests' environment without what an outer launcher may have set."""
    names = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_|GROUP_|MASTER_|TERN_(?!TEST|ROOT|EXAMPLE)|TORCHELASTIC_|NO_COLOR|OMPI_|PMI|SLURM_|"
                       r"SM_HOSTS|TF_CONFIG|CLUSTER_SPEC|PET_|AWS_BATCH_|SKYPILOT_)")
    clean = {key: value for key, value in os.environ.items() if not names.match(key)}
    clean["XDG_CONFIG_HOME"] = os.path.join(os.getcwd(), "config")  # the user's own token: never the real one
    clean.update({key: str(value) for key, value in more.items()})
    return clean


def command(*args):
    return [TERN, "run"] + [str(arg) for arg in args]


def complete(*args, code=0, env=None, **options):
    """A program to its end, with this exit status, or any if it is None: a CompletedProcess with bytes."""
    options.setdefault("timeout", LIMIT)
    done = subprocess.run(args, env=env or environment(), capture_output=True, check=False, **options)
    same(done.returncode, done.returncode if code is None else code, (args, done.stderr))
    return done


def run(*args, **options):
    """`tern run args…`"""
    return complete(*command(*args), **options)


def start(*args, env=None, prefix=(), **options):
    """`tern run args…` in the background. Its stderr and stdout go to files, so nothing has to read them."""
    name = tempfile.mktemp(dir=".", prefix="launcher-")
    with open(name + ".out", "wb") as out, open(name + ".err", "wb") as err:
        p = subprocess.Popen(list(prefix) + command(*args), env=env or environment(), stdin=subprocess.DEVNULL,
                             stdout=options.pop("stdout", out), stderr=options.pop("stderr", err), **options)
    p.name = name
    return p


def tern(*args, code=0, env=None, **options):
    """`tern args…` to its end, with this exit status; returns what it wrote, stdout and stderr."""
    options = {"timeout": LIMIT, "stderr": subprocess.STDOUT, **options}
    done = subprocess.run([TERN, *map(str, args)], env=env or environment(), stdout=subprocess.PIPE, check=False, **options)
    said = done.stdout.decode("utf-8", "replace")
    same(done.returncode, code, (args, said))
    return said


class Terminal:
    """A raw pseudo-terminal of 100 columns with a command on it; keeps all that appears, write by write."""

    def __init__(self, *args, **streams):
        self.reading, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        tty.setraw(end)
        self.p = subprocess.Popen(args, env=environment(TERM="xterm"), start_new_session=True,
                                  **{"stdin": end, "stdout": end, "stderr": end, **streams})
        os.close(end)
        self.pieces = []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        try:
            while piece := os.read(self.reading, 65536):
                self.pieces.append(piece)
        except OSError:
            pass

    def seen(self):
        return b"".join(self.pieces)

    def finish(self, code):
        same(self.p.wait(LIMIT), code, self.seen())
        self.thread.join(LIMIT)
        os.close(self.reading)
        return self.seen()


def output(p):
    return text(p.name + ".out")


def errors(p):
    return text(p.name + ".err")


def text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except FileNotFoundError:
        return ""


def write(path, content):
    with open(path, "wb") as f:
        f.write(content.encode() if isinstance(content, str) else content)


def shell(script):
    return ["sh", "-c", script]


def go():
    """For ranks that wait for it."""
    write("go", "")


def until(condition, what, limit=LIMIT):
    """Waits for the condition; returns its value. `what` is a text, or a function that returns one."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"after {limit} s not yet: {what() if callable(what) else what}")
        time.sleep(0.02)


def finish(p, code, limit=LIMIT):
    """Waits for a launcher to end; its exit status must be `code`."""
    try:
        p.wait(limit)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the launcher has not ended after {limit} s\n{output(p)}{errors(p)}") from None
    same(p.returncode, code, output(p) + errors(p))


def same(is_, wanted, more=""):
    if is_ != wanted:
        raise AssertionError(f"is {is_!r}, wanted {wanted!r}\n{more}")


def holds(condition, more=""):
    if not condition:
        raise AssertionError(more.decode("utf-8", "replace") if isinstance(more, bytes) else str(more))


def has(whole, *parts):
    whole = whole.decode("utf-8", "replace") if isinstance(whole, bytes) else whole
    for part in parts:
        holds(part in whole, f"{part!r} is not in:\n{whole}")


held = []  # sockets


def free_port():
    """A port that the system gives to nobody else while this process lives: a socket holds it, which does not listen, and leaves it to
    a listener that asks for SO_REUSEADDR, as servers do."""
    import socket
    held.append(socket.socket())
    held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held[-1].bind(("127.0.0.1", 0))
    return held[-1].getsockname()[1]


def free_ports(count):
    """The first of so many free ports in a row, below those that the system gives to clients."""
    import socket
    for first in range(10000 + os.getpid() % 300 * 40, 32000, count):
        held = [socket.socket() for _ in range(count)]
        try:
            for port, s in enumerate(held, first):
                s.bind(("", port))
            return first
        except OSError:
            pass
        finally:
            for s in held:
                s.close()
    raise AssertionError(f"there are no {count} free ports in a row")


def processes():
    """(pid, environment, command line) of each that can be read."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f, open(f"/proc/{pid}/cmdline", "rb") as g:
                yield int(pid), f.read().split(b"\0"), g.read().split(b"\0")
        except OSError:
            pass


def marked(mark):
    """Processes with the mark, except this one: (pid, name)."""
    return [(pid, b" ".join(words).decode("utf-8", "replace")) for pid, variables, words in processes()
            if f"{MARK}={mark}".encode() in variables and pid != os.getpid()]


def kill_marked(mark):
    for pid, _ in marked(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def pids_of(program, launcher):
    """The ranks of a launcher, by rank."""
    found = {}
    for pid, variables, words in processes():
        rank = [v[5:] for v in variables if v.startswith(b"RANK=")]
        if rank and words[0] == program.encode() and any(v.startswith(b"TERN_LAUNCHER=%d-" % launcher.pid) for v in variables):
            found[int(rank[0])] = pid
    return found


def blocks(process, number):
    """Whether the process keeps this signal back, to read it itself: a launcher does as soon as it can end in order."""
    return int(re.search(r"SigBlk:\s*(\w+)", text(f"/proc/{process.pid}/status")).group(1), 16) >> (number - 1) & 1


def _last_words():
    """What the launchers of the test have written to stderr: the one that failed may not be the one that was checked."""
    names = sorted(name for name in os.listdir(".") if re.fullmatch("launcher-.*[.]err", name))
    return "".join(f"\n{name}: {text(name)}" for name in names if text(name))


def _run_one(function, number):
    name = function.__doc__ or function.__name__.replace("_", " ")
    mark = f"{os.getpid()}-{number}"
    os.environ[MARK] = mark
    home, folder = os.getcwd(), tempfile.mkdtemp(prefix="tern_test_")
    os.chdir(folder)
    failed, skip, begun = None, "", time.monotonic()
    try:
        function()
        until(lambda: not marked(mark), "no process is left behind", 10)
    except Skip as why:
        skip = f" # SKIP {why}"
    except AssertionError as error:
        failed = f"{error}\nleft: {marked(mark)}{_last_words()}"
    except Exception as error:  # pylint: disable=broad-except
        failed = f"{type(error).__name__}: {error}"
    kill_marked(mark)
    os.chdir(home)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{'not ok' if failed is not None else 'ok'} {number} - {name}{skip}")
    print(f"# {time.monotonic() - begun:.1f} s")
    for line in (failed or "").splitlines():
        print("# " + line)
    sys.stdout.flush()
    return failed is None


def main():
    """Runs the tests of the script, or those whose names begin with an argument."""
    chosen = [f for f in _tests if len(sys.argv) < 2 or any(f.__name__.startswith(a) for a in sys.argv[1:])]
    print(f"1..{len(chosen)}", flush=True)
    good = [_run_one(function, number) for number, function in enumerate(chosen, 1)]
    sys.exit(0 if all(good) else 1)
