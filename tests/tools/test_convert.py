#!/usr/bin/env python3
"""`tern convert`: a sharded checkpoint of three ranks, as one file and as weights; wrong command lines."""
import json
import os
import struct
import subprocess
import sys
import tempfile

from launch import TERN, TESTS, environment

PROGRAM = os.path.join(TESTS, "fault_program")


def need(condition, text):
    if not condition:
        sys.exit(text)


def tern(*arguments):
    done = subprocess.run([TERN, *arguments], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    return done.returncode, done.stdout.decode(errors="replace")


def header(path):
    with open(path, "rb") as f:
        return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


def expect(status, part, *arguments):
    got, text = tern("convert", *arguments)
    need(got == status and part in text, "%s: ended with %d: %s" % (arguments, got, text))


with tempfile.TemporaryDirectory(prefix="tern_convert_") as folder:
    parts, one, weights = (os.path.join(folder, name) for name in ("parts", "one", "weights"))
    status, text = tern("run", "--standalone", "-n", "3", PROGRAM, "--stage", "3", "--steps", "6", "--out", folder)
    need(status == 0, text)
    expect(0, "", parts, "--to", one)
    expect(0, "", os.path.join(parts, "step-000003"), "--weights", "--to", weights)
    told = header(one)
    need(told["__metadata__"]["step"] == "6", "one is not the newest step: %s" % told["__metadata__"])
    need(told["model.in.weight"]["shape"] == [512, 256], "the tensor is not whole: %s" % told["model.in.weight"])
    need("optim.in.weight.exp_avg" in told, "there is no state")
    told = header(weights)
    need(told["in.weight"]["shape"] == [512, 256] and not any(name.startswith("optim.") for name in told), "other weights: %s" % told)
    need(list(told["__metadata__"]) == ["model"], "other metadata: %s" % told["__metadata__"])

    expect(0, "FOLDER --to FILE", "--help")
    expect(64, "no source", "--to", one)
    expect(64, "no target to write", parts)
    expect(64, "one folder", parts, folder, "--to", one)
    expect(1, "nowhere: No such file", os.path.join(folder, "nowhere"), "--to", one)
    expect(1, "has no committed step", folder, "--to", one)
    expect(1, "/nowhere/at/all", parts, "--to", "/nowhere/at/all")
    # inputs are not replaced, whatever their path
    step = os.path.join(parts, "step-000006")
    rank, before = os.path.join(step, "rank-00000.safetensors"), {name: os.stat(os.path.join(step, name)) for name in os.listdir(step)}
    os.symlink(rank, os.path.join(folder, "link"))
    os.link(rank, os.path.join(folder, "other"))
    for source in (parts, step):
        for target in (rank, os.path.join(folder, "link"), os.path.join(folder, "other"), os.path.join(parts, "..", "parts", "step-000006", "index.json")):
            expect(1, "tern convert: the output %s would replace %s" % (target, source), source, "--to", target)
            expect(1, "tern convert: the output %s would replace %s" % (target, source), source, "--weights", "--to", target)
    lock = os.path.join(parts, "lock")  # a job that continues there would lose its lock
    before_lock = os.stat(lock)
    for target in (lock, os.path.join(parts, "step-000006", "..", "lock"), os.path.join(folder, "lock")):
        expect(1, "tern convert: %s has the name of a run's lock" % target, parts, "--to", target)
    expect(1, "has the name of a run's lock", one, lock)
    need(os.stat(lock) == before_lock and not os.path.exists(os.path.join(folder, "lock")), "a lock was replaced")
    os.link(rank, os.path.join(folder, "link.bin"))
    expect(1, "link.bin would replace", parts, os.path.join(folder, "link.bin"))
    for name in ("link", "other", "link.bin"):
        os.remove(os.path.join(folder, name))
    after = {name: os.stat(os.path.join(step, name)) for name in os.listdir(step)}
    expect(0, "", parts, "--to", os.path.join(parts, "whole"))
    expect(0, "", parts, "--to", os.path.join(parts, "whole"))  # in the run's folder, but no part of the step
    os.remove(os.path.join(parts, "whole"))
    need({k: (v.st_ino, v.st_mtime_ns) for k, v in before.items()} == {k: (v.st_ino, v.st_mtime_ns) for k, v in after.items()}, "a step was changed")

    with open(os.path.join(parts, "step-000006", "rank-00001.safetensors"), "r+b") as f:
        f.seek(-1, os.SEEK_END)
        last = f.read(1)
        f.seek(-1, os.SEEK_END)
        f.write(bytes([last[0] ^ 1]))
    before = os.stat(one)
    expect(1, "is damaged: its digest is", parts, "--to", one)
    need(os.stat(one) == before, "a file was replaced by nothing")
    need(sorted(os.listdir(folder)) == ["loss.csv", "one", "parts", "weights"], "left behind: %s" % os.listdir(folder))
    os.remove(os.path.join(parts, "step-000006", "rank-00001.safetensors"))
    expect(1, "tern convert: %s/step-000006/rank-00001.safetensors: No such file" % parts, parts, "--to", one)
