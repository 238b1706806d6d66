#!/usr/bin/env python3
"""`tern run` on several nodes: rounds, membership, and how each launcher ends when a node is lost. The nodes are launchers on
this host; test_hosts.py puts them on separate hosts."""
import os
import re
import signal
import socket
import subprocess
import sys
import time

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from launch import (LIMIT, TERN, TESTS, blocks, environment, errors, finish, free_port, free_ports, go, has, holds, main, output,
                    run, same, shell, start, test, text, until, write)

HOST = "127.0.0.1"


class Job:
    """Launchers of one job. Short times, so that lost nodes are noticed soon."""

    def __init__(self, nnodes, *options):
        self.port = free_port()
        self.options = ["--nnodes", nnodes, "--rdzv-endpoint", f"{HOST}:{self.port}", "--heartbeat", 2, "--grace", 1,
                        "--last-call", 0.5, "--timeout", 30, *options]

    def start(self, *program, options=(), env=None):
        return start(*self.options, *options, *program, env=env or environment(TERN_TOKEN="secret"))

    def leader(self, *program, **more):
        """The first launcher, when it has begun to serve."""
        p = self.start(*program, **more)
        until(self.served, "the store is served")
        return p

    def both(self, program):
        """Two launchers whose ranks run."""
        two = self.leader(*program), self.start(*program)
        until(lambda: said(0) and said(1), "both have started")
        return two

    def served(self):
        try:
            socket.create_connection((HOST, self.port), 1).close()
            return True
        except OSError:
            return False


# Says its rank, then runs until it is told to end.
SAYS = 'echo "$TERN_RESTART_COUNT: $RANK of $WORLD_SIZE" >> "said.$GROUP_RANK.$LOCAL_RANK"; '
FOREVER = shell(SAYS + "exec sleep 1000")
UNTIL_GO = shell(SAYS + "while [ ! -e go ]; do sleep 0.05; done")


def said(node, rank=0):
    return text(f"said.{node}.{rank}").split("\n")[:-1]


@test
def places():
    """ranks of all nodes are numbered through, node by node, also when nodes have different numbers of ranks"""
    job = Job(2)
    program = shell('echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR '
                    '$MASTER_PORT $TERN_TOKEN $TERN_RUN_ID"')
    first = job.leader(*program, options=["-n", 1])
    second = job.start(*program, options=["-n", 2])
    finish(first, 0)
    finish(second, 0)
    tail = f"2 {HOST} {job.port} secret job"
    same(output(first).splitlines(), [f"[0] 0 0 3 1 0 {tail}"])
    same(sorted(output(second).splitlines()), [f"[1] 1 0 3 2 1 {tail}", f"[2] 2 1 3 2 1 {tail}"])
    has(errors(second), "node 1 of 2, rank 1-2 of 3")


@test
def open_ports():
    """--ports: launchers and ranks listen at these ports, the first of them without one in the endpoint; if none is free the error says so"""
    port = free_ports(20)
    ports = f"{port}-{port + 19}"
    program = shell(f'echo "$MASTER_PORT $TERN_PORTS"; exec {TESTS}/rank_program')
    both = [start("--nnodes", 2, "--rdzv-endpoint", HOST, "--ports", ports, *program, env=environment(TERN_TOKEN="secret", TERN_HOST=host))
            for host in "ab"]
    for p in both:
        finish(p, 0)
        has(output(p), f"{port} {ports}\n", "of 2, local 0, sum 3\n")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the job's connections may linger there
        taken.bind((HOST, port))
        taken.listen()
        for env in (environment(TERN_PORTS=f"{port}-{port}"), environment(TERN_PORTS="x")):
            done = run("true", env=env, code=64 if env["TERN_PORTS"] == "x" else 1)
            has(done.stderr, 'TERN_PORTS is "x"' if done.returncode == 64 else f"none of TERN_PORTS, {port}-{port}, is free")


@test
def wanted_places():
    """--node-rank decides the order, and node 0 serves the store whoever comes first"""
    job = Job(3)
    program = shell("echo $GROUP_RANK > node.$1") + ["-"]
    others = [job.start(*program, r, options=["--node-rank", r]) for r in (2, 1)]
    time.sleep(0.3)
    same([p.poll() for p in others], [None, None])
    first = job.start(*program, 0, options=["--node-rank", 0])
    for p in (first, *others):
        finish(p, 0)
    same([text(f"node.{r}") for r in range(3)], ["0\n", "1\n", "2\n"])


@test
def first_failure():
    """of failures on several nodes the earliest is reported first"""
    job = Job(2)
    program = shell('[ $RANK = 1 ] || { while [ ! -s gone ]; do sleep 0.02; done; while [ -e /proc/$(cat gone) ]; do sleep 0.02; done; '
                    'echo the peer is gone >&2; exit 3; }; echo my own fault >&2; echo $$ > gone; exit 5')
    first = job.leader(*program)
    second = job.start(*program)
    for p in (first, second):
        finish(p, 5)
        report = [line for line in errors(p).splitlines() if "(host" in line]
        has(report[0], "rank 1 (host", "exit code 5")
        has(errors(p), "    | my own fault")


@test
def leader_killed():
    """node 0 killed: the others end their ranks and report the lost node; both launchers started again run the job"""
    job = Job("1:2")
    first, second = job.both(UNTIL_GO)
    first.kill()
    first.wait()
    finish(second, 1, 30)
    has(errors(second), "node 0 is lost")
    holds(".c:" not in errors(second), "lines of the launcher's sources mean nothing to a user: " + errors(second))
    go()
    first, second = job.leader(*UNTIL_GO), job.start(*UNTIL_GO)
    finish(first, 0)
    finish(second, 0)


@test
def leader_silent():
    """node 0 stopped: the others end in bounded time, and so does it when it continues"""
    job = Job("1:2")
    first, second = job.both(FOREVER)
    first.send_signal(signal.SIGSTOP)
    finish(second, 1, 30)
    has(errors(second), "node 0 is lost")
    first.send_signal(signal.SIGCONT)
    until(lambda: said(0)[-1].endswith("of 1"), "it continues alone", 30)
    first.terminate()
    finish(first, 143, 30)


@test
def silent_node():
    """a launcher that was stopped too long has lost its place, and says so when it continues"""
    job = Job("1:2")
    first, second = job.both(UNTIL_GO)
    second.send_signal(signal.SIGSTOP)
    until(lambda: said(0)[-1].endswith("of 1"), "the first continues alone", 30)
    second.send_signal(signal.SIGCONT)
    finish(second, 1, 30)
    has(errors(second), "no sign of life", "has lost its place in the job")
    go()
    finish(first, 0)


@test
def node_leaves():
    """a launcher that is told to end says so to the others, at once"""
    job = Job(2, "--heartbeat", 1000)
    first, second = job.both(FOREVER)
    second.terminate()
    finish(second, 143, 30)
    finish(first, 1, 30)
    has(errors(first), "node 1 (host ", "SIGTERM ended the launcher", "1 of at least 2 hosts are left")


@test
def leader_leaves():
    """node 0 told to end ends the job everywhere, with the reason"""
    job = Job(2, "--heartbeat", 1000)
    first, second = job.both(FOREVER)
    first.send_signal(signal.SIGINT)
    finish(first, 130, 30)
    finish(second, 130, 30)
    has(errors(second), "SIGINT ended the launcher on host")


@test
def full_job():
    """one launcher too many is refused at once, with the job's name, and disturbs nothing"""
    for nnodes, launchers in ((1, 1), (2, 2), ("1:2", 2)):
        job = Job(nnodes, "--rdzv-id", "night", "--heartbeat", 1000, "--last-call", 30)
        running = [job.leader(*UNTIL_GO)] + [job.start(*UNTIL_GO) for _ in range(launchers - 1)]
        until(lambda: all(said(r) for r in range(launchers)), "the job runs")
        for options in ((), ("--node-rank", 0)):
            more = job.start(*shell("echo x > disturbed"), options=options)
            finish(more, 1, 30)
            has(errors(more), "job night", str(job.port), "another port")
        go()
        for p in running:
            finish(p, 0)
        same([said(r) for r in range(launchers)], [[f"0: {r} of {launchers}"] for r in range(launchers)])
        for name in ["go"] + [f"said.{r}.0" for r in range(launchers)]:
            os.remove(name)
    holds(not os.path.exists("disturbed"), "a launcher that was refused has started its program")


@test
def replacement():
    """a launcher that comes before the loss of another was noticed waits, and takes its place; so does one by --node-rank"""
    for nnodes, options in ((2, ()), ("1:2", ()), ("1:2", ("--node-rank", 1))):
        job = Job(nnodes, "--last-call", 30)
        first = job.leader(*UNTIL_GO)
        second = job.start(*UNTIL_GO, options=options)
        until(lambda: said(0) and said(1), "both have started")
        second.kill()
        second.wait()
        third = job.start(*UNTIL_GO, options=options)
        until(lambda: said(0) == ["0: 0 of 2", "1: 0 of 2"] and said(1) == ["0: 1 of 2", "1: 1 of 2"], "the third has its place", 30)
        has(errors(third), "waits for a free place")
        go()
        finish(first, 0)
        finish(third, 0)
        for name in ("go", "said.0.0", "said.1.0"):
            os.remove(name)


@test
def near_the_end():
    """a node that comes when others have ended well restarts nothing, and says that nothing ran there"""
    job = Job("2:3", "--last-call", 1)
    program = shell(SAYS + '[ $RANK = 0 ] || while [ ! -e go ]; do sleep 0.05; done')
    first, second = job.both(program)
    time.sleep(0.5)  # until the first is done
    third = job.start(*program)
    until(lambda: "waits for a free place" in errors(third), "the third waits")
    time.sleep(0.5)
    go()
    for p in (first, second):
        finish(p, 0)
    finish(third, os.EX_TEMPFAIL)
    has(errors(third), "nothing ran here")
    same((said(0), said(1), said(2)), (["0: 0 of 2"], ["0: 1 of 2"], []))


@test
def done_nodes():
    """a node whose ranks have ended well starts again when others fail, and waits for them when they do not"""
    job = Job(2, "--max-restarts", 1)
    program = shell('echo $TERN_RESTART_COUNT >> "ran.$RANK"; [ $RANK = 0 ] || { sleep 0.5; exit $((1 - TERN_RESTART_COUNT)); }')
    first = job.leader(*program)
    second = job.start(*program)
    finish(first, 0)
    finish(second, 0)
    same([text(f"ran.{r}") for r in range(2)], ["0\n1\n"] * 2)


@test
def nobody_comes():
    """too few nodes within --timeout are an error that says which joined; a joiner without node 0 gives up, too"""
    job = Job(2, "--timeout", 1)
    first = job.start("true")
    finish(first, 1, 30)
    has(errors(first), "1 of 2 hosts joined within 1 s", "host " + socket.gethostname()[:64])
    job = Job(2, "--timeout", 1)
    second = job.start("true", options=["--node-rank", 1])
    finish(second, 1, 30)
    has(errors(second), str(job.port))
    third = Job(2).start("true", options=["--node-rank", 1])
    until(lambda: blocks(third, signal.SIGTERM), "it reads its signals itself")
    third.terminate()
    finish(third, 143, 20)


@test
def pods():
    """the script of examples/kubernetes.yaml in three pods: one is added, one is taken away; every claim and image is one that exists"""
    with open(os.path.join(os.environ["TERN_ROOT"], "examples/kubernetes.yaml"), encoding="utf-8") as file:
        config = file.read()
    same(set(re.findall("claimName: ([a-z-]+)", config)), set(re.findall("kind: PersistentVolumeClaim\nmetadata: {name: ([a-z-]+)}", config)))
    for image in re.findall("image: (.*)", config):
        holds(re.fullmatch(r"REGISTRY/tern:\d+\.\d+\.\d+", image), image)  # a name without a registry is somebody else's
    script = re.sub("^ {14}", "", re.search(r"- \|\n((?: {14}.*\n)+)", config).group(1), flags=re.MULTILINE)
    port = free_port()
    quick = f"{HOST}:{port} --heartbeat 2 --grace 1 --last-call 0.5"
    script, endpoints = re.subn(r"tern-0\.tern:29400", quick, script)
    script, programs = re.subn(r"tern train .*?( &)$", r'sh -c "$PROGRAM"\1', script, flags=re.MULTILINE)
    same((endpoints, programs), (1, 1), script)
    path = os.path.dirname(TERN) + os.pathsep + os.environ["PATH"]

    def pod(number):
        env = environment(TERN_TOKEN="secret", HOSTNAME=f"tern-{number}", PATH=path, PROGRAM=FOREVER[2])
        return subprocess.Popen(["sh", "-c", script], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    all_ = [pod(0), pod(1)]
    last = lambda node: "".join(said(node, 1)[-1:])
    until(lambda: last(0).endswith(": 1 of 4") and last(1).endswith(": 3 of 4"), "two pods have begun")
    all_.append(pod(2))
    until(lambda: last(1).endswith(": 3 of 6") and last(2).endswith(": 5 of 6"), "the third has joined")
    all_[2].terminate()
    all_[2].wait(LIMIT)
    until(lambda: last(1).endswith(": 3 of 4"), "the job goes on without it")
    for p in reversed(all_[:2]):
        p.terminate()
    for p in all_[:2]:
        holds(p.wait(LIMIT) != 0)


@test
def strangers():
    """wrong tokens, other jobs, other options and garbage are refused with a reason and do no harm"""
    job = Job(2)
    first = job.leader(*UNTIL_GO)
    for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, os.urandom(4096)):
        with socket.create_connection((HOST, job.port)) as s:
            try:
                s.sendall(garbage)
            except OSError:
                pass
    wrong = job.start(*UNTIL_GO, env=environment(TERN_TOKEN="guess"), options=["--timeout", 1])
    finish(wrong, 1, 30)
    has(errors(wrong), "token")
    other = job.start(*UNTIL_GO, options=["--rdzv-id", "another"])
    finish(other, 1, 30)
    has(errors(other), "launcher's --rdzv-id is another, and node 0's is job")
    other = job.start(*UNTIL_GO, options=["--nnodes", "2:3"])
    finish(other, 1, 30)
    has(errors(other), "launcher's --nnodes is 2:3, and node 0's is 2:2")
    same(first.poll(), None)
    second = job.start(*UNTIL_GO)
    until(lambda: said(0) == ["0: 0 of 2"] and said(1) == ["0: 1 of 2"], "the two have started")
    go()
    finish(first, 0)
    finish(second, 0)


def secrets_in(*places):
    """What others can read of a running job: the arguments of all processes, and these files."""
    seen = "".join(text(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit())
    return seen + "".join(text(place) for place in places)


@test
def own_token():
    """without a token launchers of one user meet through a secret in a file of that user; others cannot join, even if they know the job's name"""
    job = Job(2, "--rdzv-id", "night")
    program = shell(SAYS + 'echo "$TERN_TOKEN" > token.$RANK; while [ ! -e go ]; do sleep 0.05; done')
    first = job.leader(*program, env=environment())
    for token in ("tern-night", "tern-job", "night"):
        stranger = job.start("true", env=environment(TERN_TOKEN=token), options=["--node-rank", 1, "--timeout", 1])
        finish(stranger, 1, 30)
        has(errors(stranger), "token", "--token-file")
    other = job.start("true", env=environment(XDG_CONFIG_HOME=os.path.abspath("another")), options=["--node-rank", 1, "--timeout", 1])
    finish(other, 1, 30)
    has(errors(other), "tern/token", "--token-file", "TERN_TOKEN")
    second = job.start(*program, env=environment(TERN_TOKEN="", TERN_TOKEN_FILE=""))
    until(lambda: said(0) and said(1) and text("token.0") and text("token.1"), "both have started")
    same(os.stat("config/tern/token").st_mode & 0o777, 0o600)
    secret, token = text("config/tern/token").strip(), text("token.0").strip()
    same(text("token.1").strip(), token)
    holds(len(token) >= 32 and token != secret and len(secret) >= 32, (token, secret))
    seen = secrets_in(*(p.name + end for p in (first, second) for end in (".out", ".err")))
    holds(token not in seen and secret not in seen, "the token can be read")
    go()
    finish(first, 0)
    finish(second, 0)


@test
def token_files():
    """--token-file and TERN_TOKEN_FILE: a file that no one else can read makes the token; another file is refused before anything starts"""
    write("token", "a secret of this job\n")
    os.chmod("token", 0o600)
    job = Job(2, "--token-file", "token")
    first = job.leader(*shell('[ ${#TERN_TOKEN} -ge 32 ] && [ "$TERN_TOKEN" != "a secret of this job" ] && [ "$TERN_TOKEN" != secret ]'))
    job.options = job.options[:-2]
    second = job.start("true", env=environment(TERN_TOKEN_FILE="token"))
    finish(first, 0)
    finish(second, 0)
    os.chmod("token", 0o640)
    for more in ({"options": ["--token-file", "token"]}, {"env": environment(TERN_TOKEN_FILE="token")}):
        refused = job.start("true", **more)
        finish(refused, 64, 30)
        has(errors(refused), "no token: ", "token (mode 0640)")
    holds(not os.path.exists("config"), "a token of the user's own was made")


main()
