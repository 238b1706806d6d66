#!/usr/bin/env python3
"""PowerSGD beside PyTorch's hook, over gloo: from the same weights, with the same data, both end within 2 % of the loss of whole
gradients, at a tenth of the bytes."""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import pypi

pypi.need("torch", "safetensors")
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

PROGRAM = os.path.join(os.environ["TERN_TEST_BIN"], "powersgd_program")
STEPS, RANKS, BATCH, IN, HIDDEN, OUT, RANK, START = 200, 2, 32, 64, 256, 16, 4, 5


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, width, out in (("in", IN, HIDDEN), ("middle", HIDDEN, HIDDEN), ("out", HIDDEN, OUT)):
            self.add_module(name, torch.nn.Linear(width, out))

    def forward(self, x):
        for name in ("in", "middle"):
            x = torch.tanh(getattr(self, name)(x))
        return self.out(x)


def make(folder):
    """The function to learn is another net's, with noise."""
    torch.manual_seed(1)
    teacher, net = Net(), Net()
    x = torch.randn(STEPS, RANKS, BATCH, IN)
    with torch.no_grad():
        y = 2 * teacher(x) + 0.02 * torch.randn(STEPS, RANKS, BATCH, OUT)
    save_file({"x": x, "y": y}, folder + "/data")
    save_file(net.state_dict(), folder + "/weights")


def train(rank, folder, hooked):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{int(hooked)}", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    data, net = load_file(folder + "/data"), Net()
    net.load_state_dict(load_file(folder + "/weights"))
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    if hooked:
        state = power.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=START)
        ddp.register_comm_hook(state, power.powerSGD_hook)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        loss = torch.nn.functional.mse_loss(ddp(data["x"][step, rank]), data["y"][step, rank])
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    mean = torch.tensor(sum(losses[-20:]) / 20)
    dist.all_reduce(mean)
    if rank == 0:
        print("%.9g" % (mean.item() / RANKS), flush=True)
    dist.destroy_process_group()


if len(sys.argv) > 1:  # a rank
    for hooked in (False, True):
        train(int(sys.argv[1]), sys.argv[2], hooked)
    sys.exit(0)

with tempfile.TemporaryDirectory() as folder:
    make(folder)
    lines = subprocess.run([PROGRAM, folder + "/data", folder + "/weights", str(RANK), str(START)], stdout=subprocess.PIPE,
                           check=True, timeout=300, text=True).stdout.split("\n")
    ours = {words[0]: (float(words[1]), int(words[2])) for words in map(str.split, lines) if words}
    env = {**os.environ, pypi.HERE: os.environ[pypi.VARIABLE]}
    ranks = [subprocess.Popen([sys.executable, __file__, str(r), folder], stdout=subprocess.PIPE, text=True, env=env)
             for r in range(RANKS)]
    out = [p.communicate(timeout=300)[0] for p in ranks]
    assert all(p.returncode == 0 for p in ranks), out
    theirs = [float(word) for word in out[0].split()]

(whole, whole_sent), (thin, thin_sent) = ours["whole"], ours["powersgd"]
print("# loss of whole gradients %.5f, PyTorch %.5f; PowerSGD %.5f, PyTorch %.5f; bytes %d and %d, %.1f times fewer"
      % (whole, theirs[0], thin, theirs[1], whole_sent, thin_sent, whole_sent / thin_sent))
checks = [("whole gradients learn as PyTorch's", abs(whole - theirs[0]) < 1e-3 * theirs[0]),
          ("PowerSGD within 2 % of whole gradients", abs(thin - whole) < 0.02 * whole),
          ("PowerSGD within 2 % of PyTorch's hook", abs(thin - theirs[1]) < 0.02 * theirs[1]),
          ("at a tenth of the bytes", 10 * thin_sent <= whole_sent)]
print("1..%d" % len(checks))
for number, (text, good) in enumerate(checks, 1):
    print("%s %d - %s" % ("ok" if good else "not ok", number, text))
