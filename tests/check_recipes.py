#!/usr/bin/env python3
"""What docs/from_pytorch.md says to write if Tern has no function of that name computes what PyTorch computes.

check_recipes.py BUILD_FOLDER [SANITIZER]

Each expression is on the page as it is here; it is compiled with the library in BUILD_FOLDER and compared with PyTorch's. Exit
status 77, with the reason, without PyTorch and under a sanitizer.
"""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
RECIPES = [  # the page's, PyTorch's, and what a name in them stands for, if it is not one of TENSORS: C's, Python's
    ('TN_EINSUM("ii->i", x)', "torch.diag(x)"),
    ('TN_EINSUM("ii->", x)', "torch.trace(x)"),
    ('TN_EINSUM("i,j->ij", a, b)', "torch.outer(a, b)", "tn_tensor *a = row, *b = tn_select(y, 0, 0)", "a = row; b = y[0]"),
    ("tn_mul(tn_eye(n, n, dtype), row)", "torch.diag(row)", "int n = 6; tn_dtype dtype = TN_F32", ""),
    ("tn_flip(tn_transpose(x, 0, 1), TN_DIMS(0))", "torch.rot90(x)"),
    ("tn_nonzero(tn_tril(tn_ones(dims, dtype), 0))", "torch.tril_indices(6, 6).T", "tn_dims dims = TN_DIMS(6, 6); tn_dtype dtype = TN_F32", ""),
    ("tn_exp(tn_mul_scalar(x, log(2)))", "torch.exp2(x)"),
    ("tn_mul_scalar(tn_log(x), 1 / log(10))", "torch.log10(x)", "x = tn_abs(x)", "x = x.abs()"),
    ("tn_mul(tn_sign(x), tn_floor(tn_abs(x)))", "torch.trunc(x)"),
    ("tn_floor(tn_div(a, b))", "torch.floor_divide(x, y)"),
    ("tn_remainder_scalar(x, k)", "x % 0.3", "double k = 0.3", ""),
    ("tn_gt_scalar(x, k)", "x > 0.3", "double k = 0.3", ""),
    ("tn_mean_all(tn_eq(tn_argmax(scores, -1, false), labels))", "(x.argmax(-1) == actions).float().mean()",
     "tn_tensor *scores = x, *labels = actions", ""),
    ("tn_where(tn_isnan(x), tn_zeros_like(x), x)", "torch.nan_to_num(x)", "x = tn_sqrt(x)", "x = x.sqrt()"),
    ("tn_add(a, tn_mul_scalar(tn_sub(b, a), w))", "torch.lerp(x, y, 0.3)", "double w = 0.3", ""),
    ("tn_flatten(tn_nonzero(tn_flatten(mask, 0, -1)), 0, -1)", "mask.flatten().nonzero().flatten()"),
    ("tn_sum(tn_one_hot(x, n), TN_DIMS(0), false)", "torch.bincount(actions, minlength=6)", "int n = 6; x = actions", ""),
    ("tn_add(c, tn_matmul(a, b))", "torch.addmm(c, a, b)", "tn_tensor *c = row", "c = row"),
    ("tn_div(x, tn_norm(x, 2, TN_DIMS(-1), true))", "F.normalize(x)"),
    ("tn_softmax(x, 1)", "nn.Softmax2d()(x)", "x = tn_reshape(x, TN_DIMS(1, 6, 2, 3))", "x = x.reshape(1, 6, 2, 3)"),
    ("tn_softmax(tn_neg(x), -1)", "F.softmin(x, -1)"),
    ("tn_sub(tn_relu(x), tn_mul(w, tn_relu(tn_neg(x))))", "F.prelu(x, w)", "tn_tensor *w = tn_full(TN_DIMS(1), 0.25, TN_F32)",
     "w = torch.tensor([0.25])"),
    ("tn_mul(a, tn_sigmoid(b))", "F.glu(torch.cat((a, b), -1))"),
    ("tn_mul_scalar(tn_elu(tn_mul_scalar(x, 1 / a), 1), a)", "F.celu(x, 1.7)", "double a = 1.7", ""),
    ("tn_div(x, tn_add_scalar(tn_abs(x), 1))", "F.softsign(x)"),
    ("tn_sub(x, tn_tanh(x))", "F.tanhshrink(x)"),
    ("tn_sub(x, tn_clamp(x, -k, k))", "F.softshrink(x, 0.5)", "double k = 0.5", ""),
    ("tn_where(tn_gt_scalar(tn_abs(x), k), x, tn_zeros_like(x))", "F.hardshrink(x, 0.5)", "double k = 0.5", ""),
    ("tn_norm(tn_add_scalar(tn_sub(a, b), 1e-6), 2, TN_DIMS(-1), false)", "F.pairwise_distance(a, b)"),
    ("tn_sub(tn_exp(x), tn_mul(y, x))", 'nn.PoissonNLLLoss(reduction="none")(x, y)'),
    ("tn_softplus(tn_neg(tn_mul(y, x)), 1, 20)", 'nn.SoftMarginLoss(reduction="none")(x, y)', "y = sign", "y = sign"),
    ("tn_add(tn_log(var), tn_div(tn_square(tn_sub(x, y)), var))", '2 * nn.GaussianNLLLoss(reduction="none")(x, y, y.exp())',
     "tn_tensor *var = tn_exp(y)", ""),
    ("tn_where(tn_gt_scalar(y, 0), x, tn_relu(tn_rsub_scalar(x, margin)))", 'nn.HingeEmbeddingLoss(reduction="none")(x, y)',
     "double margin = 1; y = sign", "y = sign"),
    ("tn_neg(tn_cross_entropy(z, actions, TN_NONE))", "torch.distributions.Categorical(logits=x).log_prob(actions)", "tn_tensor *z = x", ""),
    ("tn_neg(tn_sum(tn_mul(p, tn_log_softmax(z, -1)), TN_DIMS(-1), false))", "torch.distributions.Categorical(logits=x).entropy()",
     "tn_tensor *z = x, *p = tn_softmax(x, -1)", ""),
    ("tn_neg(tn_bce_with_logits(z, y, TN_NONE))", "torch.distributions.Bernoulli(logits=x).log_prob(mask.float())",
     "tn_tensor *z = x; y = tn_cast(mask, TN_F32)", ""),
    ("tn_add_scaled_(x, tn_mul(a, b), k)", "x.clone().addcmul_(a, b, value=0.5)", "double k = 0.5; x = tn_copy(x)", ""),
]
TENSORS = "x = a = torch.randn(6, 6); y = b = torch.randn(6, 6); row = torch.randn(6); actions = torch.randint(0, 6, (6,)); " \
          "mask = x > 0; other = y > 0; sign = other.float() * 2 - 1"
NAMES = ("x", "y", "row", "actions", "mask", "other", "sign")


def program():
    """Reads the tensors, and writes what each recipe makes of them."""
    loads = "".join(f'    tn_tensor *{name}_ = tn_npy_load("{name}.npy");\n' for name in NAMES)
    again = "".join(f"tn_tensor *{name} __attribute__((unused)) = {name}_; " for name in NAMES)
    again += "tn_tensor *a __attribute__((unused)) = x, *b __attribute__((unused)) = y;"
    tests = "".join(f'    {{ {again} {{ {setting}; if (tn_npy_save({ours}, "{i}.npy")) {{ fprintf(stderr, "%s\\n", tn_error_message()); return 1; }} }} }}\n'
                    for i, (ours, setting) in enumerate((r[0], r[2] if len(r) > 2 else "") for r in RECIPES))
    return f"#include <tern/tern.h>\n#include <math.h>\nint main(void) {{\n{loads}{tests}}}\n"


def run_program(build, folder):
    """What went wrong, or ""."""
    compiled = subprocess.run(["cc", "-g", "-w", "-x", "c", "-", "-I" + os.path.join(ROOT, "include"), "-L" + build, "-ltern", "-lm",
                               "-Wl,-rpath," + build, "-o", folder + "/program"], input=program(), capture_output=True, text=True, check=False)
    if compiled.returncode:
        return compiled.stderr
    done = subprocess.run([folder + "/program"], cwd=folder, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def compare(build):
    import numpy
    import torch

    wrong = 0
    with open(os.path.join(ROOT, "docs/from_pytorch.md"), encoding="utf-8") as f:
        page = f.read()
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(1)
        names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
        exec(TENSORS, names)
        for name in NAMES:
            numpy.save(f"{folder}/{name}.npy", names[name].numpy())
        trouble = run_program(build, folder)
        if trouble:
            print(trouble)
            return 1
        for i, (ours, theirs, *setting) in enumerate(RECIPES):
            own = dict(names)
            exec(setting[1] if setting else "", own)
            expected, made = eval(theirs, own), torch.from_numpy(numpy.load(f"{folder}/{i}.npy"))
            if made.shape != expected.shape or not torch.allclose(made.double(), expected.double(), rtol=1e-5, atol=2e-6):
                print(f"{ours} is not {theirs}")
                wrong += 1
            if f"`{ours}`" not in page:
                print(f"docs/from_pytorch.md no longer says {ours}")
                wrong += 1
    print(f"{len(RECIPES)} recipes, {wrong} wrong")
    return 1 if wrong else 0


def main():
    if len(sys.argv) > 2 and sys.argv[2] != "none":
        print(f"SKIPPED: a program cannot be linked with a library for {sys.argv[2]} alone")
        return 77
    try:
        import torch  # noqa: F401
    except ImportError:
        print(f"SKIPPED: {sys.executable} has no torch")
        return 77
    return compare(os.path.abspath(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
