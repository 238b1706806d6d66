"""Two programs that do the same work, measured in turns, in one fair environment.

Each is a process that answers lines: "run N" with a loss and N times in ms, "memory" with its peak in MiB (bench.h,
serve.py). One round is a turn of each; its ratio is that of the two medians, so what slows the machine down for a while
slows both. While one works, the other waits for a line and uses no CPU time.
"""
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PYTHON = sys.executable  # ./run chooses Debian's
THREADS = int(os.environ.get("TERN_BENCH_THREADS", min(2, os.cpu_count())))


def fair_environment(threads=THREADS, bind=True):
    """Where PyTorch is fastest: OpenBLAS on OpenMP, bound threads, memory that is not returned to the system. The same for both.
    Several processes at a time are not bound: each would take the first core."""
    env = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    env.update(
        OMP_NUM_THREADS=str(threads),
        OMP_PROC_BIND="true" if bind else "false",
        MALLOC_MMAP_THRESHOLD_=str(16 << 30),
        MALLOC_TRIM_THRESHOLD_=str(16 << 30),
        GLIBC_TUNABLES="glibc.malloc.hugetlb=1",
    )
    blas = f"/usr/lib/{platform.machine()}-linux-gnu/openblas-openmp"
    if os.path.isdir(blas):
        env["LD_LIBRARY_PATH"] = blas
    with open("/proc/cpuinfo") as f:
        if "avx512f" in f.read():
            env["ATEN_CPU_CAPABILITY"] = "avx512"
    return env


def program(name):
    """The path of a benchmark's program; `./run bench` says where they are."""
    return os.path.join(os.environ.get("TERN_BENCH_BIN", os.path.join(ROOT, "build/release/bench")), name)


class Peer:
    """A Python with PyTorch: its version, its BLAS, and why no ratio to it is given ("" if one is)."""

    def __init__(self, python):
        self.python = python
        self.version, self.blas, self.crippled, self.core = "", "", "", ""
        core = self.describe()
        if core:  # what its OpenBLAS has not found out by itself
            self.core = core
            self.describe()

    def describe(self):
        """Returns the OPENBLAS_CORETYPE that it lacks."""
        try:
            done = subprocess.run(self.command("describe.py"), capture_output=True, text=True, env=fair_environment())
        except OSError:
            return ""
        if done.returncode != 0:
            return ""
        self.version, self.blas, self.crippled, core = (done.stdout.splitlines() + [""] * 4)[:4]
        return core

    @property
    def name(self):
        return "PyTorch " + self.version

    def command(self, script, *arguments):
        told = ["env", "OPENBLAS_CORETYPE=" + self.core] if self.core else []
        return [*told, self.python, os.path.join(HERE, script), *map(str, arguments)]


def find_peers(since=(1, 0)):
    """Those that are installed: that of this Python (./run chooses Debian's), and that of TERN_BENCH_PYTHON; of a version from
    `since` on. One whose OpenBLAS has no kernels for this processor is left out: it takes minutes and says nothing."""
    pythons = [PYTHON]
    other = os.environ.get("TERN_BENCH_PYTHON")
    if other and os.path.abspath(other) != os.path.abspath(PYTHON):
        pythons.append(other)
    peers = [Peer(python) for python in pythons]
    for p in peers:
        if p.version:
            told = f" (told by OPENBLAS_CORETYPE={p.core})" if p.core else ""
            print(f"{p.name}: {p.blas}{told}" + (f"; no ratio: {p.crippled}" if p.crippled else ""))
        else:
            print(f"{p.python} has no PyTorch: no peer" + (" (./run setup bench)" if p.python == PYTHON else ""))
    sys.stdout.flush()
    return [p for p in peers if p.version and "does not know" not in p.crippled and tuple(int(x) for x in p.version.split(".")[:2]) >= since]


class Worker:
    def __init__(self, command, threads=THREADS, bind=True):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=fair_environment(threads, bind)
        )

    def tell(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def hear(self):
        answer = self.process.stdout.readline().split()
        if not answer:
            raise SystemExit(f"{' '.join(self.process.args)} ended (status {self.process.wait()})")
        return [float(x) for x in answer]

    def ask(self, line):
        self.tell(line)
        return self.hear()

    def run(self, n):
        """n steps: the last loss, and the times in ms."""
        loss, *ms = self.ask(f"run {n}")
        return loss, ms

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def duel(workers, rounds, steps, warm_up, agree=None):
    """A turn of each worker in every round: {"ms": [each one's median], "ratios": [each one's, of the rounds, to the first's],
    "losses": [each one's after the warm-up, then after each turn], "memory": [each one's]}. `agree`: by how much, relatively, the
    losses after the warm-up may differ; the ratio of a worker that computes something else is None."""
    losses = [[w.run(warm_up)[0]] for w in workers]
    ms = [[] for _ in workers]
    for r in range(rounds):
        order = list(enumerate(workers))
        for i, w in order if r % 2 == 0 else reversed(order):
            loss, times = w.run(steps)
            losses[i].append(loss)
            ms[i].append(statistics.median(times))
    memory = [w.ask("memory") for w in workers]
    for w in workers:
        w.close()
    first = losses[0][0]
    same = [agree is None or abs(x[0] - first) <= agree * abs(first) for x in losses]
    return {
        "ms": [statistics.median(x) for x in ms],
        "ratios": [sorted(b / a for a, b in zip(ms[0], x)) if ok else None for x, ok in zip(ms, same)],
        "losses": losses,
        "memory": memory,
        "after": [warm_up + i * steps for i in range(rounds + 1)],
    }


def table(head, rows):
    """Prints rows of texts and numbers; None is an empty cell."""
    rows = [[("" if x is None else x if isinstance(x, str) else f"{x:.3g}" if x < 100 else f"{x:.0f}") for x in row] for row in rows]
    widths = [max(len(str(row[i])) for row in [head] + rows) for i in range(len(head))]
    for row in [head] + rows:
        print("  ".join(x.ljust(w) if i == 0 else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths))).rstrip())


def ratio_text(ratios):
    return f"{statistics.median(ratios):.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else "none: other losses"


NOTES = os.environ.get("TERN_BENCH_NOTES")  # set by bench/table.py, which leaves out what has no peer


def note(title, ms, peers, ratios):
    """For bench/table.py, if it runs this: Tern's time and each peer's ratios, None where there is none."""
    if NOTES:
        with open(NOTES, "a", encoding="utf-8") as f:
            f.write(json.dumps([title, ms, dict(zip(peers, ratios))]) + "\n")


def compare(title, r, peers):
    """Prints a duel of Tern with PyTorch: times, ratios, memory, and the losses, which should agree."""
    note(title, r["ms"][0], [p.name for p in peers], [None if p.crippled else x for p, x in zip(peers, r["ratios"][1:])])
    head, rows = [title, "Tern"], [["ms a step", r["ms"][0]], ["MiB at most", r["memory"][0][0]], ["  in tensors", r["memory"][0][1]]]
    for i, p in enumerate(peers, 1):
        head += [p.name, "ratio (of the rounds)"]
        rows[0] += [r["ms"][i], "none: its BLAS" if p.crippled else ratio_text(r["ratios"][i])]
        rows[1] += [r["memory"][i][0], f"{r['memory'][i][0] / r['memory'][0][0]:.2f}"]
        rows[2] += [(*r["memory"][i], None)[1], None]
    last = len(r["after"]) - 1
    for turn in sorted({0, 1, last // 2, last}):
        row = [f"loss of step {r['after'][turn]}", f"{r['losses'][0][turn]:.5f}"]
        for i in range(1, len(peers) + 1):
            row += [f"{r['losses'][i][turn]:.5f}", None]
        rows.append(row)
    table(head, rows)
    sys.stdout.flush()


def compare_lists(unit, ours, script, names, rounds=3):
    """Prints what Tern's program and its peers' script print, "name number" lines, with one thread: the least of some turns each, by
    name. names: (name, what it is) pairs; a peer may lack some."""
    peers = find_peers()
    commands = [[program(ours)]] + [p.command(script) for p in peers]
    best = [{} for _ in commands]
    for _ in range(rounds):
        for kept, command in zip(best, commands):
            out = subprocess.run(command, check=True, capture_output=True, text=True, env=fair_environment(1)).stdout
            for name, number in (line.split() for line in out.splitlines()):
                kept[name] = min(float(number), kept.get(name, float(number)))
    head, rows = [unit, "Tern"], []
    for p in peers:
        head += [p.name, "ratio"]
    for name, text in names:
        rows.append([text, best[0][name]])
        for theirs in best[1:]:
            rows[-1] += [theirs.get(name), f"{theirs[name] / best[0][name]:.2f}" if name in theirs else None]
    table(head, rows)
