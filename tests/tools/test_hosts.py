#!/usr/bin/env python3
"""`tern run` on two hosts: network namespaces joined by a cable (veth) that can be cut. Without namespaces, the two
hosts are 127.0.0.1 and 127.0.0.2, no cable can be cut, and the output says so."""
import os
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from hosts import Namespaces
from launch import TESTS, Skip, environment, errors, finish, go, has, holds, main, output, same, start, tern, test, text, until, write

PORT = 29400


class Pseudo:
    """Two addresses of this host."""

    real = False
    addresses = ["127.0.0.1", "127.0.0.2"]

    def on(self, host):
        return []

    def mend(self):
        pass


def make_hosts():
    if os.environ.get("TERN_TEST_HOSTS") == "pseudo":
        return Pseudo()
    try:
        return Namespaces()
    except OSError as error:
        if os.geteuid() != 0 and "TERN_TEST_UNSHARED" not in os.environ and shutil.which("unshare"):
            os.environ["TERN_TEST_UNSHARED"] = "1"
            inside = "mount -t tmpfs none /run && exec " + " ".join([sys.executable, os.path.abspath(__file__)] + sys.argv[1:])
            if subprocess.run(["unshare", "-Urnm", "true"], capture_output=True, check=False).returncode == 0:
                os.execvp("unshare", ["unshare", "-Urnm", "sh", "-c", inside])
        print(f"# NO NETWORK NAMESPACES HERE ({error}): two addresses of this host act as two hosts")
        return Pseudo()


hosts = make_hosts()


def launch(host, nnodes, *program, options=()):
    return start("--nnodes", nnodes, "--rdzv-endpoint", f"{hosts.addresses[0]}:{PORT}", "--heartbeat", 2, "--grace", 1,
                 "--last-call", 0.5, "--timeout", 30, *options, *program, prefix=hosts.on(host),
                 env=environment(TERN_TOKEN="secret"))


SAYS = 'echo "$TERN_RESTART_COUNT: $RANK of $WORLD_SIZE" >> "said.$GROUP_RANK.$LOCAL_RANK"; '
FOREVER = ["sh", "-c", SAYS + "exec sleep 1000"]
UNTIL_GO = ["sh", "-c", SAYS + "while [ ! -e go ]; do sleep 0.05; done"]


def needs_cable():
    if not hosts.real:
        raise Skip("two addresses of one host have no cable")


@test
def two_hosts():
    """one job on two hosts, whichever launcher comes first; every rank reaches the store"""
    program = [sys.executable, "-c", "import os, socket\n"
               "socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])), 10).close()\n"
               "print(*(os.environ[n] for n in ('RANK', 'GROUP_RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR')))"]
    for order in ((0, 1), (1, 0)) if hosts.real else ((0, 1),):
        started = {}
        for host in order:
            started[host] = launch(host, 2, *program, options=["-n", 2])
            time.sleep(0.3)
        for host in (0, 1):
            finish(started[host], 0)
            same(sorted(output(started[host]).splitlines()),
                 [f"[{2 * host + r}] {2 * host + r} {host} {r} 4 {hosts.addresses[0]}" for r in range(2)])


@test
def own_name():
    """the first host's own name resolves to 127.0.1.1 there, as in Debian's hosts file, and the other host still joins it"""
    needs_cable()
    hosts.mend()
    inside = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
    both = []
    for host, (name, address) in enumerate((("boss", "127.0.1.1"), ("other", hosts.addresses[0]))):
        write(f"hosts.{host}", f"127.0.0.1 localhost\n{address} boss\n")
        both.append(start("--nnodes", 2, "--rdzv-endpoint", f"boss:{PORT}", "--heartbeat", 2, "--grace", 1, "--timeout", 30,
                          "sh", "-c", "echo $RANK at $MASTER_ADDR", env=environment(TERN_TOKEN="secret"),
                          prefix=hosts.on(host) + ["unshare", "-mu", "sh", "-c", inside, name, f"hosts.{host}"]))
    for host in (0, 1):
        finish(both[host], 0)
        same(output(both[host]), f"[{host}] {host} at boss\n")


@test
def cable_cut():
    """the cable cut: both hosts end their ranks and report the lost node, within the heartbeat time"""
    needs_cable()
    hosts.mend()
    first, second = launch(0, 2, *FOREVER), launch(1, 2, *FOREVER)
    until(lambda: text("said.0.0") and text("said.1.0"), "both have started")
    begin = time.monotonic()
    hosts.cut()
    finish(first, 1, 20)
    finish(second, 1, 20)
    holds(time.monotonic() - begin < 15, "in bounded time")
    has(errors(first), "node 1 (host ", "is lost: it gave no sign of life", "1 of at least 2 hosts are left")
    has(errors(second), "node 0 is lost")


def ranks_at_work(host, meet=None, **more):
    """One rank of loop_program on this host; its TERN_HOST makes the engine one for several hosts. They meet at host 0's address, or at `meet`."""
    env = environment(TERN_TOKEN="secret", TERN_TIMEOUT=3, OMP_NUM_THREADS=1, TERN_HOST=f"host-{host}", **more)
    return start("--nnodes", 2, "--rdzv-endpoint", f"{meet or hosts.addresses[0]}:{PORT}", "--heartbeat", 2, "--grace", 1,
                 os.path.join(TESTS, "loop_program"), prefix=hosts.on(host), env=env)


def needs_gloo():
    if "  gloo   yes" not in tern("info"):
        raise Skip("this build has no gloo")


@test
def work_across():
    """ranks on two hosts reduce tensors over the cable"""
    needs_gloo()
    hosts.mend()
    both = [ranks_at_work(host) for host in (0, 1)]
    until(lambda: text("steps.0").count("\n") >= 10, "they work")
    go()
    for p in both:
        finish(p, 0)
    has(text("steps.1"), "1 of 2, restart 0, step 9, gloo")


@test
def public_addresses():
    """ranks that reach each other over public addresses send no tensors there, unless TERN_INTERFACE names them"""
    needs_gloo()
    needs_cable()
    hosts.mend()
    both = [ranks_at_work(host, meet=hosts.public[0]) for host in (0, 1)]
    for p in both:
        finish(p, 1, 30)
    has("".join(errors(p) for p in both), "is public, and gloo's connections carry no secret", "TERN_INTERFACE=203.0.113.")
    same(text("steps.0"), "")
    go()
    for p in [ranks_at_work(host, meet=hosts.public[0], TERN_INTERFACE=hosts.public[host]) for host in (0, 1)]:
        finish(p, 0)
    has(text("steps.1"), "1 of 2, restart 0, step", "gloo")


@test
def cable_cut_at_work():
    """the cable cut while the ranks work: everything on both hosts ends in bounded time"""
    needs_gloo()
    needs_cable()
    hosts.mend()
    both = [ranks_at_work(host) for host in (0, 1)]
    until(lambda: text("steps.0").count("\n") >= 10, "they work")
    hosts.cut()
    for p in both:
        finish(p, 1, 20)
    has(errors(both[0]), "node 1 (host ", "is lost")
    has(errors(both[1]), "node 0 is lost")


@test
def cable_cut_and_mended():
    """MIN:MAX: the first host continues alone; when the cable is mended a new launcher joins again"""
    needs_cable()
    hosts.mend()
    first, second = launch(0, "1:2", *UNTIL_GO), launch(1, "1:2", *UNTIL_GO)
    until(lambda: text("said.1.0") and text("said.0.0").endswith("0 of 2\n"), "both have started")
    rounds = text("said.0.0").count("\n")
    hosts.cut()
    finish(second, 1, 20)
    until(lambda: text("said.0.0").splitlines()[rounds:] == [f"{rounds}: 0 of 1"], "the first continues alone", 20)
    hosts.mend()
    second = launch(1, "1:2", *UNTIL_GO)
    until(lambda: text("said.0.0").splitlines()[rounds + 1:] == [f"{rounds + 1}: 0 of 2"], "both continue", 20)
    go()
    finish(first, 0)
    finish(second, 0)


main()
