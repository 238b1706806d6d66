"""Optimisers, clipping and schedules against PyTorch's over 200 steps with the same gradients; if it lacks one, against
the paper's formulas (reference.py)."""
import warnings

from twin import below, close, dump, run, torch
import reference

warnings.simplefilter("ignore")  # SequentialLR calls its parts in a deprecated way
DATA = dump("dump_optim")
GRADS = below(DATA, "grads/")
STEPS = 200
torch.set_default_dtype(torch.float64)  # for the scalars that some keep as state


def sgd(**options):
    return lambda params: torch.optim.SGD(params, lr=0.05, **options)


def adam(kind, weight_decay):
    return lambda params: kind(params, lr=0.02, betas=(0.9, 0.98), eps=1e-8, weight_decay=weight_decay)


def other(name, **options):
    """PyTorch's optimiser, if it has a correct one."""
    kind = None if name == "NAdam" and torch.__version__ < "2" else getattr(torch.optim, name, None)
    return lambda params: (kind or getattr(reference, name))(params, **options)


def groups(params):
    matrices, vectors = [p for p in params if p.dim() > 1], [p for p in params if p.dim() < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 0.01}], lr=0.02)


ADAM, ADAMW = torch.optim.Adam, torch.optim.AdamW
OPTIMISERS = {
    "sgd": sgd(), "sgd_decay": sgd(weight_decay=0.1), "momentum": sgd(momentum=0.9, weight_decay=0.01),
    "dampening": sgd(momentum=0.8, dampening=0.3), "nesterov": sgd(momentum=0.9, nesterov=True),
    "momentum_f32": sgd(momentum=0.9, weight_decay=0.01), "momentum_bf16": sgd(momentum=0.9),
    "adam": adam(ADAM, 0.0), "adam_decay": adam(ADAM, 0.1), "adamw": adam(ADAMW, 0.1), "adamw_f32": adam(ADAMW, 0.1),
    "adamw_bf16": adam(ADAMW, 0.1), "adamw_f16": adam(ADAMW, 0.1), "clip": adam(ADAMW, 0.1), "clip_at_once": adam(ADAMW, 0.1),
    "clip_f32": adam(ADAMW, 0.1), "clip_sgd": sgd(momentum=0.9), "scheduled": adam(ADAMW, 0.1), "groups": groups,
    "rmsprop": other("RMSprop", weight_decay=0.1), "rmsprop_full": other("RMSprop", alpha=0.9, momentum=0.8, centered=True),
    "adagrad": other("Adagrad", weight_decay=0.1, lr_decay=0.01),
    "adagrad_full": other("Adagrad", lr=0.1, initial_accumulator_value=0.3),
    "adadelta": other("Adadelta", weight_decay=0.1, rho=0.95), "adamax": other("Adamax", weight_decay=0.1, betas=(0.9, 0.98)),
    "nadam": other("NAdam", weight_decay=0.1, betas=(0.9, 0.98)), "radam": other("RAdam", weight_decay=0.1, betas=(0.9, 0.98)),
    "asgd": other("ASGD", weight_decay=0.1, lambd=0.01, t0=50),
    "amsgrad": other("Adam", weight_decay=0.1, betas=(0.9, 0.9), amsgrad=True),
    "amsgrad_w": other("AdamW", betas=(0.9, 0.9), amsgrad=True),
    "lion": other("Lion", lr=1e-3, weight_decay=0.1), "lamb": other("Lamb", weight_decay=0.1),
    "adafactor": other("Adafactor", lr=0.1, weight_decay=0.1), "adafactor_bf16": other("Adafactor", lr=0.1, d=1.5),
    "muon": lambda params: reference.Muon(params, lr=0.01),
    "muon_plain": lambda params: reference.Muon(params, nesterov=False, momentum=0.8, ns_steps=3),
}


def cosine(optimiser, warmup, steps, end):
    """PyTorch's warm-up, then its cosine."""
    rise = torch.optim.lr_scheduler.LinearLR(optimiser, 1 / (warmup + 1), 1.0, warmup) if warmup else None
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps - warmup, end)
    return torch.optim.lr_scheduler.SequentialLR(optimiser, [rise, fall], [warmup]) if rise else fall


def linear(optimiser, warmup, steps, factor):
    rise = torch.optim.lr_scheduler.LinearLR(optimiser, 1 / (warmup + 1), 1.0, warmup)
    fall = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, factor, steps - warmup)
    return torch.optim.lr_scheduler.SequentialLR(optimiser, [rise, fall], [warmup])


def train(name, start):
    """The parameters, the state and the norms after 200 steps in PyTorch. For half precision: those of the f32 master copy."""
    params = {n: t.double() if t.dtype == torch.float64 else t.float() for n, t in start.items()}
    params = {n: torch.nn.Parameter(t) for n, t in params.items()}
    optimiser = OPTIMISERS[name](list(params.values()))
    norms = torch.zeros(STEPS, dtype=torch.float64)
    for step in range(STEPS):
        for n, p in params.items():
            g = GRADS[n][step]
            p.grad = g.to(p.dtype).clone() if g.abs().max() > 0 else None
        if "clip" in name:
            norms[step] = torch.nn.utils.clip_grad_norm_(list(params.values()), 5.0)
        if name == "scheduled":
            for group in optimiser.param_groups:
                group["lr"] = SCHEDULED[min(step, 80)]
        optimiser.step()
    return params, {n: optimiser.state[p] for n, p in params.items()}, norms


def rates(make, peak, steps):
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    schedule, seen = make(optimiser), []
    for _ in range(steps):
        seen.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    return torch.tensor(seen, dtype=torch.float64)


SCHEDULED = rates(lambda o: cosine(o, 10, 80, 0.01), 0.1, 81).tolist()


def check_optimiser(name):
    case = below(DATA, name + "/")
    params, state, norms = train(name, below(case, "start."))
    f64 = next(iter(params.values())).dtype == torch.float64
    tolerance = 1e-11 if f64 else 2e-5
    for n, p in params.items():
        end = case["end." + n]
        if end.dtype in (torch.bfloat16, torch.float16):
            close(case[n + ".master"], p.detach(), "master copy of " + n, tolerance)
            if not torch.equal(end, case[n + ".master"].to(end.dtype)):
                raise AssertionError("%s is not its rounded master copy" % n)
        else:
            close(end, p.detach(), n, tolerance)
        ours = {key[len(n) + 1:] for key in case if key.startswith(n + ".")} - {"master"}
        if not ours <= set(state[n]) | {"step"}:
            raise AssertionError("%s has the states %s, PyTorch's %s" % (n, sorted(ours), sorted(state[n])))
        for key, value in state[n].items():
            if (key == "momentum_buffer" and value is None) or (key == "mu" and name == "asgd"):
                continue
            if key == "step":
                if case[n + ".step"].item() != int(value):
                    raise AssertionError("%s made %d steps, PyTorch %d" % (n, case[n + ".step"].item(), int(value)))
            else:
                close(case[n + "." + key], value, "%s.%s" % (n, key), tolerance)
    close(case["norms"], norms, "norms", 1e-12 if f64 else 1e-6)


def check_schedule(name, want):
    close(DATA["schedule/" + name][:len(want)], want, "rates", 1e-12)
    end = DATA["schedule/" + name][100:]
    if not torch.equal(end, end[:1].expand(20)):
        raise AssertionError("after its end the rate changes")


def check_muon():
    """The reference against PyTorch's own, which computes in bfloat16 but is made to use f64 here."""
    bfloat16, torch.bfloat16 = torch.bfloat16, torch.float64
    try:
        ours, theirs = (torch.nn.Parameter(DATA["muon/start.weight"].clone()) for _ in range(2))
        pair = reference.Muon([ours]), torch.optim.Muon([theirs])
        for step in range(STEPS):
            for p, optimiser in zip((ours, theirs), pair):
                p.grad = GRADS["weight"][step].clone()
                optimiser.step()
        close(ours.detach(), theirs.detach(), "weight", 1e-11)
    finally:
        torch.bfloat16 = bfloat16


def check_plateau(name, **options):
    values, rates = DATA["schedule/" + name]
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    plateau, want = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, **options), []
    for value in values.tolist():
        plateau.step(value)
        want.append(optimiser.param_groups[0]["lr"])
    close(rates, torch.tensor(want), "rates", 1e-12)
    if len(set(want)) < 3:
        raise AssertionError("the rate hardly falls: nothing is compared")


def check_average(name, decay):
    case = below(DATA, name + "/")
    params = {n: torch.nn.Parameter(t.clone()) for n, t in below(case, "start.").items()}
    optimiser, mean = torch.optim.SGD(list(params.values()), lr=0.05), {}
    for step in range(STEPS):
        for n, p in params.items():
            g = GRADS[n][step]
            p.grad = g.clone() if g.abs().max() > 0 else None
        torch.nn.utils.clip_grad_value_(list(params.values()), 0.5)
        optimiser.step()
        for n, p in params.items():
            keep = decay if decay is not None else step / (step + 1)
            mean[n] = keep * mean[n] + (1 - keep) * p.detach() if step else p.detach().clone()
    for n, p in params.items():
        close(case["mean." + n], mean[n], "mean of " + n, 1e-11)
        close(case["end." + n], p.detach(), n, 1e-12)


def other_schedule(kind, **options):
    return lambda o: getattr(torch.optim.lr_scheduler, kind)(o, **options)


SCHEDULES = {  # name: PyTorch's, and how many steps it has
    "step": (other_schedule("StepLR", step_size=30, gamma=0.1), 120),
    "multi_step": (other_schedule("MultiStepLR", milestones=[7, 30, 31, 90], gamma=0.5), 120),
    "exponential": (other_schedule("ExponentialLR", gamma=0.97), 120),
    "restarts": (other_schedule("CosineAnnealingWarmRestarts", T_0=10, T_mult=2, eta_min=0.01), 120),
    "restarts_alike": (other_schedule("CosineAnnealingWarmRestarts", T_0=25), 120),
    "one_cycle": (other_schedule("OneCycleLR", max_lr=0.3, total_steps=110), 110),
}


def check_warm():
    warm = [0.3 * (step + 1) / 11 for step in range(10)]
    want = torch.cat((torch.tensor(warm), rates(SCHEDULES["step"][0], 0.3, 110)))
    close(DATA["schedule/warm_step"], want, "rates", 1e-12)


def constant(optimiser):
    return torch.optim.lr_scheduler.LinearLR(optimiser, 1 / 11, 1.0, 10)


run([(name, lambda name=name: check_optimiser(name)) for name in OPTIMISERS] + [
    ("muon is PyTorch's", check_muon)] * hasattr(torch.optim, "Muon") + [
    ("schedule " + name, lambda s=s, name=name: close(DATA["schedule/" + name][:s[1]], rates(s[0], 0.3, s[1]), "rates", 1e-12))
    for name, s in SCHEDULES.items()] + [
    ("schedule step after a warm-up", check_warm),
    ("plateau", lambda: check_plateau("plateau")),
    ("plateau of larger values", lambda: check_plateau("plateau_other", mode="max", factor=0.5, patience=2, threshold=0.1,
                                                       threshold_mode="abs", cooldown=3, min_lr=0.02, eps=0)),
    ("ema, and clipping by value", lambda: check_average("ema", 0.9)),
    ("swa", lambda: check_average("swa", None)),
    ("schedule constant", lambda: check_schedule("constant", rates(constant, 0.3, 120))),
    ("schedule linear", lambda: check_schedule("linear", rates(lambda o: linear(o, 10, 100, 0.1), 0.3, 120))),
    ("schedule cosine", lambda: check_schedule("cosine", rates(lambda o: cosine(o, 10, 100, 0.03), 0.3, 101))),
    ("schedule cosine without warm-up", lambda: check_schedule("cosine_without_warmup", rates(lambda o: cosine(o, 0, 100, 0.0), 0.3, 101))),
])
