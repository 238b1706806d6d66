"""Two programs that do the same work, measured in turns, in one fair environment.

Each is a process that answers lines: "run N" with a loss and N times in ms, "memory" with its peak in MiB (bench.h,
serve.py). One round is a turn of each; its ratio is that of the two medians, so what slows the machine down for a while
slows both. While one works the other waits for a line and uses no processor.
"""
import os
import platform
import shutil
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PYTHON = sys.executable  # ./run chooses the one that has PyTorch
THREADS = int(os.environ.get("TERN_BENCH_THREADS", min(2, os.cpu_count())))


def fair_environment(threads=THREADS, bind=True):
    """What PyTorch is fastest with: OpenBLAS on OpenMP, threads that stay, memory that is not given back. For both. Several
    processes at a time are not bound: each would take the first core."""
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
    """A benchmark's program; `./run bench` says where they are."""
    return os.path.join(os.environ.get("TERN_BENCH_BIN", os.path.join(ROOT, "build/release/bench")), name)


def peer(name):
    return [PYTHON, os.path.join(HERE, name)]


def have_torch():
    try:
        return subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode == 0
    except OSError:
        return False


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


def duel(tern, torch, rounds, steps, warm_up):
    """Medians of all rounds and their ratios: {"tern": ms, "torch": ms, "ratios": [...], "loss": (…), "memory": (…)}.
    `torch` may be None."""
    workers = [w for w in (tern, torch) if w]
    for w in workers:
        w.run(warm_up)
    ms = [[], []]
    loss = [None, None]
    for r in range(rounds):
        order = list(enumerate(workers))
        for i, w in order if r % 2 == 0 else reversed(order):
            loss[i], times = w.run(steps)
            ms[i].append(statistics.median(times))
    memory = [w.ask("memory") for w in workers]
    for w in workers:
        w.close()
    ratios = [b / a for a, b in zip(*ms)]
    return {
        "tern": statistics.median(ms[0]),
        "torch": statistics.median(ms[1]) if torch else None,
        "ratio": statistics.median(ratios) if torch else None,
        "ratios": sorted(ratios),
        "loss": loss,
        "memory": memory,
    }


def table(head, rows):
    """Rows of texts; numbers may be None: the peer is not installed."""
    rows = [[("-" if x is None else x if isinstance(x, str) else f"{x:.3g}" if x < 100 else f"{x:.0f}") for x in row] for row in rows]
    widths = [max(len(str(row[i])) for row in [head] + rows) for i in range(len(head))]
    for row in [head] + rows:
        print("  ".join(x.ljust(w) if i == 0 else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths))).rstrip())


def ratio_text(result):
    if result["ratio"] is None:
        return None
    low, high = result["ratios"][0], result["ratios"][-1]
    return f"{result['ratio']:.2f}  ({low:.2f} to {high:.2f})"


def no_torch():
    print("PyTorch is not installed (python3-torch): no peer")
