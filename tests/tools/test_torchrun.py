#!/usr/bin/env python3
"""`tern run` in torchrun's place: the commands of its documentation start here, too, with its options in both spellings. Then
environments that start a program on several hosts."""
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from launch import TERN, Skip, environment, free_port, has, holds, main, run, same, tern, test

@test
def documented_commands():
    """the commands of torchrun's documentation start as many ranks as there"""
    port = free_port()
    say = ["sh", "-c", 'echo "$RANK of $WORLD_SIZE"']
    for args in (["--standalone", "--nnodes=1", "--nproc-per-node=2"],
                 ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nnodes=1", "--nproc-per-node=2"],
                 ["--nnodes=1", "--nproc-per-node=2", "--max-restarts=3", "--rdzv-id=job", "--rdzv-backend=c10d",
                  f"--rdzv-endpoint=localhost:{port}"],
                 ["--nnodes=1:4", "--nproc_per_node=2", "--max_restarts=3", "--rdzv_id=job", "--rdzv_backend", "c10d",
                  "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_conf", "join_timeout=30, last_call_timeout=0.1"],
                 ["--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={port}", "--rdzv-backend=static",
                  "--no-python", "--nproc-per-node", "2", "--tee", "3", "--log-dir", "logs", "--shutdown-timeout", "2"]):
        done = run(*args, *say, env=environment(TERN_TOKEN="token"))
        same(sorted(done.stdout.decode().splitlines()), ["[0] 0 of 2", "[1] 1 of 2"], args)


@test
def ranks_by_name():
    """--nproc-per-node: "cpu" is one for each core, "gpu" one for each GPU or an error, "auto" either of them"""
    bare, cores = environment(TERN_CUDA="not_there"), len(os.sched_getaffinity(0))
    for name in ("cpu", "auto"):
        done = run("-n", name, "sh", "-c", "echo $WORLD_SIZE", env=bare)
        same(sorted(done.stdout.decode().splitlines()), sorted(f"[{r}] {cores}" for r in range(cores)), done.stderr)
    done = run("--nproc-per-node", "gpu", "true", env=bare, code=64)
    has(done.stderr, '"gpu", but there is no GPU')
    emulated = environment(TERN_CUDA="cuda_emulator")
    gpus = sum(line.startswith("  cuda:") for line in tern("info", env=emulated).splitlines())
    if not gpus:
        raise Skip("the emulator of GPUs is not built here")
    for name in ("gpu", "auto"):
        done = run("-n", name, "sh", "-c", "echo $WORLD_SIZE", env=emulated)
        same(sorted(done.stdout.decode().splitlines()), sorted(f"[{r}] {gpus}" for r in range(gpus)), done.stderr)


@test
def several_hosts_of_a_service():
    """if a service starts the program on several hosts, `tern run` without --nnodes is an error, not a job on each of them"""
    service = environment(AWS_BATCH_JOB_NUM_NODES=2)
    done = run("-n", 2, "true", env=service, code=64)
    has(done.stderr, "AWS_BATCH_JOB_NUM_NODES names 2 hosts", "--nnodes and --rdzv-endpoint HOST:PORT", "--standalone")
    for args in (["--standalone"], ["--nnodes", 1]):
        run(*args, "true", env=service)
    for variables in ({"SM_HOSTS": '["algo-1"]'}, {"PET_NNODES": "1"}, {"SLURM_NTASKS": "4"}):
        run("true", env=environment(**variables))
    # A batch script without srun: the job runs, on one host, and says so unless told that this is meant.
    for variables, args, says in (({"SLURM_JOB_NUM_NODES": "2"}, [], True), ({"SLURM_JOB_NUM_NODES": "2"}, ["--standalone"], False),
                                  ({"SLURM_JOB_NUM_NODES": "2"}, ["--nnodes", 1], False), ({"SLURM_JOB_NUM_NODES": "1"}, [], False)):
        done = run(*args, "true", env=environment(**variables))
        same(b"SLURM_JOB_NUM_NODES is 2" in done.stderr, says, (variables, args))


def on_both(options, first, second, program="echo $RANK of $WORLD_SIZE on $GROUP_RANK"):
    """`tern run` with the variables of each of two hosts: what both print."""
    secret = {"TERN_TOKEN": "of-this-job"}
    other = subprocess.Popen([TERN, "run", *options, "sh", "-c", program], env=environment(**second, **secret), stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
    done = run(*options, "sh", "-c", program, env=environment(**first, **secret))
    out, err = other.communicate(timeout=60)
    same((done.returncode, other.returncode), (0, 0), done.stderr + err)
    return sorted((done.stdout + out).decode().splitlines())


ALL_FOUR = ["[0] 0 of 4 on 0", "[1] 1 of 4 on 0", "[2] 2 of 4 on 1", "[3] 3 of 4 on 1"]


@test
def kubeflow():
    """torchrun's variables place the launcher, as Kubeflow sets them; the command line counts more"""
    both = {"PET_NNODES": 2, "PET_NPROC_PER_NODE": 2, "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": free_port()}
    same(on_both([], {**both, "PET_NODE_RANK": 0}, {**both, "PET_NODE_RANK": 1}), ALL_FOUR)
    fewer = on_both(["-n", "1"], {**both, "PET_NODE_RANK": 0}, {**both, "PET_NODE_RANK": 1})
    same(fewer, ["[0] 0 of 2 on 0", "[1] 1 of 2 on 1"])
    for args, out in ((["--standalone"], 2), (["--nnodes", 1], 2), (["--nnodes=1", "-n", 3], 3)):
        done = run(*args, "sh", "-c", "echo $WORLD_SIZE", env=environment(**both, PET_NODE_RANK=1))
        same((done.returncode, done.stdout.decode().split()[1::2]), (0, [str(out)] * out), done.stderr)
    same(run("sh", "-c", "echo $WORLD_SIZE", env=environment(PET_STANDALONE=1, PET_NPROC_PER_NODE=1)).stdout, b"[0] 1\n")
    # What the launcher is told counts more, however it is written; what its program is told is not for it.
    for args in (["--rdzv-endpoint", f"127.0.0.1:{free_port()}"], ["--rdzv_end", f"127.0.0.1:{free_port()}"]):
        same(on_both(args, *({**both, "PET_MASTER_ADDR": "a.invalid", "PET_NODE_RANK": k} for k in (0, 1))), ALL_FOUR)
    address = ["--master-addr", "127.0.0.1", "--master-port", free_port()]
    hosts = {"SM_HOSTS": '["a.invalid","b.invalid"]', "SM_NUM_GPUS": 2}
    same(on_both([str(arg) for arg in address], *({**hosts, "SM_CURRENT_HOST": name} for name in ("a.invalid", "b.invalid"))), ALL_FOUR)
    run("--stand", "true", env=environment(**both, PET_NODE_RANK=1))
    same(run("--standalone", "-n", "1", "echo", "--nnodes", "3", env=environment(**both)).stdout, b"[0] --nnodes 3\n")
    done = run("true", env=environment(PET_NPROC_PER_NODE="many"), code=64)
    has(done.stderr, "--nproc-per-node: \"many\"")
    has(run("true", env=environment(PET_NNODES=2), code=64).stderr, "needs --rdzv-endpoint HOST:PORT")


@test
def sagemaker():
    """SageMaker's variables place the launcher, or its file where they are not set; no option is needed"""
    hosts = '["localhost","localhost.localdomain"]'
    names = json.loads(hosts)
    port = ["--rdzv-endpoint", f"127.0.0.1:{free_port()}"]  # on one host: another test may have the default
    set_ = [{"SM_HOSTS": hosts, "SM_CURRENT_HOST": name, "SM_NUM_GPUS": 2, "SM_NETWORK_INTERFACE_NAME": "lo"} for name in names]
    same(on_both(port, *set_), ALL_FOUR)
    same(on_both(port, *set_, program="echo $TERN_INTERFACE"), [f"[{r}] lo" for r in range(4)])
    same(on_both([*port, "-n", "1"], *set_), ["[0] 0 of 2 on 0", "[1] 1 of 2 on 1"])
    # Without the option the first host is the endpoint: it is named where nobody serves there.
    done = run("--timeout", 1, "true", env=environment(**{**set_[1], "SM_HOSTS": '["a.invalid","localhost.localdomain"]'}, TERN_TOKEN="x"),
               code=1)
    has(done.stderr, "a.invalid")
    file = "/opt/ml/input/config/resourceconfig.json"
    inside = f"mkdir -p {os.path.dirname(file)} && cat >{file} && exec "
    probe = subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs none /opt"], capture_output=True, check=False)
    if probe.returncode != 0:
        raise Skip("only root may mount a folder of its own: SageMaker's file was not tried")
    config = json.dumps({"current_host": names[0], "hosts": names, "network_interface_name": "lo"})
    done = subprocess.run(["unshare", "-m", "sh", "-c", f"mount -t tmpfs none /opt && {inside} {TERN} run --timeout 1 true"], input=config,
                          env=environment(TERN_TOKEN="x"), capture_output=True, check=False, text=True)
    holds(done.returncode == 1 and "1 of 2" in done.stderr, f"{done.returncode}: {done.stderr}")


main()
