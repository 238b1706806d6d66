"""The character GPT: training iterations, Tern and PyTorch in turns. Options: rounds, iterations per turn.

All begin with the same weights and see the same batches, so their losses agree except for rounding, which grows with the
steps. PyTorch's time excludes making the batch; Tern's includes everything. The text is this repository's own.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel

WARM_UP = 20


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
    peers = duel.find_peers()
    text = own_text()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "text")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        tern = duel.Worker([duel.program("char_gpt"), path, folder, str(WARM_UP + rounds * steps)])
        tern.ask("memory")  # now the folder is written
        others = [duel.Worker(p.command("torch_char_gpt.py", folder, duel.THREADS, len(set(text)))) for p in peers]
        r = duel.duel([tern, *others], rounds, steps, WARM_UP, agree=1e-3)
    duel.compare(f"character GPT, {duel.THREADS} threads", r, peers)


main()
