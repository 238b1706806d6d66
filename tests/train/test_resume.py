#!/usr/bin/env python3
"""The character GPT is killed again and again in the middle of saving, and continues each time: its losses, its weights and what
it prints at the end must be those of an undisturbed run, bit for bit."""
import pathlib, random, signal, tempfile

from runs import check, examples, helpers, history, root, run, says

mortal = helpers / "resume_program"
STEPS, KILLS, CALLS = 150, 60, 70


def command(folder, *more, program=examples / "04_char_gpt"):
    return [program, "--data", folder / "text", "--out", folder / "out", "--steps", str(STEPS), "--layers", "1", "--heads", "2",
            "--width", "16", "--context", "16", "--batch", "2", "--sample", "40", "--threads", "1", *more]


def text():
    return "".join(path.read_text() for path in sorted((root / "include/tern").glob("*.h")))


def last_lines(output):
    """The sample; the validation before it is in the history."""
    lines = output.splitlines()
    start, end = lines.index("---- a sample ----"), lines.index("------------------")
    check(any(line.startswith("val loss: ") for line in lines[end:]), output)
    check(any(line.startswith("median ms/step: ") for line in lines[end:]), output)
    return lines[start:end]


def checkpoints(folder):
    return [(path.relative_to(folder), path.read_bytes()) for path in sorted((folder / "out").glob("step-*/*"))]


def picture(folder):
    return (folder / "out/loss.svg").read_bytes()


def undisturbed(folder):
    output = run(folder, command(folder, "--save-every", "1"))
    return history(folder / "out"), checkpoints(folder), last_lines(output)


def rows(folder):
    losses = folder / "out/loss.csv"
    return losses.read_bytes().count(b"\n") if losses.exists() else 0


def killed(folder, seed):
    """A save follows every step. Each kill hits a save, at a call that changes a file: the n-th since the start, and n is
    drawn, so that neither the kills nor their number depend on the time that a step takes."""
    draw = random.Random(seed)
    places = set()
    for _ in range(KILLS):
        call = draw.randint(1, CALLS)
        run(folder, command(folder, "--save-every", "1", "--resume", program=mortal), -signal.SIGKILL, TERN_TEST_KILL_AT=str(call))
        places.add((rows(folder), any((folder / "out").glob("step-*.tmp"))))
    check(rows(folder) <= STEPS, "the kills come before the end")
    return places, last_lines(run(folder, command(folder, "--save-every", "1", "--resume")))


def other_options(folder):
    """Options that do not fit the checkpoint are refused, and nothing is touched."""
    before = (folder / "out/loss.csv").read_bytes(), checkpoints(folder)
    for more, told in ((["--width", "32"], "gpt: width was 16 but is 32"), (["--batch", "3"], "the batch was 2 but is 3"),
                       (["--lr", "0.5"], "the schedule: peak was"), (["--seed", "5"], "the loader: seed was"),
                       (["--layers", "2"], "gpt: layers was 1 but is 2"), (["--heads", "4"], "h.0.attn: heads was 2 but is 4"),
                       (["--precision", "bf16"], "gpt: compute was not set but is bf16")):
        output = run(folder, command(folder, "--resume", *more), 1)
        check("saver_load" in output and told in output, f"{more}: {output}")
        check("(--resume-anyway: continue nevertheless)" in output and "other_run" not in output, output)
    same_text = (folder / "text").read_text()
    (folder / "text").write_text(same_text[::-1])
    says("the data: digest was", run(folder, command(folder, "--resume"), 1))
    (folder / "text").write_text(same_text)
    after = (folder / "out/loss.csv").read_bytes(), checkpoints(folder)
    check(before == after, "a refused run has changed files")


def goes_on_anyway(folder):
    """With --resume-anyway it continues as another run, says what differs, and is that run from then on."""
    other = ["--steps", str(STEPS + 2), "--heads", "4", "--lr", "2e-3"]
    output = run(folder, command(folder, "--resume-anyway", *other))
    for told in ("gpt: heads was 2 but is 4", "h.0.attn: heads was 2 but is 4", "the schedule: peak was"):
        check(output.count(told) == 1, f"{told}: {output}")
    check(rows(folder) == STEPS + 3, "rows of the losses")
    run(folder, command(folder, "--resume", *other))
    output = run(folder, command(folder, "--resume-anyway", *other, "--steps", "1"))
    check("stopped" not in output, f"more steps than were asked for: {output}")


def memory_is_its_own(folder):
    """Memory of the process that starts a run does not count as the run's."""
    large = b"x" * 600_000_000
    run(folder, command(folder, "--overwrite", "--steps", "2"))
    names, *values = [row.split(",") for row in (folder / "out/loss.csv").read_text().splitlines()]
    megabytes = float(values[-1][names.index("process_mb")])
    check(0 < megabytes < len(large) / 1e6, f"{megabytes} MB of a small model")


with tempfile.TemporaryDirectory() as top:
    folders = [pathlib.Path(top) / name for name in ("undisturbed", "killed")]
    for folder in folders:
        folder.mkdir()
        (folder / "text").write_text(text())
    losses, checkpoint, printed = undisturbed(folders[0])
    places, printed_after = killed(folders[1], seed=1)
    check(history(folders[1] / "out") == losses, "the losses differ")
    check(checkpoints(folders[1]) == checkpoint, "the checkpoints differ")
    check(picture(folders[1]) == picture(folders[0]), "the pictures differ")
    check(printed_after == printed, f"the results differ: {printed} {printed_after}")
    check({halfway for _, halfway in places} == {False, True}, f"no kill between two saves, or only there: {places}")
    check(len(losses) == STEPS + 1, "rows of the losses")
    other_options(folders[0])
    goes_on_anyway(folders[0])
    memory_is_its_own(folders[0])
    print(f"{KILLS} kills, {STEPS} steps, the same bits")
