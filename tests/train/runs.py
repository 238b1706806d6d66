"""What the tests of whole training runs share: where the programs are, starting one, and what a run left."""
import array, os, pathlib, subprocess, sys, time

root = pathlib.Path(os.environ.get("TERN_ROOT", pathlib.Path(__file__).parents[2]))
examples = pathlib.Path(os.environ.get("TERN_EXAMPLE_BIN", root / "build/test/examples"))
helpers = pathlib.Path(os.environ.get("TERN_TEST_BIN", root / "build/test/tests"))
tern = examples.parent / "tools" / "tern"


def check(truth, what):
    if not truth:
        sys.exit(f"FAILED: {what}")


def says(part, output):
    check(part in output, f"not {part!r}: {output}")


def ended(folder, command, **settings):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=dict(os.environ, **settings))


def run(folder, command, status=0, **settings):
    """What it prints, stdout before stderr, until it ends with this status."""
    done = ended(folder, command, **settings)
    check(done.returncode == status, f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def until(truth, what, process=None):
    """Waits for it, while the process runs; `what` is a text, or a function that returns one."""
    end = time.monotonic() + 120
    while not truth():
        check(time.monotonic() < end and (not process or process.poll() is None), what() if callable(what) else what)
        time.sleep(0.01)


def history(folder):
    """The columns of a loss.csv without time and memory, which differ from run to run."""
    rows = [row.split(",") for row in (folder / "loss.csv").read_text().splitlines()]
    kept = [i for i, name in enumerate(rows[0]) if not name.endswith(("_per_s", "_mb"))]
    return [[row[i] for i in kept] for row in rows]


def outcome(out):
    """All that a run leaves except those columns, and what run.json says."""
    return history(out), sorted(path.name for path in out.iterdir()), {
        path.relative_to(out): path.read_bytes() for path in [*out.glob("step-*/*"), out / "loss.svg"]}


def small_gpt2(ranks, *more, program=examples / "11_gpt2", restarts=1, before=None):
    """A command in a folder of make_folder: on several ranks in parts, under `tern run` unless ranks is 0. before: what sh does in
    each rank before its program begins."""
    launch = [tern, "run", "-n", str(ranks), "--max-restarts", str(restarts)] if ranks else []
    shell = ["sh", "-c", before + '; exec "$@"', "sh"] if before else []
    parts = ["--shard", "all"] if ranks > 1 else []
    return [*launch, *shell, program, "--data", "tokens.bin", "--val", "tokens.bin", "--val-every", "4", "--val-batches", "1", "--model",
            "tiny", "--context", "8", "--vocab", "100", "--batch", "1", "--threads", "1", "--dropout", "0.1", *parts, *more]


def make_folder(top, name):
    folder = top / name
    folder.mkdir()
    (folder / "tokens.bin").write_bytes(array.array("H", [(7 * i + i * i % 3) % 100 for i in range(1000)]).tobytes())
    return folder
