"""What PyTorch calls the operations of ops/reduce/, where it has another name or other arguments."""
import torch


def reduction(f, empty_is_all=True):
    def twin(x, dim=(), keepdim=False, **more):
        dims = tuple(dim) if isinstance(dim, (list, tuple)) else (dim,)
        dims = dims or tuple(range(x.dim()))
        return f(x, dims, keepdim, **more) if dims else f(x.reshape(1), (0,), False, **more)
    return twin


def sum_to(x, size):
    return x.sum_to_size(*size) if size else x.sum()


def prod(x, dim=(), keepdim=False):
    for d in sorted((d % max(x.dim(), 1) for d in dim or range(x.dim())), reverse=True):
        x = x.prod(d, keepdim=keepdim)
    return x


def along(f, x, dim, reverse):
    return f(x.flip(dim), dim).flip(dim) if reverse else f(x, dim)


def linear_scan(b, a, dim, reverse):
    """y[k] = b[k] + a[k] y[k - 1]"""
    y = []
    for b_k, a_k in list(zip(b.unbind(dim), a.unbind(dim)))[::-1 if reverse else 1]:
        y.append(b_k + a_k * y[-1] if y else b_k)
    return torch.stack(y[::-1] if reverse else y, dim) if y else b + a


TWINS = {
    "sum": reduction(lambda x, d, k: x.sum(d, keepdim=k)),
    "mean": reduction(lambda x, d, k: x.mean(d, keepdim=k)),
    "max": reduction(lambda x, d, k: x.amax(d, keepdim=k)),
    "min": reduction(lambda x, d, k: x.amin(d, keepdim=k)),
    "var": reduction(lambda x, d, k, correction: x.var(d, correction=correction, keepdim=k)),
    "std": reduction(lambda x, d, k, correction: x.std(d, correction=correction, keepdim=k)),
    "norm": reduction(lambda x, d, k, ord=2: torch.linalg.vector_norm(x, ord, d, keepdim=k)),
    "logsumexp": reduction(lambda x, d, k: torch.logsumexp(x, d, keepdim=k)),
    "argmax": lambda x, dim, keepdim: torch.argmax(x, dim, keepdim),
    "argmin": lambda x, dim, keepdim: torch.argmin(x, dim, keepdim),
    "prod": prod,
    "cumsum": lambda x, dim, reverse: along(torch.cumsum, x, dim, reverse),
    "cumprod": lambda x, dim, reverse: along(torch.cumprod, x, dim, reverse),
    "linear_scan": linear_scan,
    "sum_to": sum_to,
}
