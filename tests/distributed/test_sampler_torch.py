"""A rank's share of the examples is the list that PyTorch's DistributedSampler returns, for many sizes and numbers of ranks."""
import os
import subprocess
import sys

try:
    from torch.utils.data import DistributedSampler
except ImportError:
    print("skipped: PyTorch is not installed")
    sys.exit(1 if os.environ.get("CI") else 77)

lines = subprocess.run([os.path.join(os.environ["TERN_TEST_BIN"], "dump_sampler")], stdout=subprocess.PIPE, check=True, text=True).stdout
wrong = count = 0
for line in lines.splitlines():
    head, tail = line.split(":")
    size, ranks, drop, rank = map(int, head.split())
    ours = [int(word.lstrip("-")) for word in tail.split()]
    theirs = list(DistributedSampler(range(size), ranks, rank, shuffle=False, drop_last=bool(drop)))
    # Only padding is marked; without it, no example is on two ranks.
    filled = [word.startswith("-") for word in tail.split()]
    expected = [not drop and rank + i * ranks >= size for i in range(len(theirs))]
    count += 1
    if ours != theirs or filled != expected:
        wrong += 1
        print("size %d, rank %d of %d, drop_last %d: %s, PyTorch %s, padding %s" % (size, rank, ranks, drop, ours, theirs, filled))
print("%d lists compared, %d differ" % (count, wrong))
sys.exit(1 if wrong or count < 1000 else 0)
