#!/usr/bin/env python3
"""The examples on a device, from beginning to end: the losses of the CPU, the same bits after --resume and with --recompute, two ranks
like one, and what a user reads when something is missing. On the emulator, or on a GPU when TERN_CUDA_TEST=real."""
import array
import csv
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

root = pathlib.Path(os.environ.get("TERN_ROOT", pathlib.Path(__file__).parents[2]))
programs = pathlib.Path(os.environ.get("TERN_EXAMPLE_BIN", root / "build/release/examples"))
tern = programs.parent / "tools" / "tern"
STEPS, VOCAB, CONTEXT = 6, 256, 32
environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
if os.environ.get("TERN_CUDA_TEST") != "real":
    environment["TERN_CUDA"] = "cuda_emulator"
    if not (programs.parent / "libtern_cuda_emulator.so").exists():
        print("the emulator was not built")
        sys.exit(77)


def check(truth, what):
    if not truth:
        sys.exit(f"FAILED: {what}")


def write_shards(folder):
    """Two shards as llm.c writes them: 256 words of header, then 16-bit tokens."""
    for k in range(2):
        tokens = array.array("H", [(7 * i + 3 * (i // 50) + i * i % 3) % VOCAB for i in range(3000 + k)])
        header = array.array("i", [20240520, 1, len(tokens)] + [0] * 253)
        (folder / f"train_{k}.bin").write_bytes(header.tobytes() + tokens.tobytes())


def command(out, *more, data="train_*.bin"):
    return [programs / "11_gpt2", "--data", data, "--model", "tiny", "--context", str(CONTEXT), "--vocab", str(VOCAB),
            "--batch", "2", "--tokens", "256", "--steps", str(STEPS), "--out", out, *more]


def run(folder, arguments, status=0, settings=None):
    done = subprocess.run(arguments, cwd=folder, env=settings or environment, capture_output=True, text=True, timeout=300)
    check(done.returncode == status, f"{arguments}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def losses(folder, out):
    with open(folder / out / "loss.csv") as file:
        found = [float(row["loss"]) for row in csv.DictReader(file)]
    check(len(found) == STEPS and found[-1] < found[0], f"{out}: {found}")
    return found


def close(a, b, tolerance, what):
    check(all(abs(x - y) <= tolerance * abs(y) for x, y in zip(a, b)), f"{what}: {a} but {b}")


def same_files(folder, a, b):
    last = f"step-{STEPS:06}"
    names = sorted(path.name for path in (folder / a / last).iterdir())
    check(names == ["index.json", "rank-00000.safetensors"], f"{a}/{last} has {names}")
    check(losses(folder, a) == losses(folder, b), f"losses of {a} and {b} differ")
    for name in (f"{last}/{name}" for name in names):
        check((folder / a / name).read_bytes() == (folder / b / name).read_bytes(), f"{name} of {a} and {b} differ")


def interrupted(folder, arguments, out):
    """Ctrl-C after the first checkpoint: the step is finished and everything is saved."""
    with open(folder / "log", "w+") as log:
        process = subprocess.Popen(arguments, cwd=folder, env=environment, stdout=log, stderr=log)
        end = time.monotonic() + 120
        while process.poll() is None and not (folder / out / "step-000002").exists() and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        check(process.wait(timeout=120) == 128 + signal.SIGINT, "interrupted")
    with open(folder / out / "loss.csv") as file:
        check(len(file.readlines()) < STEPS + 1, "the interrupt came after the last step")


def numbers(folder):
    run(folder, command("cpu"))
    run(folder, command("f32", "--device", "cuda"))
    close(losses(folder, "f32"), losses(folder, "cpu"), 1e-5, "f32")
    run(folder, command("bf16", "--device", "cuda", "--precision", "bf16"))
    close(losses(folder, "bf16"), losses(folder, "cpu"), 1e-3, "bf16")
    run(folder, command("f16", "--device", "cuda", "--precision", "f16"))
    close(losses(folder, "f16"), losses(folder, "cpu"), 1e-3, "f16")


def going_on(folder):
    """With f16, whose scaler has a state too, and with recomputation, which changes no bit."""
    arguments = command("part", "--device", "cuda", "--precision", "f16", "--save-every", "2", "--recompute")
    interrupted(folder, arguments, "part")
    run(folder, arguments + ["--resume"])
    same_files(folder, "part", "f16")


def ranks(folder):
    """The sums of the gradients are taken in another order, and the losses are means of means."""
    run(folder, [tern, "run", "-n", "2", *command("two", "--device", "cuda")])
    close(losses(folder, "two"), losses(folder, "f32"), 1e-5, "two ranks")
    run(folder, [tern, "run", "-n", "2", *command("parts", "--device", "cuda", "--shard", "all", "--offload")])
    close(losses(folder, "parts"), losses(folder, "two"), 1e-5, "two ranks, parts on the CPU")


def characters(folder):
    (folder / "text").write_text((root / "include/tern/tensor.h").read_text())
    out = run(folder, [programs / "04_char_gpt", "--data", "text", "--out", "chars", "--steps", "3", "--layers", "1", "--heads", "2",
                       "--width", "16", "--context", "8", "--batch", "2", "--sample", "4", "--device", "cuda"])
    check("val loss " in out, out)


def two_devices(folder):
    """A block on each device ends with the loss of one device; copies sum gradients in another order."""
    devices = "cuda:0,cuda:0" if os.environ.get("TERN_CUDA_TEST") == "real" else "cuda:0,cuda:1"
    for more, name, tolerance in ([], "two blocks", 0), (["--copies"], "copies", 1e-4):
        out = run(folder, [programs / "24_two_devices", "--devices", devices, *more])
        match = re.fullmatch(rf"one device: loss (\S+)  {name}: loss (\S+)\n", out)
        check(match and float(match.group(1)) < 0.01, out)
        close([float(match.group(2))], [float(match.group(1))], tolerance, name)


def refused(folder):
    def says(part, arguments, settings=None):
        out = run(folder, arguments, 1, settings)
        check(part in out and out.count("[TN_E") == 1, f"{arguments}: not {part!r}: {out}")

    says('"gpu" is not a device (use cpu, cuda or cuda:N)', command("x", "--device", "gpu"))
    says("there is no device cuda:99", command("x", "--device", "cuda:99"))
    says("there is no device cuda:0: ", command("x", "--device", "cuda"), {**environment, "TERN_CUDA": "not_there"})
    says("100 per step are not a multiple of 64", command("x", "--tokens", "100"))
    says("nothing_*.bin: there is no such file", command("x", data="nothing_*.bin"))
    check(not (folder / "x").exists(), "a refused run made its folder")


with tempfile.TemporaryDirectory() as top:
    folder = pathlib.Path(top)
    write_shards(folder)
    for part in (refused, numbers, going_on, ranks, characters, two_devices):
        start = time.monotonic()
        part(folder)
        print(f"{part.__name__}: {time.monotonic() - start:.1f} s")
