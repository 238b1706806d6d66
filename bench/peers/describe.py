"""Three lines about this Python's PyTorch: its version, its BLAS, and why it is slower than it could be ("" if it is not)."""
import ctypes
import re

import torch

x = torch.ones(64, 64)
torch.mm(x, x)  # loads its BLAS
with open("/proc/self/maps") as f:
    libraries = sorted(set(re.findall(r"/\S+\.so\S*", f.read())))
openblas = next((path for path in libraries if "openblas" in path), None)
reference = next((path for path in libraries if re.search(r"/blas/libblas\.so", path)), None)
blas, crippled = "BLAS unknown", ""
if "mkl" in torch.__config__.show().lower() and torch.backends.mkl.is_available():
    blas = "MKL " + "".join(re.findall(r"Math Kernel Library Version (\S+?)-", torch.__config__.show())[:1])
elif openblas:
    library = ctypes.CDLL(openblas)
    library.openblas_get_corename.restype = library.openblas_get_config.restype = ctypes.c_char_p
    threads = {0: "one thread", 1: "pthreads", 2: "OpenMP"}[library.openblas_get_parallel()]
    version = " ".join(library.openblas_get_config().decode().split()[:2])
    blas = f"{version}, {library.openblas_get_corename().decode()}, {threads}"
    if threads != "OpenMP":
        crippled = f"its OpenBLAS has {threads}, next to PyTorch's own OpenMP (libopenblas0-openmp)"
elif reference:
    blas = f"reference BLAS ({reference})"
    crippled = "the reference BLAS is many times slower than it need be (libopenblas0-openmp)"
print(torch.__version__, blas, crippled, sep="\n")
