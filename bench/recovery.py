"""How long a job of GPT-2 stands still after a loss: seconds from the kill until the next step is done, from saves in memory beside
from files, when a rank is killed and when a host is; and what these saves cost a step.

Options: rounds [MODEL]. Two launchers on this machine pose as hosts, with a rank of one thread each. A killed host is replaced at
once; how soon a host is missed is --heartbeat, which is 5 s here. MODEL "tiny" is a quick trial.
"""
import array
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TERN = os.path.join(os.environ.get("TERN_BENCH_BIN", "build/release/bench"), "..", "tools", "tern")
EVERY, CONTEXT, LIMIT = 3, 64, 600
running = []  # launchers, each in a session with its ranks


def end_all():
    for p in running:
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()
    running.clear()


class Job:
    """Two hosts that train, with these options; `said` is what the one with rank 0 prints."""

    def __init__(self, model, steps, *options):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        vocab = 50257 if model.startswith("gpt2") else 2048
        with open("tokens.bin", "wb") as file:
            file.write(array.array("H", [i * i % vocab for i in range(100000)]).tobytes())
        self.train = ["train", "--data", "tokens.bin", "--model", model, "--context", CONTEXT, "--vocab", vocab, "--batch", 1, "--shard", "all",
                      "--threads", 1, "--log-every", 1, "--steps", steps, *options]
        self.lines = []
        self.first = self.host("a", subprocess.PIPE)
        self.second = self.host("b", subprocess.DEVNULL)

    def host(self, name, out):
        command = [TERN, "run", "--nnodes", 2, "-n", 1, "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--heartbeat", 5, "--max-restarts", 1,
                   *(["--node-rank", "ab".index(name)] if name in "ab" else []), TERN, *self.train]
        env = dict(os.environ, TERN_TOKEN="bench", TERN_HOST=name)
        with open("said.txt", "ab") as said:
            p = subprocess.Popen([str(word) for word in command], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=said,
                                 start_new_session=True)
        running.append(p)
        return p

    def until(self, pattern):
        """Reads on to a line; returns what the pattern found and when. An alarm ends a wait that is too long."""
        signal.alarm(LIMIT)
        for line in self.first.stdout:
            self.lines.append(line.decode())
            found = re.search(pattern, self.lines[-1])
            if found:
                signal.alarm(0)
                return found, time.monotonic()
        with open("said.txt", encoding="utf-8", errors="replace") as said:
            raise SystemExit(f"the job has ended before {pattern!r}:\n" + "".join(self.lines) + said.read())


def rank_of(launcher):
    """The rank that a launcher has started."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                mine = b"TERN_LAUNCHER=%d-" % launcher.pid in file.read()
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if mine and words[1:2] == [b"train"]:
            return int(pid)
    raise SystemExit("the host has no rank")


def recovery(model, host, *options):
    """Seconds from the loss of the second host, or of its rank, until the next step is done."""
    job = Job(model, 1000, *options)
    job.until(f"step {EVERY + 2}: ")
    begun = time.monotonic()
    if host:
        os.killpg(job.second.pid, signal.SIGKILL)
        job.host("c", subprocess.DEVNULL)
    else:
        os.kill(rank_of(job.second), signal.SIGKILL)
    from_step = int(job.until(r"continuing after step (\d+) of")[0][1])
    _, done = job.until(r"step \d+: ")
    end_all()
    return done - begun, from_step


def step_seconds(model, *options):
    """The median of the steps from the fourth on: by then saves take no new memory."""
    job = Job(model, 1000, *options)
    times = [job.until(f"step {step}: ")[1] for step in range(1, 13)]
    end_all()
    return statistics.median(b - a for a, b in zip(times[2:], times[3:]))


def in_folder(function, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        home = os.getcwd()
        os.chdir(folder)
        try:
            return function(*arguments)
        finally:
            end_all()
            os.chdir(home)


def main():
    rounds, model = [*sys.argv[1:], *["3", "gpt2"][len(sys.argv) - 1:]][:2]
    memory = ["--save-every", 1000, "--memory-every", EVERY, "--memory-copies"]
    files = ["--save-every", EVERY]
    for what, host in ("a rank", False), ("a host", True):
        for source, options in ("memory", memory), ("files", files):
            found = [in_folder(recovery, model, host, *options) for _ in range(int(rounds))]
            seconds, steps = zip(*found)
            print(f"{what} is killed, on from {source}: {min(seconds):.1f} to {max(seconds):.1f} s until the next step is done "
                  f"(on from step {min(steps)} to {max(steps)})", flush=True)
    for what, options in (("no saves", ["--save-every", 1000]), ("to memory", memory[:2] + ["--memory-every", 1]),
                          ("to memory with copies", memory[:2] + ["--memory-every", 1, "--memory-copies"])):
        found = [in_folder(step_seconds, model, *options) for _ in range(int(rounds))]
        print(f"a step, each saved, {what}: {min(found):.3f} to {max(found):.3f} s", flush=True)


def stop(number, _):
    raise SystemExit(f"ended by {signal.Signals(number).name}")


if __name__ == "__main__":
    TERN = os.path.abspath(TERN)
    for ending in signal.SIGTERM, signal.SIGALRM:
        signal.signal(ending, stop)
    main()
