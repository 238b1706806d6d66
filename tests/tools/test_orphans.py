#!/usr/bin/env python3
"""No process survives `tern run`, whatever ends it. Each test ends with a check for processes left behind (launch.py); the
ranks here do what they can to survive."""
import glob
import os
import signal
import sys

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from launch import MARK, TERN, command, complete, errors, finish, go, holds, main, marked, run, same, start, test, text, until

# A rank that ignores all signals that it can, with a child in its group, one there without our environment, and two in their
# own sessions.
STUBBORN = """
trap "" TERM INT HUP
sleep 1000 &
env -i sleep 1004 &
echo $! > bare.$RANK
setsid sleep 1001 &
setsid sh -c 'trap "" TERM INT HUP; sleep 1002; sleep 1003' &
echo $$ > begun.$RANK
while :; do sleep 0.05; done
"""


def mine():
    return marked(os.environ[MARK])


def guard_of(p):
    """The pid of the launcher's guard."""
    found = [pid for pid, name in mine() if " _guard " in name and f"TERN_LAUNCHER={p.pid}-" in name]
    return found[0] if len(found) == 1 else None


def stubborn(*options, **more):
    p = start("-n", 2, *options, "sh", "-c", STUBBORN, **more)
    until(lambda: text("begun.0") and text("begun.1") and sum("sleep 100" in name for _, name in mine()) >= 6, "all run")
    return p


def bare_gone():
    """The children without a mark have ended."""
    until(lambda: not any(os.path.exists(f"/proc/{text(f'bare.{r}').strip()}") for r in range(2)), "the bare children are gone", 10)


@test
def killed():
    """the launcher killed by SIGKILL"""
    p = stubborn()
    p.kill()
    p.wait()
    bare_gone()


@test
def terminated():
    """the launcher ended by SIGTERM: within the grace, although the ranks ignore it"""
    p = stubborn("--grace", 0.3)
    p.terminate()
    finish(p, 143, 20)
    same(mine(), [])
    bare_gone()


@test
def group_killed():
    """the launcher's whole process group killed, as a terminal or a batch system does"""
    p = stubborn(start_new_session=True)
    os.killpg(p.pid, signal.SIGKILL)
    p.wait()
    bare_gone()


@test
def guard_killed():
    """the guard killed: another one takes its place and knows the ranks"""
    p = stubborn()
    first = until(lambda: guard_of(p), "there is a guard")
    os.kill(first, signal.SIGKILL)
    second = until(lambda: guard_of(p) not in (None, first) and guard_of(p), "there is another guard")
    until(lambda: f"pid {second}" in errors(p), "the launcher says so")
    p.kill()
    p.wait()
    bare_gone()


@test
def both_killed():
    """launcher and guard killed together: the ranks themselves end with the launcher"""
    os.mkfifo("fifo")
    p = start("-n", 2, "sh", "-c", 'echo $$ > begun.$RANK; trap "" TERM; read x < fifo')
    until(lambda: text("begun.0") and text("begun.1"), "both ranks run")
    guard = until(lambda: guard_of(p), "there is a guard")
    p.send_signal(signal.SIGSTOP)
    os.kill(guard, signal.SIGKILL)
    p.kill()
    p.wait()
    os.rmdir(glob.glob(f"/dev/shm/tern-{p.pid}-*")[0])  # which the guard would have removed


@test
def left_behind():
    """what ranks leave behind when they end well is gone when the launcher has ended"""
    run("-n", 2, "sh", "-c", "sleep 1000 & setsid sleep 1001 & "
        "(setsid env -i sh -c 'echo $$ > '$PWD/bare.$RANK'; exec sleep 1002' &); while [ ! -s bare.$RANK ]; do sleep 0.02; done")
    same(mine(), [])
    holds(text("bare.0") and text("bare.1"))
    bare_gone()


@test
def elder_children():
    """the launcher does not end what its shell had started before it became the launcher"""
    complete("sh", "-c", 'sleep 1000 > /dev/null 2>&1 & echo $! > elder; exec "$@"', "-", *command("true"))
    os.kill(int(text("elder")), signal.SIGTERM)  # fails if it is gone


@test
def between_rounds():
    """what the ranks of one round leave behind is gone before the next"""
    done = run("--max-restarts", 1, "sh", "-c",
               'if [ $TERN_RESTART_COUNT = 0 ]; then setsid sh -c "echo \\$\\$ > pid; sleep 1000" & '
               'while [ ! -s pid ]; do sleep 0.02; done; exit 1; fi; '
               'if kill -0 $(cat pid) 2>/dev/null; then echo alive; else echo gone; fi')
    same(done.stdout, b"[0] gone\n")


@test
def early_rank():
    """a rank that ends well ends its own children, while the others continue"""
    p = start("-n", 2, "sh", "-c", 'if [ $RANK = 0 ]; then sleep 1000 & echo $! > pid; exit 0; fi; '
              'while [ ! -e go ]; do sleep 0.05; done')
    until(lambda: text("pid"), "rank 0 has begun")
    until(lambda: not os.path.exists(f"/proc/{text('pid').strip()}"), "its child is gone")
    same(p.poll(), None)
    go()
    finish(p, 0)


@test
def nested():
    """a launcher started by a rank ends with the outer one, and so do its ranks"""
    p = start("--", TERN, "run", "-n", 2, "sh", "-c", 'trap "" TERM; echo x > begun.$RANK; while :; do sleep 0.05; done')
    until(lambda: text("begun.0") and text("begun.1"), "both inner ranks run")
    memory = f"/dev/shm/tern-{p.pid}-*"
    same(len(glob.glob(memory + "/tern-*")), 1)
    p.kill()
    p.wait()
    until(lambda: not glob.glob(memory), "their folder in memory is gone")


main()
