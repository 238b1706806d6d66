"""Two hosts on one machine, which need rights that not everybody has."""
import atexit
import os
import signal
import subprocess
import sys

os.environ["PATH"] += ":/usr/sbin:/sbin"
UNIQUE = os.getpid() % 30000


def ip(*args):
    done = subprocess.run(["ip", *args], capture_output=True, check=False, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(args)}: {done.stderr.strip()}")


class Namespaces:
    """Two hosts (network namespaces) joined by a cable (veth) that can be cut; OSError where that is not allowed."""

    real = True

    def __init__(self):
        self.names = [f"tern{UNIQUE}a", f"tern{UNIQUE}b"]
        self.addresses = [f"10.{77 + UNIQUE // 256 % 100}.{UNIQUE % 256}.{end}" for end in (1, 2)]
        atexit.register(self.remove)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a runner's time-out
        try:
            self._join()
        except OSError:
            self.remove()
            raise

    def _join(self):
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.names[0], "link", "add", "cable0", "type", "veth", "peer", "name", "cable1", "netns", self.names[1])
        # From the network reserved for documentation (RFC 5737), which counts as public here.
        self.public = ["203.0.113.1", "203.0.113.2"]
        for end in (0, 1):
            for address in (self.addresses[end], self.public[end]):
                ip("-n", self.names[end], "addr", "add", f"{address}/24", "dev", f"cable{end}")
        self.mend()

    def on(self, host):
        return ["ip", "netns", "exec", self.names[host]]

    def cut(self):
        ip("-n", self.names[0], "link", "set", "cable0", "down")

    def mend(self):
        for end in (0, 1):
            ip("-n", self.names[end], "link", "set", f"cable{end}", "up")

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
