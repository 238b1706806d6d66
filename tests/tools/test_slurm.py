#!/usr/bin/env python3
"""examples/slurm.sbatch under a Slurm of our own: one launcher on each of two nodes, restarts, GPUs, the time limit, and the end of the
job."""
import array
import glob
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from launch import TERN, TESTS, complete, has, holds, main, same, test, text, until
from slurm import Slurm

BATCH = os.path.join(os.environ.get("TERN_ROOT", os.path.join(TESTS, "..", "..", "..")), "examples", "slurm.sbatch")


def submit(slurm, *program, options=(), **more):
    """The number of the job."""
    # The nodes' names are not host names here: both are this machine.
    env = dict(slurm.env, MASTER_ADDR="127.0.0.1", TERN=TERN, OMP_NUM_THREADS="1", TERN_TIMEOUT="20", **more)
    return complete("sbatch", "--parsable", "--cpus-per-task=1", "--output=job.log", *options, BATCH, *program, env=env, text=True).stdout.strip()


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
        same(end(slurm, submit(slurm, "sh", "-c", fails_once, RANKS="2")), ("COMPLETED", 0), text("job.log"))
        for rank in range(4):
            has(text("job.log"), f"[{rank}] rank {rank} of 4, local {rank % 2}, sum 10\n")
        has(text("job.log"), "rank 3 (host ", "ended with exit code 5", "restart 1 of 3")
        same(text("ran.0"), "0\n1\n")
        holds(re.fullmatch(r"\d+[.]0", os.listdir("logs")[0]), os.listdir("logs"))
        same(end(slurm, submit(slurm, "sh", "-c", "exit 7", RANKS="2")), ("FAILED", 7), text("job.log"))

        number = submit(slurm, "sh", "-c", "echo $$ > pid.$RANK; exec sleep 1000", RANKS="2")
        until(lambda: all(text(f"pid.{r}") for r in range(4)), "the ranks run")
        subprocess.run(["scancel", number], env=slurm.env, check=True, timeout=30)
        until(lambda: not any(os.path.exists(f"/proc/{text(f'pid.{r}').strip()}") for r in range(4)), "no rank is left", 30)
        same(end(slurm, number)[0], "CANCELLED")


@test
def gpus():
    """--gres: a launcher sees the GPUs that Slurm gives to its node, and starts a rank for each"""
    with Slurm() as slurm:
        say = 'echo "$LOCAL_RANK of $LOCAL_WORLD_SIZE, GPUs $CUDA_VISIBLE_DEVICES"'
        same(end(slurm, submit(slurm, "sh", "-c", say, options=["--gres=gpu:2"])), ("COMPLETED", 0), text("job.log"))
        for rank in range(4):
            has(text("job.log"), f"[{rank}] {rank % 2} of 2, GPUs 0,1\n")
        same(end(slurm, submit(slurm, "sh", "-c", say, options=["--gres=gpu:1"])), ("COMPLETED", 0), text("job.log"))
        for rank in range(2):
            has(text("job.log"), f"[{rank}] 0 of 1, GPUs 0\n")


def control(slurm, *command):
    return subprocess.run(command, env=slurm.env, check=True, timeout=30, capture_output=True, text=True).stdout


@test
def before_the_limit():
    """what --signal sends: SIGUSR1 makes flight records; after SIGTERM all save and end, and the job goes back into the queue and on"""
    with Slurm() as slurm:
        with open("tokens.bin", "wb") as file:
            array.array("H", [7 * i % 300 for i in range(4000)]).tofile(file)
        number = submit(slurm, TERN, "train", "--data", "tokens.bin", "--model", "tiny", "--vocab", "300", "--context", "8", "--batch", "4",
                        "--steps", "1000000", "--out", "run", "--resume", RANKS="1")
        until(lambda: text("run/loss.csv").count("\n") > 3, "it trains")
        control(slurm, "scancel", "--signal=USR1", number)
        until(lambda: len(glob.glob("logs/*/attempt_0/*/tern-flight-*.txt")) == 2, "both ranks have written flight records")
        rows = text("run/loss.csv").count("\n")
        until(lambda: text("run/loss.csv").count("\n") > rows, "it trains on")
        control(slurm, "scancel", "--signal=TERM", number)
        until(lambda: re.search(r"JobState=PENDING .* Restarts=1 ", control(slurm, "scontrol", "show", "job", number), re.DOTALL),
              "the job is in the queue again")
        saved = until(lambda: re.search(r"stopped after step (\d+)", text("job.log")), "it says where it stopped").group(1)
        control(slurm, "scontrol", "update", f"JobId={number}", "StartTime=now")  # Slurm waits for two minutes
        until(lambda: f"continuing after step {saved} of run" in text("job.log"), "it goes on from there")
        until(lambda: os.path.exists(f"logs/{number}.1/attempt_0/1/stderr.log"), "its logs are beside the earlier ones")
        control(slurm, "scancel", number)
        same(end(slurm, number)[0], "CANCELLED")


main()
