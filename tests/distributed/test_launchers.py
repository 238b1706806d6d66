"""Programs started as ranks by launchers other than ours: mpirun of OpenMPI and MPICH, torchrun, and srun, for which the test
starts Slurm. Each is skipped if it is not installed. (test_environment.c replays the environments that they set.)"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
# pylint: disable=wrong-import-position
from launch import Skip, complete, environment, free_port, holds, main, need, same, test
from slurm import Slurm

PROGRAM = os.path.join(os.environ.get("TERN_TEST_BIN", "build/test/tests"), "rank_program")


def ranks(command, count, local=None, guessable=False, **variables):
    """Runs the command, and checks that its output has the lines of `count` ranks. `guessable`: whether it also warns that the job
    has no secret."""
    env = environment(OMP_NUM_THREADS="1", TERN_TIMEOUT="20", **variables)
    done = complete(*command, env=env, stdin=subprocess.DEVNULL)
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    local = local or list(range(count))
    total = count * (count + 1) // 2
    same("this job has no secret" in said, guessable, said)
    for rank in range(count):
        holds(f"rank {rank} of {count}, local {local[rank]}, sum {total}" in said, said)


@test
def test_openmpi():
    """mpirun of OpenMPI"""
    need("mpirun.openmpi")
    ranks(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "3", PROGRAM], 3)


@test
def test_mpich():
    """mpirun of MPICH"""
    need("mpirun.mpich")
    ranks(["mpirun.mpich", "-n", "3", PROGRAM], 3)


@test
def test_mpich_shell():
    """mpirun of MPICH, through a shell"""
    need("mpirun.mpich")
    ranks(["mpirun.mpich", "-n", "2", "sh", "-c", f"{PROGRAM}; exit $?"], 2)


# Debian's PyTorch 1.13 cannot start torchrun with Python 3.11: a map of outputs is None there.
TORCHRUN = """
import torch.distributed.elastic.multiprocessing as package
import torch.distributed.elastic.multiprocessing.api as api
def to_map(value, count):
    return {i: (value.get(i) if isinstance(value, dict) else value) or api.Std.NONE for i in range(count)}
package.to_map = api.to_map = to_map
from torch.distributed.run import main
main()
"""


def torchrun(*options):
    python = "/usr/bin/python3"
    found = subprocess.run([python, "-c", "import torch.distributed.run"], check=False, capture_output=True)
    if found.returncode != 0:
        raise Skip("PyTorch is not installed")
    return [python, "-c", TORCHRUN, "--no_python", "--nproc_per_node", "2", *options, PROGRAM]


@test
def test_torchrun():
    """torchrun, which serves its own store at MASTER_PORT"""
    ranks(torchrun("--master_port", str(free_port())), 2)


@test
def test_torchrun_standalone():
    """torchrun --standalone"""
    ranks(torchrun("--standalone"), 2)


@test
def test_slurm():
    """srun: two nodes, a step of a batch job, and the batch script itself"""
    with Slurm() as slurm:
        conf = slurm.env["SLURM_CONF"]
        ranks(["srun", "-N2", "-n4", "--ntasks-per-node=2", PROGRAM], 4, local=[0, 1, 0, 1], guessable=True,
              SLURM_CONF=conf)
        ranks(["srun", "-N2", "-n2", PROGRAM], 2, local=[0, 0], SLURM_CONF=conf, TERN_TOKEN="of this test")
        with open("job.sh", "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{PROGRAM} && srun -N1 -n2 {PROGRAM}\n")
        ranks(["sbatch", "-W", "-N2", "-n3", "-o", "job.out", "job.sh"], 0, SLURM_CONF=conf)
        with open("job.out", encoding="utf-8") as file:
            said = file.read()
        holds("rank 0 of 1, local 0, sum 1" in said, said)
        holds("rank 1 of 2, local 1, sum 3" in said, said)


main()
