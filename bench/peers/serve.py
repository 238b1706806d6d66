"""The Python end of duel.py's protocol: see bench.h."""
import os
import resource
import sys
import time


# As bench_step_now in bench.h.
now = time.process_time if os.environ.get("TERN_BENCH_TIME") == "cpu" else time.monotonic


def peak_rss():
    """In MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve(step, prepare=lambda: (), before=None):
    """step(*prepare()) returns the loss; the time of `prepare` does not count. `before`: peak_rss before there were tensors."""
    for line in sys.stdin:
        if line.startswith("memory"):
            print(*(f"{x:.1f}" for x in [peak_rss()] + ([peak_rss() - before] if before else [])), flush=True)
            continue
        ms = []
        for _ in range(int(line.split()[1])):
            given = prepare()
            start = now()
            loss = step(*given)
            ms.append((now() - start) * 1e3)
        print(loss, *(f"{x:.4f}" for x in ms), flush=True)
