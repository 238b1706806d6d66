#!/usr/bin/env python3
"""A host of 11_gpt2 is lost, its launcher and its ranks by kill -9, under launchers on this machine that pose as hosts: the job goes
on from the copies of saves in memory, which are newer than any checkpoint, and its losses and checkpoints are those of an
undisturbed run."""
import array
import csv
import os
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
# pylint: disable=wrong-import-position
from launch import TERN, TESTS, Skip, environment, errors, finish, free_port, holds, main, output, run, same, start, test

PROGRAM = os.path.join(TESTS, "gpt2_program")
STEPS, MEMORY = 40, 4
TRAIN = [PROGRAM, "--data", "tokens.bin", "--val", "tokens.bin", "--val-every", 4, "--val-batches", 1, "--model", "tiny", "--context", 8,
         "--vocab", 100, "--batch", 1, "--tokens", 32, "--steps", STEPS, "--threads", 1, "--save-every", 1000, "--dropout", 0.1,
         "--shard", "all"]


def outcome(out):
    """All losses, by step, and the files of the last checkpoint."""
    with open(f"{out}/loss.csv", encoding="utf-8") as file:
        losses = [(row["step"], row["loss"], row["val_loss"]) for row in csv.DictReader(file)]
    return losses, [(path.name, path.read_bytes()) for path in sorted(pathlib.Path(out).glob("step-*/*"))]


class Job:
    """Launchers that pose as hosts; the second one's first rank dies at this call, and takes its launcher along."""

    def __init__(self, nnodes, victim, call, *options):
        if "  gloo   yes" not in subprocess.run([TERN, "info"], capture_output=True, check=True, text=True).stdout:
            raise Skip("this build has no gloo")
        with open("tokens.bin", "wb") as file:
            file.write(array.array("H", [(7 * i + i * i % 3) % 100 for i in range(1000)]).tobytes())
        self.options = ["--nnodes", nnodes, "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--heartbeat", 2, "--grace", 1, "--last-call",
                        0.5, "--timeout", 30, *options]
        self.mortal = {"TERN_TEST_KILL_AT": call, "TERN_TEST_KILL_RANK": victim, "TERN_TEST_KILL_HOST": 1}

    def host(self, name, ranks, *options, **more):
        env = environment(TERN_TOKEN="secret", TERN_HOST=name, **self.mortal, **more)
        return start(*self.options, "-n", ranks, *options, *TRAIN, "--memory-every", MEMORY, "--memory-copies", env=env)


def on_from_memory(p, ranks, fewer=False):
    """The launcher whose host has rank 0 ends well, and has said where the job went on; what came of it, up to rounding with
    fewer ranks from then on."""
    finish(p, 0)
    said = output(p) + errors(p)
    found = re.findall(r"continuing after step (\d+) of run", said)
    holds(len(found) == 1 and int(found[0]) > 0 and int(found[0]) % MEMORY == 0, f"not from memory: {said}")
    done = run("-n", ranks, *TRAIN, "--out", "whole")
    same(done.returncode, 0, done.stderr)
    losses, files = outcome("run")
    wanted, wanted_files = outcome("whole")
    if not fewer:
        same(losses, wanted)
        holds(files == wanted_files, "the last checkpoint is another")
    same(len(losses), len(wanted))
    for row, other in zip(losses, wanted):  # how much is validated depends on the number of ranks
        holds(abs(float(row[1]) - float(other[1])) < 1e-5, f"{row}, wanted {other}")


@test
def goes_on_with_fewer_hosts():
    """--nnodes 1:2: the host that is left has the copies"""
    job = Job("1:2", 2, 150)
    first = job.host("a", 2, "--node-rank", 0)
    second = job.host("b", 2, "--node-rank", 1)
    finish(second, -9)
    on_from_memory(first, 4, fewer=True)


@test
def another_host_takes_its_place():
    """--nnodes 2: with a new host, which has nothing in memory"""
    job = Job("2", 2, 150, "--max-restarts", 1)
    first = job.host("a", 2, "--node-rank", 0)
    finish(job.host("b", 2, "--node-rank", 1), -9)
    third = job.host("c", 2)
    on_from_memory(first, 4)
    finish(third, 0)


main()
