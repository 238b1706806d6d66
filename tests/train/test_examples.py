#!/usr/bin/env python3
"""The examples that train a model each learn what their first lines say, and leave the pictures that they name."""
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import zlib

root = pathlib.Path(__file__).resolve().parents[2]
programs = pathlib.Path(os.environ.get("TERN_EXAMPLE_BIN", root / "build/release/examples"))


def run(name, folder=".", *arguments):
    """What the program prints, on one thread: its small steps are slower on more."""
    done = subprocess.run([programs / name, *arguments], cwd=folder, env=dict(os.environ, OMP_NUM_THREADS="1"), capture_output=True, text=True,
                          timeout=280)
    assert done.returncode == 0, f"{name}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def numbers(text, pattern):
    found = [[float(x) for x in match] for match in re.findall(pattern, text, flags=re.M)]
    assert found, f"not {pattern!r}:\n{text}"
    return found


def picture(path):
    """Width, height and the bytes of the pixels."""
    data = path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    length = struct.unpack(">I", data[33:37])[0]
    return width, height, zlib.decompress(data[41:41 + length])


def lstm():
    """It spells the words of its text, and hardly anything else."""
    words = ["the", "cat", "sees", "a", "house"]
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "text").write_text(" ".join(draw.choice(words) for _ in range(8000)))
        out = run("16_lstm", folder, "--data", "text", "--width", "48", "--times", "24", "--batch", "16", "--steps", "250", "--lr", "5e-3",
                  "--sample", "500")
    losses = numbers(out, r"^step +(\d+)   loss (\S+)$")
    assert losses[-1][1] < 0.3 * losses[0][1], out  # 2.2 to 0.39: the choice of words costs 0.37 a character
    sample = out.splitlines()[-1].split()[1:-1]
    assert len(sample) > 60 and sum(word in words for word in sample) > 0.9 * len(sample), out


def translate():
    """Nearly all words that it never saw are translated, also going by the printed lines."""
    out = run("17_translate")
    (right, of), = numbers(out, r"^(\d+) of (\d+) words are right$")
    assert of == 64 and right >= 52, out
    pairs = re.findall(r"^ *([a-z]+) -> ([a-z]*)(  wrong)?$", out, flags=re.M)
    assert len(pairs) == 10, out
    for word, backwards, wrong in pairs:
        assert (backwards == word[::-1]) == (not wrong), out


def vae():
    with tempfile.TemporaryDirectory() as folder:
        out = run("18_vae", folder)
        losses = numbers(out, r"^step +(\d+)  loss (\S+)$")
        assert losses[-1][1] < 0.15 * losses[0][1], out  # 551 to 39
        width, height, pixels = picture(pathlib.Path(folder, "vae.png"))
        assert (width, height) == (10 * 30 + 2, 6 * 30 + 2), (width, height)
        rows = [pixels[y * (width + 1) + 1:(y + 1) * (width + 1)] for y in range(height)]
        dark, light = [], []
        for i in range(60):
            x, y = 2 + i % 10 * 30, 2 + i // 10 * 30
            image = b"".join(row[x:x + 28] for row in rows[y:y + 28])
            dark.append(sum(image) / len(image) < 100)
            light.append(max(image) > 128)
        assert all(dark[:20]) and all(light[:20]), (dark, light)  # discs, and their reconstructions
        assert sum(dark[20:]) >= 30 and sum(light[20:]) >= 25, (dark, light)  # most of the new ones are discs, too


def gan():
    with tempfile.TemporaryDirectory() as folder:
        out = run("19_gan", folder)
        (clouds, of, share), = numbers(out, r"^(\d+) of (\d+) clouds are found, (\d+) % of the points are in one$")
        assert of == 8 and clouds >= 6 and share >= 50, out  # a point anywhere near would be in one in 18 % of all cases
        assert picture(pathlib.Path(folder, "gan.png"))[:2] == (2 * 130 + 2, 132)


def reinforce():
    (first, last), = numbers(run("20_reinforce"), r"^games lasted (\d+) steps at first, (\d+) at the end$")
    assert first < 40 and last > 120, (first, last)


def pipedream():
    """Every way of stepping learns. With a small rate stale weights make no difference, with a large one they do. The picture in
    docs/pipedream.md is drawn of it."""
    with tempfile.TemporaryDirectory() as folder:
        drawing = pathlib.Path(folder, "pipedream.svg")
        subprocess.run([sys.executable, root / "docs/draw_pipedream.py", programs.parent / "tools/tern", programs / "25_pipedream", drawing],
                       env=dict(os.environ, OMP_NUM_THREADS="1"), check=True, timeout=280)
        found = re.findall(r"<title>(\w+), rate (\S+): (\S+) at 4096<", drawing.read_text())
    by_batches = [{(way, rate): float(loss) for way, rate, loss in found[k:k + 4]} for k in (0, 4)]
    for losses, stale in zip(by_batches, ("PipeDream", "2BW")):
        assert all(loss < 0.06 for loss in losses.values()), losses  # 0.18 to begin with
        assert abs(losses[stale, "0.003"] / losses["1F1B", "0.003"] - 1) < 0.2, losses
        assert losses[stale, "0.02"] > 2 * losses["1F1B", "0.02"], losses


def reversible():
    """The loss is the same in all three ways; only the reversible one needs no more for more pairs."""
    need = {}
    for pairs, way, loss, megabytes in re.findall(r"^ *(\d+) pairs, (\w+) +loss (\S+)  a step needs +(\S+) MB", run("28_reversible"), flags=re.M):
        need[int(pairs), way] = float(megabytes), float(loss)
    assert len(need) == 9, need
    assert "--steps" in run("28_reversible", ".", "--help")
    for pairs in (4, 16, 64):
        losses = [need[pairs, way][1] for way in ("kept", "recomputed", "reversible")]
        assert max(losses) - min(losses) < 2e-3 * max(losses), need
    assert need[64, "reversible"][0] < 1.1 * need[4, "reversible"][0], need
    assert need[64, "reversible"][0] < 0.1 * need[64, "recomputed"][0] < 0.05 * need[64, "kept"][0], need


tests = [lstm, translate, vae, gan, reinforce, reversible, pipedream]
print(f"1..{len(tests)}", flush=True)
for number, test in enumerate(tests, 1):
    try:
        test()
        print(f"ok {number} - {test.__name__}", flush=True)
    except Exception as error:  # one line per test, whatever the error
        print(f"not ok {number} - {test.__name__}")
        print("# " + f"{type(error).__name__}: {error}".replace("\n", "\n# "), flush=True)
