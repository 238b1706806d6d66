"""How long a job of GPT-2 stands still when a rank is killed: seconds until the next step is done, from saves in memory beside from
files; and what these saves cost a step.

Options: rounds [MODEL]. Two ranks of one thread each. MODEL "tiny" is a quick trial.
"""
import array
import os
import re
import signal
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
    """Two ranks that train, with these options."""

    def __init__(self, model, steps, *options):
        vocab = 50257 if model.startswith("gpt2") else 2048
        with open("tokens.bin", "wb") as file:
            file.write(array.array("H", [i * i % vocab for i in range(100000)]).tobytes())
        command = [TERN, "run", "-n", 2, "--max-restarts", 1, TERN, "train", "--data", "tokens.bin", "--model", model, "--context", CONTEXT,
                   "--vocab", vocab, "--batch", 1, "--shard", "all", "--threads", 1, "--log-every", 1, "--steps", steps, *options]
        self.lines = []
        with open("said.txt", "ab") as said:
            self.launcher = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said,
                                             start_new_session=True)
        running.append(self.launcher)

    def until(self, pattern):
        """Reads on to a line; returns what the pattern found and when. An alarm ends a wait that is too long."""
        signal.alarm(LIMIT)
        for line in self.launcher.stdout:
            self.lines.append(line.decode())
            found = re.search(pattern, self.lines[-1])
            if found:
                signal.alarm(0)
                return found, time.monotonic()
        with open("said.txt", encoding="utf-8", errors="replace") as said:
            raise SystemExit(f"the job has ended before {pattern!r}:\n" + "".join(self.lines) + said.read())


def rank_of(launcher):
    """A rank that a launcher has started."""
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
    raise SystemExit("there is no rank")


def recovery(model, *options):
    """Seconds from the loss of a rank until the next step is done."""
    job = Job(model, 1000, *options)
    job.until(f"step {EVERY + 2}: ")
    begun = time.monotonic()
    os.kill(rank_of(job.launcher), signal.SIGKILL)
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
    memory, files = ["--save-every", 1000, "--memory-every", EVERY], ["--save-every", EVERY]
    for source, options in ("memory", memory), ("files", files):
        found = [in_folder(recovery, model, *options) for _ in range(int(rounds))]
        seconds, steps = zip(*found)
        print(f"a rank is killed, on from {source}: {min(seconds):.1f} to {max(seconds):.1f} s until the next step is done "
              f"(on from step {min(steps)} to {max(steps)})", flush=True)
    for what, options in (("no saves", memory[:2]), ("to memory", memory[:2] + ["--memory-every", 1])):
        found = [in_folder(step_seconds, model, *options) for _ in range(int(rounds))]
        print(f"a step, each saved, {what}: {min(found):.3f} to {max(found):.3f} s", flush=True)


def stop(number, _):
    raise SystemExit(f"ended by {signal.Signals(number).name}")


if __name__ == "__main__":
    TERN = os.path.abspath(TERN)
    for ending in signal.SIGTERM, signal.SIGALRM:
        signal.signal(ending, stop)
    main()
