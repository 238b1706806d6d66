"""Optimisers that PyTorch 1.13 lacks or has wrong, as in their papers."""
import math

import torch


class Reference:
    """The interface of torch.optim.Optimizer, as far as the tests use it."""
    def __init__(self, params, lr, weight_decay, **options):
        params = list(params)
        self.param_groups = [{"params": params, "lr": lr}]
        self.state = {p: {"step": 0} for p in params}
        self.weight_decay = weight_decay
        self.__dict__.update(options)

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                self.state[p]["step"] += 1
                self.update(p, p.grad, self.state[p], self.param_groups[0]["lr"])


def moving(state, key, x, beta):
    state[key] = beta * state.get(key, torch.zeros_like(x)) + (1 - beta) * x
    return state[key]


class Lion(Reference):
    """Chen et al. 2023, arXiv:2302.06675, algorithm 2."""
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, lr, weight_decay, betas=betas)

    def update(self, p, g, state, lr):
        m = state.get("exp_avg", torch.zeros_like(p))
        c = self.betas[0] * m + (1 - self.betas[0]) * g
        p -= lr * (c.sign() + self.weight_decay * p)
        state["exp_avg"] = self.betas[1] * m + (1 - self.betas[1]) * g


def adam_direction(state, g, betas, eps):
    m, v = moving(state, "exp_avg", g, betas[0]), moving(state, "exp_avg_sq", g * g, betas[1])
    t = state["step"]
    return m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)


class NAdam(Reference):
    """Dozat 2016. PyTorch before 2.0 multiplies one mu too many into the product of the next step."""
    def __init__(self, params, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, momentum_decay=4e-3):
        super().__init__(params, lr, weight_decay, betas=betas, eps=eps, momentum_decay=momentum_decay)

    def mu(self, t):
        return self.betas[0] * (1 - 0.5 * 0.96 ** (t * self.momentum_decay))

    def update(self, p, g, state, lr):
        g, t = g + self.weight_decay * p, state["step"]
        state["mu_product"] = product = state.get("mu_product", torch.ones(())) * self.mu(t)
        m, v = moving(state, "exp_avg", g, self.betas[0]), moving(state, "exp_avg_sq", g * g, self.betas[1])
        ahead = (1 - self.mu(t)) / (1 - product) * g + self.mu(t + 1) / (1 - product * self.mu(t + 1)) * m
        p -= lr * ahead / ((v / (1 - self.betas[1] ** t)).sqrt() + self.eps)


class Lamb(Reference):
    """You et al. 2019, arXiv:1904.00962, algorithm 2, with phi the identity."""
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=1e-2):
        super().__init__(params, lr, weight_decay, betas=betas, eps=eps)

    def update(self, p, g, state, lr):
        r = adam_direction(state, g, self.betas, self.eps) + self.weight_decay * p
        p -= lr * p.norm() / r.norm() * r


class Adafactor(Reference):
    """Shazeer and Stern 2018, arXiv:1804.04235, algorithms 4 and 5, with PyTorch's decay and bounds."""
    def __init__(self, params, lr=1e-2, beta2_decay=-0.8, eps2=1e-3, d=1.0, weight_decay=0.0):
        super().__init__(params, lr, weight_decay, beta2_decay=beta2_decay, eps2=eps2, d=d)

    def update(self, p, g, state, lr):
        t, eps1 = state["step"], torch.finfo(p.dtype).eps
        keep = 1 - t ** self.beta2_decay
        alpha = max(self.eps2, p.square().mean().sqrt().item()) * min(lr, 1 / math.sqrt(t))
        p *= 1 - lr * self.weight_decay
        if p.dim() > 1:
            rows = moving(state, "row_var", g.square().mean(-1, keepdim=True), keep)
            columns = moving(state, "col_var", g.square().mean(-2, keepdim=True), keep)
            v = rows @ columns / rows.mean(-2, keepdim=True).clamp(min=eps1)
        else:
            v = moving(state, "variance", g.square(), keep)
        u = g / v.clamp(min=eps1 * eps1).sqrt()
        p -= alpha * u / max(1.0, u.square().mean().sqrt().item() / self.d)


class Muon(Reference):
    """Jordan et al. 2024, kellerjordan.github.io/posts/muon; vectors by AdamW."""
    def __init__(self, params, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, ns_steps=5):
        super().__init__(params, lr, weight_decay, momentum=momentum, nesterov=nesterov, ns_steps=ns_steps)

    def update(self, p, g, state, lr):
        rows = p.shape[0] if p.dim() else 1
        p_before = p * (1 - lr * self.weight_decay)
        if p.dim() < 2:
            p.copy_(p_before - lr * adam_direction(state, g, (0.9, 0.999), 1e-8))
            return
        m = moving(state, "momentum_buffer", g, self.momentum)
        d = ((1 - self.momentum) * g + self.momentum * m if self.nesterov else m).reshape(rows, -1)
        x = self.orthogonal(d if d.shape[0] <= d.shape[1] else d.T)
        x = x if d.shape[0] <= d.shape[1] else x.T
        p.copy_(p_before - lr * math.sqrt(max(1, rows / d.shape[1])) * x.reshape(p.shape))

    def orthogonal(self, x):
        a, b, c = 3.4445, -4.7750, 2.0315
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(self.ns_steps):
            s = x @ x.T
            x = a * x + (b * s + c * s @ s) @ x
        return x
