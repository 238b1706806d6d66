#!/usr/bin/env python3
"""examples/slurm.sbatch under a Slurm of our own: one launcher on each of two nodes, restarts, and the end of the job."""
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from launch import TERN, TESTS, has, holds, main, same, test, text, until
from slurm import Slurm

BATCH = os.path.join(os.environ.get("TERN_ROOT", os.path.join(TESTS, "..", "..", "..")), "examples", "slurm.sbatch")


def submit(slurm, *program):
    """The number of the job."""
    # The nodes' names are not host names here: both are this machine.
    env = dict(slurm.env, MASTER_ADDR="127.0.0.1", TERN=TERN, RANKS="2", OMP_NUM_THREADS="1", TERN_TIMEOUT="20")
    done = subprocess.run(["sbatch", "--parsable", "--cpus-per-task=1", "--output=job.log", BATCH, *program], env=env,
                          capture_output=True, check=False, timeout=60, text=True)
    same(done.returncode, 0, done.stderr)
    return done.stdout.strip()


def end(slurm, number):
    """State and exit code of a job, when it has ended."""
    def look():
        said = subprocess.run(["scontrol", "show", "job", number], env=slurm.env, capture_output=True, check=True, timeout=30, text=True)
        return re.search(r"JobState=(COMPLETED|FAILED|CANCELLED).*ExitCode=(\d+):", said.stdout, re.DOTALL)
    found = until(look, "the job has ended")
    return found.group(1), int(found.group(2))


@test
def two_nodes():
    """a batch job of two nodes: four ranks, one failure, one restart; then a job that is cancelled"""
    with Slurm() as slurm:
        loop = os.path.join(TESTS, "rank_program")
        fails_once = f'echo "$TERN_RESTART_COUNT" >> ran.$RANK; [ "$RANK $TERN_RESTART_COUNT" != "3 0" ] || exit 5; exec {loop}'
        same(end(slurm, submit(slurm, "sh", "-c", fails_once)), ("COMPLETED", 0), text("job.log"))
        for rank in range(4):
            has(text("job.log"), f"[{rank}] rank {rank} of 4, local {rank % 2}, sum 10\n")
        has(text("job.log"), "rank 3 (host ", "ended with exit code 5", "restart 1 of 3")
        same(text("ran.0"), "0\n1\n")
        holds(re.fullmatch(r"\d+", os.listdir("logs")[0]), os.listdir("logs"))
        same(end(slurm, submit(slurm, "sh", "-c", "exit 7")), ("FAILED", 7), text("job.log"))

        number = submit(slurm, "sh", "-c", "echo $$ > pid.$RANK; exec sleep 1000")
        until(lambda: all(text(f"pid.{r}") for r in range(4)), "the ranks run")
        subprocess.run(["scancel", number], env=slurm.env, check=True, timeout=30)
        until(lambda: not any(os.path.exists(f"/proc/{text(f'pid.{r}').strip()}") for r in range(4)), "no rank is left", 30)
        same(end(slurm, number)[0], "CANCELLED")


main()
