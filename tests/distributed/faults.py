#!/usr/bin/env python3
"""The matrix of faults: {kill, stop, pause, cut, store, port, disk} x {rendezvous, forward, bucket, optimiser, save}, and errors
of a rank's own, a second job in the place of the first, strangers at the port where ranks meet, and orders
that are not the leader's. Of a sharded training {kill, stop, memory} x {attach, gather, scatter, step},
{kill, stop, disk} x part, {kill, stop} x load, and another model. Of a language model on a mesh (phases "mesh-...": tensor
parallelism and sharding; "context-...": tensor and context parallelism; "pipe-...": a pipeline and tensor parallelism;
"copies-...": a pipeline and data parallelism)
{kill, stop, memory} x {attach, forward, backward, step}, {kill, stop} x part, and another model or mesh.

faults.py            every cell        faults.py --ci   the telling ones        faults.py kill@bucket ...   these

A cell breaks one rank of a small data-parallel training (fault_program.c) and holds the rest to this:
  - ranks started by hand: the survivors end with an error within the time-out + 2 s, and name the group, the operation,
    its number and the missing rank; where the fault must not matter, the losses are those of an undisturbed run
  - ranks started by `tern run --max-restarts 1`: the job ends well, its losses are those of an undisturbed run, byte for
    byte, and no process is left
Prints TAP. A cell without meaning is listed with its reason; what this machine does not allow is skipped, and said.
"""
import hashlib
import hmac
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
# pylint: disable=wrong-import-position
from hosts import Namespaces
from launch import MARK, TERN, TESTS, Skip, free_port, holds, kill_marked, marked, text, until, write

PROGRAM, STORE, CLIENT = (os.path.join(TESTS, name) for name in ("fault_program", "store_program", "store_client"))
TIMEOUT = 2        # seconds that an operation may take
SLACK = 3          # and a busy machine's own
RANKS, VICTIM, STEP, STEPS = 4, 1, 4, 9
os.environ[MARK] = "faults-%d" % os.getpid()
os.environ.pop("TERN_FAULT", None)

PHASES = ["rendezvous", "forward", "bucket", "optimiser", "save"]
BESIDES = [("throw", "hook"), ("throw", "optimiser"), ("second-job", "bucket"), ("forged-order", "bucket"),
           ("relay", "rendezvous"), ("squatter", "rendezvous"),
           ("fork", "bucket"), ("fork", "optimiser"), ("fork", "save")]
SHARDED = ["attach", "gather", "scatter", "step", "part", "load"]  # phases of a sharded training
BESIDES += [(fault, phase) for fault in ("kill", "stop", "memory") for phase in SHARDED[:4]] + [("model", "attach")]
BESIDES += [(fault, phase) for fault in ("kill", "stop") for phase in SHARDED[4:]] + [("disk", "part"), ("model", "load")]
# In each the victim shares no group but the world with rank 2.
MESHES = {"mesh": "tp=2,shard=2", "context": "tp=2,cp=2", "pipe": "pp=2,tp=2", "copies": "pp=2,dp=2"}
for name in MESHES:
    BESIDES += [(fault, name + "-" + phase) for fault in ("kill", "stop", "memory") for phase in ("attach", "forward", "backward", "step")]
    BESIDES += [("kill", name + "-part"), ("stop", name + "-part"), ("model", name + "-attach"), ("mesh", name + "-attach")]
FAULTS = ["kill", "stop", "pause", "cut", "store", "port", "disk"]
CI = ["kill@rendezvous", "kill@bucket", "kill@save", "stop@bucket", "pause@forward", "store@optimiser", "port@rendezvous",
      "disk@save", "cut@bucket", "throw@hook", "second-job@bucket", "forged-order@bucket",
      "relay@rendezvous", "squatter@rendezvous", "fork@bucket",
      "kill@gather", "stop@scatter", "memory@attach", "memory@gather", "model@attach", "kill@part", "disk@part", "kill@load",
      "model@load", "kill@mesh-forward", "stop@mesh-backward", "memory@mesh-step", "kill@mesh-part", "mesh@mesh-attach",
      "kill@context-backward", "memory@context-forward", "model@context-attach",
      "kill@pipe-forward", "memory@pipe-backward", "kill@pipe-step", "kill@copies-backward", "memory@copies-step"]
MEANINGLESS = {("port", phase): "a port is taken before the job begins, or not at all" for phase in PHASES[1:]}
MEANINGLESS.update({("disk", phase): "nothing is written then" for phase in PHASES[:-1]})


def environment(**more):
    return {**os.environ, "TERN_TIMEOUT": str(TIMEOUT), "OMP_NUM_THREADS": "1", "TERN_LOG": "error",
            **{name: str(value) for name, value in more.items()}}


def no_orphans():
    until(lambda: not marked(os.environ[MARK]), "no process is left", SLACK)


def same_losses(out, reference):
    holds(text(os.path.join(out, "loss.csv")) == reference, "the losses differ from an undisturbed run's")


def reach_phase(out, log):
    until(lambda: os.path.exists(os.path.join(out, "at-phase")), lambda: "the phase was never reached: " + text(log)[-500:])


def go_on(out):
    write(os.path.join(out, "go-on"), "")


def training(out, fault):
    """The command of a rank: of data parallelism, or of what has the fault's phase."""
    phase = fault.split("@")[1].split(":")[0] if fault else ""
    name = phase.split("-")[0]
    kind = ["--mesh", MESHES[name]] if name in MESHES else ["--stage", "3"] if phase in SHARDED else []
    return [PROGRAM, "--steps", str(STEPS), "--out", out] + kind


def told(fault):
    """A fault as the program reads it: its phases have the same names on any mesh."""
    return re.sub("@[a-z]+-", "@", fault)


# ---- Ranks started by hand ------------------------------------------------------------------------------------------

class Ranks:
    """The ranks of one job, started one by one. `logs`: the folder for what they say, if not `out`."""

    def __init__(self, out, fault=None, logs=None, **more):
        port = free_port()
        self.out, self.files, self.ranks = out, [], []
        for rank in range(RANKS):
            env = environment(RANK=rank, WORLD_SIZE=RANKS, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=RANKS, TERN_TOKEN="faults",
                              TERN_FLIGHT_DIR=out, **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **more})
            if fault:
                env["TERN_FAULT"] = told(fault)
            log = open(os.path.join(logs or out, "rank%d.log" % rank), "wb")
            self.files.append(log)
            self.ranks.append(subprocess.Popen(training(out, fault), env=env, stdout=log, stderr=log))

    def log(self, rank):
        return text(self.files[rank].name)

    def wait_fault(self, rank):
        until(lambda: "fault:" in self.log(rank), lambda: "rank %d never said so: %s" % (rank, self.log(rank)[-500:]), 30)

    def end(self, status, limit, ranks=range(RANKS)):
        """They end with this status, all within `limit` seconds from now."""
        end = time.time() + limit
        for rank in ranks:
            try:
                ended = self.ranks[rank].wait(max(0.01, end - time.time()))
            except subprocess.TimeoutExpired:
                ended = "nothing after %g s" % limit
            holds(ended == status, "rank %d ended with %s: %s" % (rank, ended, self.log(rank)[-500:]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.ranks:
            p.kill()
            p.wait()
        for f in self.files:
            f.close()


def named(log):
    """The ranks, counted in the world, that an error names as missing, dead or giving up. The group that its text names last is the
    one in which it began; another's ranks count otherwise than the world's."""
    last = re.split(r"group (?=\S+ \(\w+\), rank \d+ of)", log)[-1]
    members = re.match(r"[^:]* \(world ranks ([\d, ]+)\):", last)
    members = [int(r) for r in members.group(1).split(",")] if members else range(RANKS)
    inside = re.findall(r"rank (\d+)(?:, which| \(process \d+\) has died| gave up| of \d+ has not arrived)", last)
    missing = re.findall(r"\d+", "".join(re.findall(r"no sign of world rank([\d, ]+)", log)))
    return {members[int(r)] for r in inside if int(r) < len(members)} | {int(r) for r in missing}


def survivors_tell(out, kind, phase, victim):
    with Ranks(out, "%s@%s:%d:%d" % (kind, phase, victim, STEP)) as ranks:
        ranks.wait_fault(victim)
        others = [r for r in range(RANKS) if r != victim]
        ranks.end(1, TIMEOUT + 2 + SLACK, others)
        for rank in others:
            log = ranks.log(rank)
            holds(victim in named(log), "survivor %d does not name rank %d: %s" % (rank, victim, log))
            holds("has died" not in log or "tn_ddp_join" not in log, "survivor %d is told of data: %s" % (rank, log))
            if phase != "rendezvous":
                holds(re.search("group (world|saver)", log) and "operation " in log, f"survivor {rank} names no group or operation: {log}")
                holds(any(word in log for word in ("all_reduce", "broadcast", "all_gather", "all_to_all", "reduce_scatter",
                                                   "barrier", "recv", "send")),
                      "survivor %d names no operation: %s" % (rank, log))


def all_go_on(out, reference, fault, **more):
    with Ranks(out, fault, **more) as ranks:
        ranks.end(0, 60)
    same_losses(out, reference)


# ---- Ranks started by the launcher ----------------------------------------------------------------------------------

def finished(command, limit=60, **more):
    """Its exit status, and what it says."""
    done = subprocess.run(command, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit)
    return done.returncode, done.stdout.decode(errors="replace")


def launch(out, fault=None, restarts=1):
    status, said = finished([TERN, "run", "--standalone", "-n", str(RANKS), "--max-restarts", str(restarts), "--grace", "1",
                             *training(out, fault)], 90, **({"TERN_FAULT": told(fault)} if fault else {}))
    holds(status == 0, "the launcher ended with %d: %s" % (status, said[-2000:]))


def job_resumes(out, reference, kind, phase, victim):
    launch(out, "%s@%s:%d:%d" % (kind, phase, victim, STEP))
    same_losses(out, reference)
    no_orphans()


def undisturbed(folder, fault):
    """The losses of a run in which nothing breaks."""
    out = folder("reference")
    launch(out, fault, restarts=0)
    losses = text(os.path.join(out, "loss.csv"))
    holds(len(losses.splitlines()) == STEPS + 1, "an undisturbed run has no losses: %r" % losses)
    return losses


# ---- Cells ----------------------------------------------------------------------------------------------------------

def breaks(kind):
    def cell(folder, reference, phase):
        victim = 0 if phase == "save" else VICTIM  # rank 0 writes
        survivors_tell(folder("survivors"), kind, phase, victim)
        job_resumes(folder("job"), reference, kind, phase, victim)
    return cell


def gives_up(kind, said):
    """A rank has an error of its own: the others end at once, and quote it."""
    def cell(folder, reference, phase):
        with Ranks(folder("ranks"), "%s@%s:%d:%d" % (kind, phase, VICTIM, STEP)) as ranks:
            ranks.end(1, SLACK)
            for rank in range(RANKS):
                holds(said in ranks.log(rank), "rank %d does not quote the error: %s" % (rank, ranks.log(rank)))
                holds(rank == VICTIM or VICTIM in named(ranks.log(rank)), "rank %d names no rank: %s" % (rank, ranks.log(rank)))
        job_resumes(folder("job"), reference, kind, phase, VICTIM)
    return cell


def differs(kind, said):
    """A rank has another model or mesh: all end at once, and name the rank and the difference."""
    def cell(folder, reference, phase):
        out = folder("ranks")
        if phase == "load":  # there is something to load
            all_go_on(out, reference, "kill@load:%d:0" % RANKS)
        with Ranks(out, "%s@%s:%d:%d" % (kind, phase, VICTIM, STEP)) as ranks:
            ranks.end(1, SLACK)
            for rank in range(RANKS):
                tells = "rank %d" % VICTIM in ranks.log(rank) or (phase == "load" and rank == VICTIM)
                holds(("more: is new" if phase == "load" else said) in ranks.log(rank) and tells,
                      "rank %d does not name the difference: %s" % (rank, ranks.log(rank)))
        if phase != "load":  # a job that has nothing to load does not notice there
            job_resumes(folder("job"), reference, kind, phase, VICTIM)
    return cell


def pause(folder, reference, phase):
    all_go_on(folder("ranks"), reference, "pause@%s:%d:%d" % (phase, 0 if phase == "save" else VICTIM, STEP))


def fork(folder, reference, phase):
    """A rank has a child in mid-step. The child computes, its own use of the group is an error, and no rank hears of it."""
    out, victim = folder("ranks"), 0 if phase == "save" else VICTIM
    all_go_on(out, reference, "fork@%s:%d:%d" % (phase, victim, STEP), TERN_TIMEOUT=60, OMP_NUM_THREADS=2)
    log = text(os.path.join(out, "rank%d.log" % victim))
    holds("group world belongs to the parent of this process" in log, "the child was not refused: " + log)


def store(folder, reference, phase):
    """The process that serves the store dies. Before the ranks have met that is an error; later no one needs it."""
    out, victim = folder("ranks"), 0 if phase == "save" else VICTIM
    with subprocess.Popen([STORE], env=environment(TERN_TOKEN="faults"), stdout=subprocess.PIPE) as server:
        try:
            port = int(server.stdout.readline())
            with Ranks(out, "wait@%s:%d:%d" % (phase, victim, STEP), MASTER_PORT=port, TERN_STORE="agent") as ranks:
                ranks.wait_fault(victim)
                server.kill()
                server.wait()
                go_on(out)
                if phase == "rendezvous":
                    ranks.end(1, TIMEOUT + 2 + SLACK)
                    holds(str(port) in ranks.log(VICTIM), "the error does not name the store: " + ranks.log(VICTIM))
                else:
                    ranks.end(0, 60)
                    same_losses(out, reference)
        finally:
            server.kill()


def port(folder, reference, phase):
    """A stranger listens on the endpoint."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        taken = s.getsockname()[1]
        begin = time.time()
        status, said = finished([TERN, "run", "--nnodes", "1", "--rdzv-endpoint", "127.0.0.1:%d" % taken, "--timeout", str(TIMEOUT),
                                 "-n", "2", PROGRAM, "--out", folder("job")], 30)
        holds(status != 0 and str(taken) in said, "ended with %d: %s" % (status, said))
        holds(time.time() - begin < TIMEOUT + 2 + SLACK, "took %.1f s" % (time.time() - begin))
    no_orphans()


def second_job(folder, reference, phase):
    """The same command is given a second time: it is refused, runs nothing, and the first job does not notice."""
    for nodes in (1, 2):
        out, extra = folder("job"), folder("second")
        taken = free_port()
        command = [TERN, "run", "--nnodes", str(nodes), "--rdzv-endpoint", "127.0.0.1:%d" % taken, "--rdzv-id", "twice",
                   "--grace", "1", "-n", "2", PROGRAM, "--steps", str(STEPS), "--out"]
        settings = {"TERN_TOKEN": "faults", "TERN_TIMEOUT": 60, "TERN_FAULT": "wait@%s:%d:%d" % (phase, VICTIM, STEP)}
        launchers = []
        try:
            for node in range(nodes):
                with open(os.path.join(out, "launcher%d.log" % node), "wb") as log:
                    launchers.append((subprocess.Popen([*command, out], env=environment(**settings), stdout=log, stderr=log), log.name))
            reach_phase(out, launchers[0][1])
            status, said = finished([*command, extra], **settings)
            holds(status == 1 and "job twice" in said and str(taken) in said, "ended with %d: %s" % (status, said))
            holds(not os.listdir(extra), "the second job has run")
            go_on(out)
            for process, log in launchers:
                holds(process.wait(60) == 0, "the first job ended with %d: %s" % (process.returncode, text(log)[-1000:]))
                holds("start again" not in text(log), "the first job was disturbed: " + text(log))
            holds(len(text(os.path.join(out, "loss.csv")).splitlines()) == len(reference.splitlines()), "losses are missing")
        finally:
            for process, _ in launchers:
                process.kill()
                process.wait()
        no_orphans()


# ---- Strangers at the port ------------------------------------------------------------------------------------------

class Strangers(threading.Thread):
    """Listens at ports of 127.0.0.1 that follow each other. `what` says for each what becomes of a connection: "silent" takes it and
    says nothing, "full" takes none, "close" ends it, "lie" speaks another language, "echo" gives back what it is told, "relay" passes
    it on to whoever serves at one of the ports after."""

    def __init__(self, what):
        super().__init__(daemon=True)
        self.listeners, self.kinds, self.partner, self.told, self.ends = {}, {}, {}, {}, False
        while not self.listeners:
            first = free_port()
            try:
                for i, kind in enumerate(what):
                    s = socket.socket()
                    self.listeners[s] = kind
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    s.bind(("127.0.0.1", first + i))
                    s.listen(0 if kind == "full" else 16)
            except (OSError, OverflowError):  # someone else has one of them
                self.close_all()
        self.port, self.behind = first, first + len(what)
        self.queue = [socket.socket() for kind in what if kind == "full" for _ in range(3)]
        for s in self.queue:
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", first + what.index("full")))
        self.start()

    def close_all(self):
        for s in [*self.listeners, *self.kinds]:
            s.close()
        self.listeners, self.kinds = {}, {}

    def server(self):
        """A connection to the true store, or None."""
        for port in range(self.behind, self.behind + 16):
            try:
                return socket.create_connection(("127.0.0.1", port))
            except OSError:
                pass
        return None

    def accept(self, listener):
        kind, (client, _) = self.listeners[listener], listener.accept()
        other = self.server() if kind == "relay" else None
        if kind == "close" or (kind == "relay" and not other):
            client.close()
            return
        if kind == "lie":
            client.sendall(b"HTTP/1.1 200 OK\r\n" + b"x" * 200)
        self.kinds[client], self.told[client] = kind, 0
        if other:
            self.kinds[other], self.told[other] = "answers", 0
            self.partner[client], self.partner[other] = other, client

    def hear(self, s):
        try:
            data = s.recv(4096)
            self.told[s] += len(data) if self.kinds[s] != "answers" else 0
            if data and self.kinds[s] == "echo":
                s.sendall(data)
            elif data and s in self.partner:
                self.partner[s].sendall(data)
        except OSError:
            data = b""
        if not data:
            for end in filter(None, (s, self.partner.get(s))):
                self.kinds.pop(end, None)
                end.close()

    def run(self):
        while not self.ends:
            readable = select.select([*[s for s in self.listeners if self.listeners[s] != "full"], *self.kinds], [], [], 0.05)[0]
            for s in readable:
                if s in self.listeners:
                    self.accept(s)
                elif s in self.kinds:
                    self.hear(s)

    def most(self):
        """The most bytes that a rank has said in one connection."""
        return max(self.told.values(), default=0)

    def close(self):
        self.ends = True
        self.join()
        self.close_all()
        for s in self.queue:
            s.close()


def speaks(token, dialled, place, hello=b"TERN\3\0\0\0" + b"n" * 16):
    """Whether the store that is dialled at one port lets in who proves the token for another: the handshake of store/wire.h in a few
    lines. `place` None: for the one that the store names."""
    with socket.create_connection(("127.0.0.1", dialled), timeout=30) as s:
        s.sendall(hello)
        answer = b""
        while len(answer) < 74:
            answer += s.recv(74 - len(answer)) or b"?" * 74
        where = answer[24:42] if place is None else bytes(10) + b"\xff\xff\x7f\0\0\1" + place.to_bytes(2, "big")
        said = hello[8:] + answer[8:24] + where
        proofs = [hmac.new(token, role + said, hashlib.sha256).digest() for role in (b"server", b"client")]
        s.sendall(proofs[1] + b"\5\3\0\0" + bytes(24) + b"key")  # and whether there is a key
        try:
            return proofs[0] == answer[42:], len(s.recv(16)) > 0
        except ConnectionError:
            return proofs[0] == answer[42:], False


def relay(folder, reference, phase):
    """A stranger has MASTER_PORT before rank 0, and passes everything on to the true store. He gets a hello and no session."""
    out, stranger = folder("ranks"), Strangers(["relay"])
    try:
        with Ranks(out, "wait@forward:%d:%d" % (VICTIM, STEP), MASTER_PORT=stranger.port, TERN_TIMEOUT=60) as ranks:
            ranks.wait_fault(VICTIM)
            holds(stranger.most() <= 24, "a rank has told the stranger %d bytes: more than a hello" % stranger.most())
            with stranger.server() as true:
                port = true.getpeername()[1]
            holds(speaks(b"faults", port, port) == (True, True), "the store does not know its own ranks")
            holds(speaks(b"faults", stranger.port, stranger.port) == (False, False), "a proof for the stranger's port is believed")
            holds(speaks(b"guess", port, None) == (False, False), "a stranger is let in")
            go_on(out)
            ranks.end(0, 60)
            same_losses(out, reference)
    finally:
        stranger.close()


def squatter(folder, reference, phase):
    """Strangers have MASTER_PORT and some ports after it, each with manners of his own: the ranks meet all the same."""
    strangers = Strangers(["full", "silent", "close", "lie", "echo"])
    try:
        all_go_on(folder("ranks"), reference, None, MASTER_PORT=strangers.port, TERN_TIMEOUT=60)
    finally:
        strangers.close()


def forged_order(folder, reference, phase):
    """A stranger who has the token gives a launcher orders: that all has ended well, that 300 ranks shall start, and what is no
    number. None is followed: the job ends with an error that names the order, and continues from its checkpoint when asked to."""
    for order in ("end 0\n", "start 2 1 300 1\n1 0 0 300\n", "end 99999999999999999999\n", "stop 1\n\033[2J\nstart 2 1 -3 1\n1 0 0 -3\n"):
        out = folder("job")
        taken = free_port()
        env = environment(TERN_TOKEN="faults", TERN_FAULT="wait@%s:%d:%d" % (phase, VICTIM, STEP))
        command = [TERN, "run", "--nnodes", "1:2", "--last-call", "0", "--rdzv-endpoint", "127.0.0.1:%d" % taken, "--grace", "1", "-n",
                   str(RANKS), PROGRAM, "--steps", str(STEPS), "--out", out]
        with open(os.path.join(out, "launcher.log"), "wb") as log:
            launcher = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            reach_phase(out, log.name)
            subprocess.run([CLIENT, str(taken), "set", "agent/order/2", order], env=env, check=True, timeout=30)
            status, said = launcher.wait(60), text(log.name)
            holds(status == 1 and "in the store" in said, "after %r it ended with %d: %s" % (order, status, said[-1000:]))
            holds("\033" not in said, "an escape sequence came through")
        finally:
            launcher.kill()
            launcher.wait()
        no_orphans()
        launch(out)
        same_losses(out, reference)


def disk(folder, reference, phase):
    """The disk is full in the middle of a save; with space again the job continues from the checkpoint before."""
    out, logs = folder("full"), folder("logs")  # a rank can say why on another disk
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", out], stderr=subprocess.DEVNULL).returncode != 0:
        raise Skip("no file system may be mounted here")
    try:
        ballast = os.path.join(out, "ballast")
        with Ranks(out, "wait@%s:%d:%d" % ("gather" if phase == "part" else "forward", VICTIM, STEP), logs) as ranks:
            ranks.wait_fault(VICTIM)
            try:
                with open(ballast, "wb") as f:  # the first checkpoint is there; no space for a second
                    while True:
                        f.write(b"\0" * 65536)
                        f.flush()
            except OSError:
                pass
            open_marker(os.path.join(out, "go-on"), ballast)
            ranks.end(1, TIMEOUT + 4 + SLACK)
            for rank in range(RANKS) if phase == "part" else [0]:
                holds("No space left" in ranks.log(rank), "rank %d does not say why: %s" % (rank, ranks.log(rank)))
        os.unlink(ballast)
        subprocess.run(["mount", "-o", "remount,size=64m", out], check=True)
        launch(out, "kill@part:%d:0" % RANKS if phase == "part" else None)  # of no rank
        same_losses(out, reference)
    finally:
        subprocess.run(["umount", "-l", out])


def open_marker(path, ballast):
    """A file of no bytes on a full disk: a little of the ballast goes for it."""
    with open(ballast, "r+b") as f:
        f.truncate(max(0, os.path.getsize(ballast) - 16384))
    open(path, "w").close()


def cut(folder, reference, phase):
    """Two hosts (network namespaces); the link between them goes down."""
    out = folder("hosts")
    try:
        hosts = Namespaces()
    except OSError as why:
        if not isinstance(why, FileNotFoundError) and "netns add" not in str(why):
            raise
        raise Skip("network namespaces are not allowed here: %s" % why) from None
    launchers = []
    try:
        for host in (0, 1):
            command = [*hosts.on(host), TERN, "run", "--nnodes", "2", "--rdzv-endpoint", hosts.addresses[0] + ":29777", "--rdzv-id",
                       "cut%d" % os.getpid(), "--timeout", "20", "--grace", "1", "-n", "1", PROGRAM, "--steps", str(STEPS), "--out", out]
            env = environment(TERN_TOKEN="faults", TERN_FAULT="wait@%s:1:%d" % (phase, STEP))
            with open(os.path.join(out, "host%d.log" % host), "wb") as log:
                launchers.append((subprocess.Popen(command, env=env, stdout=log, stderr=log), log.name))
        reach_phase(out, launchers[1][1])
        hosts.cut()
        go_on(out)
        begin, limit = time.time(), 20 + SLACK
        for _, log in launchers if phase != "rendezvous" else []:
            until(lambda log=log: "group world" in text(log) and "operation " in text(log),
                  lambda log=log: "a rank does not say in time what it waits for: " + text(log)[-2000:], TIMEOUT + 2 + SLACK)
        for process, log in launchers:
            process.wait(max(0.1, begin + limit - time.time()))
            holds(process.returncode != 0, "a host's launcher ended well: " + text(log)[-1000:])
        no_orphans()
    finally:
        hosts.remove()


CELLS = {"kill": breaks("kill"), "stop": breaks("stop"), "pause": pause, "cut": cut, "store": store, "port": port, "disk": disk,
         "throw": gives_up("throw", "thrown on purpose at "), "memory": gives_up("memory", "memory for"),
         "model": differs("model", "rank 1 has parameter more.weight"), "mesh": differs("mesh", "rank 1 has options pp=1,dp=2,shard=1"),
         "second-job": second_job, "forged-order": forged_order, "relay": relay, "squatter": squatter, "fork": fork}


def main():
    wanted = [a for a in sys.argv[1:] if not a.startswith("-")]
    if "--ci" in sys.argv or (not wanted and os.environ.get("TERN_FAULTS") == "ci"):
        wanted = CI
    cells = [(f, p) for f in FAULTS for p in PHASES] + BESIDES
    cells = [cell for cell in cells if not wanted or "%s@%s" % cell in wanted]
    base = tempfile.mkdtemp(prefix="tern_faults_")

    def folder(name):
        path = os.path.join(base, name)
        shutil.rmtree(path, ignore_errors=True)
        os.mkdir(path)
        return path
    print("1..%d" % len(cells), flush=True)
    failed = 0
    try:
        references = {}
        for number, (fault, phase) in enumerate(cells, 1):
            name, begin = "%s in %s" % (fault, phase), time.time()
            if (fault, phase) in MEANINGLESS:
                print("ok %d - %s: no meaning, %s" % (number, name, MEANINGLESS[fault, phase]), flush=True)
                continue
            try:
                mesh = phase.split("-")[0] if "-" in phase else None
                try:
                    if mesh not in references:
                        references[mesh] = undisturbed(folder, "none@%s:%d:0" % (phase, RANKS) if mesh else None)
                    CELLS[fault](folder, references[mesh], phase)
                finally:
                    kill_marked(os.environ[MARK])
                print("ok %d - %s (%.1f s)" % (number, name, time.time() - begin), flush=True)
            except Skip as why:
                print("ok %d - %s # SKIP %s" % (number, name, why), flush=True)
            except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as why:
                failed += 1
                print("not ok %d - %s: %s" % (number, name, str(why).replace("\n", " | ")), flush=True)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
