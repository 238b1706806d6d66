"""The character GPT: iterations of training, Tern and PyTorch in turns. Options: rounds, iterations of a turn.

PyTorch's time leaves out the making of the batch; Tern's has everything in it. The text is this repository's own.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel


def own_text():
    """The repository's sources and documents as one text."""
    parts = []
    for folder, folders, files in sorted(os.walk(duel.ROOT)):
        folders[:] = [f for f in folders if f != "build" and not f.startswith(".")]
        for name in sorted(files):
            if name.endswith((".c", ".h", ".md")):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    parts.append(f.read())
    return "".join(parts)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 80
    torch = duel.have_torch()
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as f:
        f.write(own_text())
        f.flush()
        tern = duel.Worker([duel.program("char_gpt"), f.name])
        peer = duel.Worker(duel.peer("torch_char_gpt.py") + [f.name, str(duel.THREADS)]) if torch else None
        r = duel.duel(tern, peer, rounds, steps, warm_up=20)
    duel.table(
        [f"{duel.THREADS} threads", "Tern", "PyTorch", "ratio (of the rounds)"],
        [
            ["ms an iteration", r["tern"], r["torch"], duel.ratio_text(r)],
            ["iterations/s", 1e3 / r["tern"], 1e3 / r["torch"] if torch else None, None],
            ["MiB at most", r["memory"][0][0], r["memory"][1][0] if torch else None, None],
            ["MiB in tensors at most", r["memory"][0][1], None, None],
            ["last loss", r["loss"][0], r["loss"][1], None],
        ],
    )
    if not torch:
        duel.no_torch()


main()
