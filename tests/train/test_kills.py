#!/usr/bin/env python3
"""11_gpt2 is killed again and again, anywhere: while it computes, in the middle of a row, of a save, of a plot; alone, and
either of two ranks. It continues each time, and its losses and checkpoints must be those of an undisturbed run."""
import pathlib, random, signal, tempfile

from runs import check, ended, helpers, make_folder, outcome, run, says, small_gpt2

mortal = helpers / "gpt2_program"


def command(ranks, *more, **launch):
    return small_gpt2(ranks, "--steps", "60", "--save-every", "3", *more, **{"restarts": 0, **launch})


def killed(folder, ranks, kills):
    draw, deaths = random.Random(ranks), 0
    for _ in range(kills):
        victim, call = draw.randrange(max(ranks, 1)), int(2 ** draw.uniform(0, 6.5))
        done = ended(folder, command(ranks, "--resume", program=mortal), TERN_TEST_KILL_AT=str(call), TERN_TEST_KILL_RANK=str(victim))
        check(done.returncode in (0, -signal.SIGKILL, 128 + signal.SIGKILL), f"status {done.returncode}: {done.stderr}")
        deaths += done.returncode != 0
    check(deaths > kills // 2, f"only {deaths} of {kills} kills")
    run(folder, command(ranks, "--resume"))
    return deaths


def restarted(folder, whole):
    """A restarted program continues by itself, even with --overwrite."""
    says("continuing after step", run(folder, command(2, "--overwrite", program=mortal, restarts=1), TERN_TEST_KILL_AT="150",
                                      TERN_TEST_KILL_RANK="0"))
    check(outcome(folder / "run") == outcome(whole / "run"), "another outcome after a restart")


with tempfile.TemporaryDirectory() as top:
    top = pathlib.Path(top)
    for ranks, kills in ((0, 40), (2, 16)):
        whole, again = make_folder(top, f"whole{ranks}"), make_folder(top, f"killed{ranks}")
        run(whole, command(ranks))
        deaths = killed(again, ranks, kills)
        check(outcome(again / "run") == outcome(whole / "run"), f"{ranks} ranks: another outcome after {deaths} kills")
        print(f"{ranks} ranks: {deaths} kills, the same bits")
    restarted(again, whole)
