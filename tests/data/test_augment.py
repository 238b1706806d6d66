"""examples/22_augment: a rare digit, seen more often and augmented, is read much better than without, and so are the others."""
import os
import re
import subprocess
import sys

FOLDER = os.path.join(os.environ.get("TERN_DATA", ""), "mnist")
PROGRAM = os.path.join(os.environ.get("TERN_EXAMPLE_BIN", ""), "22_augment")


def shares(*arguments):
    """Percent of the nines and of the others that are read correctly, and the picture's lines."""
    done = subprocess.run([PROGRAM, FOLDER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = re.search(r"^read correctly: ([\d.]+) % of the nines, ([\d.]+) % of the others$", done.stdout, re.M)
    if done.returncode != 0 or not found:
        print("# " + "\n# ".join(done.stdout.splitlines()[-20:]))
        sys.exit(1)
    return float(found[1]), float(found[2]), [line for line in done.stdout.splitlines() if len(line) == 4 * 28]


def quarters(lines):
    """The picture's four drawings of one image."""
    return [tuple(line[28 * i:28 * i + 28] for line in lines) for i in range(4)]


print("1..2")
if not os.environ.get("TERN_DATA") or not os.path.isdir(FOLDER):
    print("ok 1 # SKIP TERN_DATA is not a folder with mnist/\nok 2 # SKIP TERN_DATA is not a folder with mnist/")
    sys.exit(0)
nines, others, picture = shares()
plain_nines, plain_others, plain_picture = shares("plain")
better = nines >= 80 and nines >= plain_nines + 12 and others >= plain_others
drawn = len(set(quarters(picture))) == 4 and len(set(quarters(plain_picture))) == 1
print("%s 1 - %.1f %% of the nines, plain %.1f %%; %.1f %% of the others, plain %.1f %%"
      % ("ok" if better else "not ok", nines, plain_nines, others, plain_others))
print("%s 2 - four readings of an image differ; without transforms they are the same" % ("ok" if drawn else "not ok"))
sys.exit(not (better and drawn))
