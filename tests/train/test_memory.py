#!/usr/bin/env python3
"""A rank of 11_gpt2 is killed under `tern run`: the job goes on from memory, which is newer than the checkpoint, and its losses and
checkpoints are those of an undisturbed run. Where memory is damaged, it goes on from the checkpoint, and the other way round; where
there is none, or it is full, the run says so and goes on. Whatever happens to the launcher, nothing stays in memory."""
import glob, pathlib, re, subprocess, tempfile

from runs import check, helpers, make_folder, outcome, run, small_gpt2, until

mortal = helpers / "gpt2_program"
SAVE, MEMORY = 15, 4
SETTINGS = ["--steps", "40", "--save-every", str(SAVE)]
IN_MEMORY = [*SETTINGS, "--memory-every", str(MEMORY)]


def continued(output):
    """The step from which the restarted job went on; -1: from the beginning."""
    found = re.findall(r"continuing after step (\d+) of run", output)
    check(len(found) < 2, output)
    return int(found[0]) if found else -1


def killed(folder, whole, ranks, call, *more, victim=0, before=None):
    """The output of a job of which a rank is killed in the middle."""
    command = small_gpt2(ranks, *IN_MEMORY, *more, program=mortal, before=before)
    output = run(folder, command, TERN_TEST_KILL_AT=str(call), TERN_TEST_KILL_RANK=str(victim))
    check(outcome(folder / "run") == outcome(whole / "run"), f"{folder}: another outcome than without a kill: {output}")
    return output


def from_memory(top, ranks, call, victim):
    whole = make_folder(top, f"whole{ranks}-{call}")
    check(continued(run(whole, small_gpt2(ranks, *SETTINGS))) < 0, "an undisturbed run")
    output = killed(make_folder(top, f"killed{ranks}-{call}"), whole, ranks, call, victim=victim)
    step = continued(output)
    check(step > 0 and step % MEMORY == 0, f"not from memory: {output}")
    return whole, step


def spoil(files):
    """What a rank does before its program begins again."""
    return f'if [ $TERN_RESTART_COUNT = 1 ] && [ $RANK = 0 ]; then for f in {files}; do truncate -s -5 $f; done; fi'


def damaged(top, whole):
    """Either of the two is passed over, and the other loaded."""
    output = killed(make_folder(top, "memory"), whole, 2, 330, before=spoil("$TERN_MEMORY_DIR/*/step-*/rank-00001.safetensors"))
    check(continued(output) % SAVE == 0 and re.search(r"step \d+ is passed over: .*rank-00001.safetensors", output), output)
    output = killed(make_folder(top, "files"), whole, 2, 330, "--memory-every", "14", before=spoil("run/step-*/index.json"))
    check(continued(output) % 14 == 0 and re.search(r"step \d+ is passed over: .*index.json: is damaged", output), output)


def without_memory(top, whole):
    """No launcher, and a folder that cannot be made: a warning, once, and the run goes on."""
    output = run(make_folder(top, "alone"), small_gpt2(0, *IN_MEMORY))
    check(output.count("not saved in memory: no launcher") == 1, output)
    output = killed(make_folder(top, "missing"), whole, 2, 170, before="export TERN_MEMORY_DIR=/nowhere/at/all")
    check(len(re.findall(r"(?m)^\[0\] tern warn: step 4 and later ones are not saved in memory: .*/nowhere/at/all", output)) == 1, output)
    check(continued(output) % SAVE == 0, output)


def nothing_stays(top):
    """A launcher that is killed leaves nothing in memory; its guard removes it."""
    with subprocess.Popen(small_gpt2(2, *SETTINGS, "--memory-every", "1", "--steps", "100000"), cwd=make_folder(top, "launcher"),
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launcher:
        ours = f"/dev/shm/tern-{launcher.pid}-*"
        try:
            until(lambda: glob.glob(ours + "/*/step-*/index.json"), "nothing was saved in memory")
        finally:
            launcher.kill()
    until(lambda: not glob.glob(ours), f"something is left at {ours}")


with tempfile.TemporaryDirectory() as top:
    top = pathlib.Path(top)
    for ranks, call, victim in ((1, 150, 0), (2, 40, 1), (2, 150, 0)):
        whole, step = from_memory(top, ranks, call, victim)
        print(f"{ranks} ranks, rank {victim} killed: on from step {step}, the same bits")
    damaged(top, whole)
    without_memory(top, whole)
    nothing_stays(top)
