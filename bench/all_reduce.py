"""An all-reduce of f32 on one host: shm against the memory's limit and OpenMPI, gloo against plain gloo, in turns."""
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel

TURNS = 3  # of each program
ROUNDS = 5  # in a turn, which reports their median
SIZES = [1, 64, 500]  # MiB
LIMIT_S = 120  # of a turn


def parse(text):
    """{("shared", 64): ms, ...}"""
    return {(name, int(mib)): float(ms) for name, mib, ms in (line.split() for line in text.splitlines())}


def run_ranks(ranks, command, environment=None):
    """Runs command(rank) for each rank, each on its own core if there are enough; returns what rank 0 printed."""
    cores = sorted(os.sched_getaffinity(0))
    bind = (lambda rank: lambda: os.sched_setaffinity(0, {cores[rank]})) if ranks <= len(cores) else (lambda rank: None)
    jobs = [
        subprocess.Popen(
            command(rank), env=environment(rank) if environment else duel.fair_environment(1, bind=False),
            preexec_fn=bind(rank), stdout=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [job.communicate(timeout=LIMIT_S)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    if any(job.returncode for job in jobs):
        raise SystemExit(f"{' '.join(command(0))} failed")
    return parse(outputs[0])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tern(engine, ranks=2, rounds=ROUNDS, sizes=SIZES):
    port, token = free_port(), secrets.token_hex(16)

    def environment(rank):
        env = duel.fair_environment(1, bind=False)
        env.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TERN_TOKEN=token,
        )
        return env

    command = [duel.program("all_reduce"), engine, str(rounds), *map(str, sizes)]
    return run_ranks(ranks, lambda rank: command, environment)


def build(folder, compiler, source, *libraries):
    """Compiles a peer's program; None if its compiler or library is missing."""
    if not shutil.which(compiler):
        return None
    path = os.path.join(folder, os.path.splitext(source)[0])
    command = [compiler, "-O3", "-march=native", os.path.join(duel.HERE, source), "-o", path, *libraries]
    return path if subprocess.run(command, capture_output=True).returncode == 0 else None


def open_mpi(program):
    command = [
        "mpirun.openmpi", "--allow-run-as-root", "--bind-to", "core", "-n", "2", program, str(ROUNDS), *map(str, SIZES),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr}")
    return parse(done.stdout)


def plain_gloo(program):
    with tempfile.TemporaryDirectory() as folder:
        return run_ranks(2, lambda rank: [program, str(rank), "2", folder, str(ROUNDS), *map(str, SIZES)])


def ratio(above, below, key_above, key_below):
    """Median and range of the turns' ratios."""
    ratios = sorted(a[key_above] / b[key_below] for a, b in zip(above, below))
    return f"{statistics.median(ratios):.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def median(turns, key):
    return statistics.median(t[key] for t in turns)


def has_gloo():
    return any(
        os.path.exists(os.path.join(folder, "libtern_gloo.so"))
        for folder in [os.path.dirname(os.path.dirname(duel.program(""))), *os.environ.get("TERN_PLUGIN_PATH", "").split(":")]
    )


def main():
    with tempfile.TemporaryDirectory() as folder:
        mpi = shutil.which("mpirun.openmpi") and build(folder, "mpicc.openmpi", "mpi_all_reduce.c")
        gloo = build(folder, "g++", "gloo_all_reduce.cc", "-lgloo", "-pthread")
        shm_turns, mpi_turns, ours, theirs = [], [], [], []
        for _ in range(TURNS):
            shm_turns.append(tern("shm"))
            if mpi:
                mpi_turns.append(open_mpi(mpi))
            if has_gloo():
                ours.append(tern("gloo"))
            if gloo:
                theirs.append(plain_gloo(gloo))
        rows = []
        for mib in SIZES:
            for name in ("shared", "private"):
                rows.append([
                    f"shm, {mib} MiB, {name}", median(shm_turns, (name, mib)), median(shm_turns, ("limit", mib)),
                    ratio(shm_turns, shm_turns, ("limit", mib), (name, mib)),
                    median(mpi_turns, ("private", mib)) if mpi else None,
                    ratio(mpi_turns, shm_turns, ("private", mib), (name, mib)) if mpi else None,
                ])
        duel.table(["2 ranks, ms", "Tern", "limit", "limit / Tern", "OpenMPI", "OpenMPI / Tern"], rows)
        print()
        if has_gloo() and gloo:
            duel.table(
                ["2 ranks, ms", "Tern", "plain gloo", "gloo / Tern"],
                [[f"gloo, {mib} MiB", median(ours, ("private", mib)), median(theirs, ("private", mib)),
                  ratio(theirs, ours, ("private", mib), ("private", mib))] for mib in SIZES],
            )
        else:
            print("gloo is not installed (libgloo-dev): no comparison with it")
        print()
        crowd = tern("shm", ranks=8, rounds=1, sizes=[1, 64])
        duel.table(
            [f"8 ranks on {len(os.sched_getaffinity(0))} cores, ms", "Tern", "limit"],
            [[f"shm, {mib} MiB, {name}", crowd[name, mib], crowd["limit", mib]] for mib in (1, 64) for name in ("shared", "private")],
        )
        if not mpi:
            print("OpenMPI is not installed (openmpi-bin, libopenmpi-dev): no peer")


main()
