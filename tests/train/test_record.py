#!/usr/bin/env python3
"""A run's record, run.json: what it says of each start, whatever ended it; that `tern train --again` gives the same losses, on one
rank and on two, and that a later option counts more; records that are damaged, of another program, or not there. And the options
of a run that `tern train` shows best: --epochs, --hours, --log-every, --patience, --keep-best, --config."""
import array, json, os, pathlib, random, signal, subprocess, tempfile

from runs import check, run, tern, until


def train(*more, steps=("--steps", "4")):
    return [tern, "train", "--data", "tokens.bin", "--model", "tiny", "--vocab", "300", "--context", "16", "--batch", "2", *steps,
            "--save-every", "2", *more]


def record(folder, out):
    return json.loads((folder / out / "run.json").read_text())


def losses(folder, out):
    """Of each step: what does not depend on time."""
    rows = [row.split(",") for row in (folder / out / "loss.csv").read_text().splitlines()]
    kept = [i for i, name in enumerate(rows[0]) if name in ("step", "loss", "lr", "grad_norm", "val_loss")]
    return [[row[i] for i in kept] for row in rows]


def what_it_says(folder):
    run(folder, train("--out", "a", "--seed", "7", "--lr", "3e-4"))
    one = record(folder, "a")
    check(len(one) == 1, one)
    start = one[0]
    check(start["command"] == [str(word) for word in train("--out", "a", "--seed", "7", "--lr", "3e-4")], start["command"])
    options = start["options"]
    check((options["seed"], options["lr"], options["model"], options["val"], options["resume"], options["weight-decay"]) ==
          (7, 3e-4, "tiny", None, False, 0.1), options)
    check((start["end"], start["first_step"], start["steps"], start["ranks"], start["device"]) == ("done", 0, 4, 1, "cpu"), start)
    check(start["library"].startswith("tern ") and start["launcher"] is None and start["git"] is None, start)
    check(os.path.realpath(start["directory"]) == os.path.realpath(folder), start["directory"])
    check(start["began"] <= start["ended"] and start["began"].endswith("Z"), start)

    run(folder, train("--out", "a", "--seed", "7", "--lr", "3e-4", "--resume-anyway", steps=("--steps", "6")))
    two = record(folder, "a")
    check(len(two) == 2 and two[0] == start, two)
    check((two[1]["first_step"], two[1]["steps"], two[1]["end"]) == (4, 6, "done"), two[1])
    check(not any(word.startswith("--resume") for word in two[1]["command"]), two[1])


def in_a_repository(folder):
    if subprocess.run(["git", "--version"], capture_output=True).returncode != 0:
        return
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    repository = folder / "repository"
    run(folder, [*git, "init", "-q", repository])
    (repository / "tokens.bin").write_bytes((folder / "tokens.bin").read_bytes())
    run(repository, [*git, "add", "tokens.bin"])
    run(repository, [*git, "commit", "-q", "-m", "tokens"])
    head = run(repository, ["git", "rev-parse", "HEAD"]).strip()
    # a program that a repository's configuration names is not run
    run(repository, [*git, "config", "core.fsmonitor", "touch fsmonitor-ran; false"])
    run(repository, train("--out", "../clean"))
    check(record(folder, "clean")[0]["git"] == head, record(folder, "clean")[0]["git"])
    (repository / "tokens.bin").write_bytes((folder / "tokens.bin").read_bytes()[:-2] + b"\1\0")
    run(repository, train("--out", "../changed"))
    check(record(folder, "changed")[0]["git"] == head + "-dirty", record(folder, "changed")[0]["git"])
    check(not (repository / "fsmonitor-ran").exists(), "git's fsmonitor was run")


def again(folder):
    run(folder, train("--out", "one", "--seed", "9", "--val", "tokens.bin", "--val-every", "2", "--val-batches", "1"))
    run(folder, [tern, "train", "--again", "one/run.json", "--out", "b"])
    check(losses(folder, "b") == losses(folder, "one"), "--again gives other losses")
    run(folder, [tern, "train", "--again=b/run.json", "--out=c"])  # the record of a run that was itself done again
    check(losses(folder, "c") == losses(folder, "one"), "a second --again gives other losses")
    check("one has a run: " in run(folder, [tern, "train", "--again", "one/run.json"], 64), "a folder with a run")
    run(folder, [tern, "train", "--out", "first", "--seed", "8", "--again", "one/run.json", "--out", "d"])
    check(record(folder, "d")[0]["options"]["seed"] == 8, "what is given does not count more than the record")

    run(folder, [tern, "run", "-n", "2", *train("--out", "two")])
    check(record(folder, "two")[0]["ranks"] == 2 and "run -n 2" in record(folder, "two")[0]["launcher"], record(folder, "two"))
    run(folder, [tern, "run", "-n", "2", tern, "train", "--again", "two/run.json", "--out", "two_again"])
    check(losses(folder, "two") == losses(folder, "two_again"), "on two ranks --again gives other losses")
    output = run(folder, [tern, "train", "--again", "two/run.json", "--out", "never"], 1)
    check("the run had 2 ranks, here are 1" in output and not (folder / "never").exists(), output)


def again_of_a_continued_run(folder):
    """Starts that asked for the same are one run; others are refused by name, since no command repeats them."""
    def refused(out, what):
        output = run(folder, [tern, "train", "--again", f"{out}/run.json", "--out", "never"], 64)
        check(f"--again {out}/run.json: {what}" in output and not (folder / "never").exists(), output)

    run(folder, train("--out", "whole", steps=("--steps", "6")))
    run(folder, train("--out", "parts", "--until-tokens", "64", steps=("--steps", "6")))
    run(folder, train("--out", "parts", "--resume", "--threads", "1", steps=("--steps", "6")))
    check([start["first_step"] for start in record(folder, "parts")] == [0, 2], record(folder, "parts"))
    run(folder, [tern, "train", "--again", "parts/run.json", "--out", "parts_again"])
    check(losses(folder, "parts_again") == losses(folder, "whole"), "--again of a stopped run gives other losses")

    run(folder, train("--out", "longer"))
    run(folder, train("--out", "longer", "--resume", steps=("--steps", "6")))
    refused("longer", "its start 2 went on after step 4 with --steps 6 instead of 4")
    run(folder, train("--out", "fewer"))
    run(folder, [tern, "run", "-n", "2", *train("--out", "fewer", "--resume")])
    refused("fewer", "its start 2 went on after step 4 on 2 ranks instead of 1")
    first = json.loads((folder / "parts/run.json").read_text())[1:]
    (folder / "parts/run.json").write_text(json.dumps(first))
    refused("parts", "its first start continued after step 2")


def no_record(folder):
    for text, what in (("", "not a run's record"), ("[]", "not a run's record"), ('[{"command": [3]}]', "not a run's record"),
                       ('[{"command": ["x"]}', "not a run's record"), ('{"command": ["tern"]}', "not a run's record"),
                       ('[{"command": ["tern", "eval", "--data", "x"]}]', "another program, tern"),
                       ('[{"command": ["/usr/bin/python3"]}]', "another program, /usr/bin/python3")):
        (folder / "bad.json").write_text(text)
        output = run(folder, [tern, "train", "--again", "bad.json", "--data", "tokens.bin", "--out", "never"], 64)
        check(what in output and "tern train: --again bad.json" in output, output)
    check("No such file" in run(folder, [tern, "train", "--again", "nothing"], 64), "a missing record")
    check(not (folder / "never").exists(), "a refused command made its folder")
    check("unrecognized option" in run(folder, [tern, "eval", "--again", "a/run.json"], 64), "tern eval has no runs")
    # A damaged record does not stop a run: it is written anew, with what is known.
    (folder / "a" / "run.json").write_text("[{\n")
    resume = train("--out", "a", "--seed", "7", "--lr", "3e-4", "--resume", steps=("--steps", "8"))
    output = run(folder, resume, TERN_LOG="warn")
    check("a/run.json is not a run's record" in output, output)
    check([start["first_step"] for start in record(folder, "a")] == [6], record(folder, "a"))


def odd_names(folder):
    """A name that is not UTF-8: the record is JSON all the same, and goes on."""
    odd = os.fsencode(folder) + b"/caf\xe9"
    os.mkdir(odd)
    with open(odd + b"/tokens.bin", "wb") as f:
        f.write((folder / "tokens.bin").read_bytes())
    for more in [], ["--resume-anyway", "--steps", "6"]:
        done = subprocess.run(train("--out", "run", *more), cwd=odd, capture_output=True, timeout=300)
        check(done.returncode == 0, done.stderr)
    with open(odd + b"/run/run.json", encoding="utf-8") as f:
        check([os.path.basename(start["directory"]) for start in json.load(f)] == ["caf?", "caf?"], "a name that is not UTF-8")


def ended(folder):
    """By a signal, by a limit, and by nothing that could be written down."""
    run(folder, train("--out", "limit", "--until-tokens", "64"))
    check("token" in record(folder, "limit")[0]["end"] or "tok" in record(folder, "limit")[0]["end"], record(folder, "limit"))
    for how in signal.SIGTERM, signal.SIGKILL:
        out = "killed" + str(int(how))
        process = subprocess.Popen(train("--out", out, steps=("--steps", "1000000")), cwd=folder, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        # with the second, the record of the first is on disk
        until(lambda: len(list((folder / out).glob("step-??????"))) >= 2, "no checkpoints", process)
        process.send_signal(how)
        process.wait(timeout=120)
        start = record(folder, out)[0]
        check(start["end"] == ("stopped" if how == signal.SIGTERM else None) and start["steps"] >= 2, start)
        check(("ended" in start) == (how == signal.SIGTERM), start)


def after_save(folder):
    """Each checkpoint, with its folder; while the command runs, its step stays; the last one is never passed over; and that it
    fails is said, no more."""
    output = run(folder, train("--out", "copied", "--after-save", 'echo "$1"; cp -r "$1" copies', steps=("--steps", "4")))
    check(len(list(folder.glob("copies/*"))) > 0 and output.count("copied/step-") == 2, output)
    slow = 'sleep 0.5; ls "$1" >>seen && echo "$1" >>seen'
    run(folder, train("--out", "slow", "--after-save", slow, steps=("--steps", "40")))
    seen = [line for line in (folder / "seen").read_text().splitlines() if line.startswith("slow/")]
    check(seen[0] == "slow/step-000002" and seen[-1] == "slow/step-000040" and len(seen) <= 20, seen)
    check(len(seen) == len(set(seen)), seen)
    check(len(list((folder / "slow").glob("step-*"))) == 2, list((folder / "slow").iterdir()))
    # The command is not a rank: it may evaluate.
    output = run(folder, [tern, "run", "-n", "2", *train("--out", "measured", "--after-save",
                                                         f"{tern} convert $1 $1.safetensors && echo converted")])
    check("converted" in output and "ended with" not in output, output)
    output = run(folder, train("--out", "failing", "--after-save", "exit 3"))
    check('"exit 3" ended with status 3' in output and record(folder, "failing")[0]["end"] == "done", output)
    output = run(folder, [tern, "run", "-n", "2", *train("--out", "both", "--after-save", "echo copied $1")])
    check(output.count("copied both/step-") == 2, output)  # rank 0 alone


def options_of_a_run(folder):
    passes = (16 * 100) // 32  # batches of two sequences of 16 tokens
    output = run(folder, train("--out", "epochs", "--log-every", "20", steps=("--epochs", "0.9")))
    steps = len(losses(folder, "epochs")) - 1
    check(0.8 * passes <= steps <= passes and output.count("step 20: loss ") == 1 and "step 40: loss " in output, f"{steps}: {output}")
    output = run(folder, train("--out", "hours", "--hours", "1e-9"))
    check("ended after step 1 of 4, saved: 1e-09 hours have passed" in output and len(losses(folder, "hours")) == 2, output)
    # A learning rate of nearly nothing: validation does not get better.
    run(folder, train("--out", "early", "--val", "tokens.bin", "--val-every", "1", "--val-batches", "1", "--lr", "1e-30",
                      "--weight-decay", "0", "--patience", "3", "--keep-best", "2", steps=("--steps", "50")))
    check(len(losses(folder, "early")) - 1 <= 10, losses(folder, "early"))
    check(len(list((folder / "early").glob("best-*.safetensors"))) == 2, list((folder / "early").iterdir()))
    run(folder, [word for word in train("--out", "config", "--config", "early") if word not in ("--model", "tiny", "--vocab", "300")])
    check(json.loads((folder / "config/config.json").read_text()) == json.loads((folder / "early/config.json").read_text()), "config")
    check("look at the loss on --val" in run(folder, train("--patience", "2"), 64), "patience without --val")
    check("one of --init, --config and --model" in run(folder, train("--config", "early"), 64), "two models")


with tempfile.TemporaryDirectory() as name:
    there = pathlib.Path(name)
    draw = random.Random(3)
    header = array.array("i", [20240520, 1, 1600] + [0] * 253)
    (there / "tokens.bin").write_bytes(header.tobytes() + array.array("H", (draw.randrange(300) for _ in range(1600))).tobytes())
    os.environ["OMP_NUM_THREADS"] = "1"
    for part in what_it_says, in_a_repository, again, again_of_a_continued_run, no_record, odd_names, ended, after_save, options_of_a_run:
        part(there)
