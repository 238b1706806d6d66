"""Four lines about this Python's PyTorch: its version, its BLAS, why it is slower than it could be ("" if it is not), and, if its
OpenBLAS does not know this processor and takes kernels of long ago, the OPENBLAS_CORETYPE that has this processor's registers."""
import ctypes
import os
import re

import torch


def core_type():
    with open("/proc/cpuinfo") as f:
        words = set(f.read().split())
    return "SkylakeX" if "avx512f" in words else "" if "avx2" not in words else "Zen" if "AuthenticAMD" in words else "Haswell"


x = torch.ones(64, 64)
torch.mm(x, x)  # loads its BLAS
with open("/proc/self/maps") as f:
    libraries = sorted(set(re.findall(r"/\S+\.so\S*", f.read())))
openblas = next((path for path in libraries if "openblas" in path), None)
reference = next((path for path in libraries if re.search(r"/blas/libblas\.so", path)), None)
blas, crippled, wanted = "BLAS unknown", "", ""
if "mkl" in torch.__config__.show().lower() and torch.backends.mkl.is_available():
    blas = "MKL " + "".join(re.findall(r"Math Kernel Library Version (\S+?)-", torch.__config__.show())[:1])
elif openblas:
    library = ctypes.CDLL(openblas)
    library.openblas_get_corename.restype = library.openblas_get_config.restype = ctypes.c_char_p
    threads = {0: "one thread", 1: "pthreads", 2: "OpenMP"}[library.openblas_get_parallel()]
    version = " ".join(library.openblas_get_config().decode().split()[:2])
    core = library.openblas_get_corename().decode()
    blas = f"{version}, {core}, {threads}"
    if threads != "OpenMP":
        crippled = f"its OpenBLAS has {threads}, next to PyTorch's own OpenMP (libopenblas0-openmp)"
    if core.lower() in ("prescott", "generic", "core2", "unknown") and core_type():
        wanted = core_type()
        crippled = f"its OpenBLAS does not know this processor and computes as a {core} does"
elif reference:
    blas = f"reference BLAS ({reference})"
    crippled = "the reference BLAS is many times slower than it need be (libopenblas0-openmp)"
print(torch.__version__, blas, crippled, "" if os.environ.get("OPENBLAS_CORETYPE") == wanted else wanted, sep="\n")
