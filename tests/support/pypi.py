"""For tests that compare Tern with PyPI packages that Debian does not have (transformers, tokenizers). At its beginning

    import pypi
    pypi.need("transformers", "safetensors")

continues in the Python that TERN_PYPI_PYTHON names (an interpreter of a virtual environment that has them), where the program then
starts over. Without that variable, or without a package there, the test is skipped and says what is missing.
"""
import importlib.util
import os
import sys

VARIABLE, HERE = "TERN_PYPI_PYTHON", "TERN_PYPI_HERE"


def skip(why):
    print("1..1")
    print("ok 1 - comparison with packages of PyPI # SKIP " + why, flush=True)
    sys.exit(0)


def need(*packages):
    """Returns in an interpreter that has all of them; prints TAP and ends the program otherwise."""
    python = os.environ.get(VARIABLE)
    if not python:
        skip("%s, the Python that has %s, is not set" % (VARIABLE, " and ".join(packages)))
    if os.environ.pop(HERE, "") != python:
        os.environ[HERE] = python
        sys.stdout.flush()
        try:
            os.execv(python, [python] + sys.argv)
        except OSError as error:
            skip("%s=%s: %s" % (VARIABLE, python, error.strerror))
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        skip("%s has no %s" % (python, ", ".join(missing)))
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
