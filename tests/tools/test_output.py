#!/usr/bin/env python3
"""What ranks write: whole lines with prefixes, nothing lost, nothing that blocks; one progress line on a terminal."""
import os
import pty
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from launch import LIMIT, Terminal, command, environment, finish, go, has, holds, main, run, same, start, test, text, until, write


def python(program):
    return [sys.executable, "-c", "import os, sys, time\nrank = int(os.environ['RANK'])\n" + program]


@test
def prefixes():
    """each line has its rank in front and comes whole, in the rank's order, on the stream it was written to"""
    lines = 3000
    done = run("-n", 4, *python(f"for i in range({lines}):\n"
                                "    sys.stdout.write(f'{i} ' + 'x' * (i % 97))\n"
                                "    if i % 7 == 0: sys.stdout.flush()\n"
                                "    sys.stdout.write('y\\n')\n"
                                "    print(i, file=sys.stderr)\n"))
    for rank in range(4):
        prefix = f"[{rank}] ".encode()
        mine = [line[4:] for line in done.stdout.split(b"\n") if line.startswith(prefix)]
        same(mine, [b"%d " % i + b"x" * (i % 97) + b"y" for i in range(lines)])
        mine = [line[4:] for line in done.stderr.split(b"\n") if line.startswith(prefix)]
        same(mine, [b"%d" % i for i in range(lines)])
    same(done.stdout.count(b"\n"), 4 * lines)
    same(done.stderr.count(b"\n"), 4 * lines)


@test
def no_newline():
    """a last line without newline is a line; empty lines stay; all 256 bytes pass"""
    done = run(*python("sys.stdout.buffer.write(b'a\\n\\n' + bytes(range(256)) + b'end')"))
    same(done.stdout, b"[0] a\n[0] \n" + b"[0] " + bytes(range(10)) + b"\n[0] " + bytes(range(11, 256)) + b"end\n")


@test
def huge_lines():
    """lines of 5 MB from all ranks at once: no byte lost, none of another rank inside a piece"""
    size = 5 << 20
    done = run("-n", 3, "--log-dir", "logs", "--rdzv-id", "huge", *python(
        f"sys.stdout.write(chr(97 + rank) * {size} + '\\nshort\\n')"))
    for rank in range(3):
        mine = [line[4:] for line in done.stdout.split(b"\n") if line.startswith(b"[%d] " % rank)]
        same(mine[-1], b"short")
        holds(b"".join(mine[:-1]) == b"%c" % (97 + rank) * size, f"the line of rank {rank} is changed")
        holds(len(mine) < 20, "a line is broken into few pieces")
        holds(text(f"logs/huge/attempt_0/{rank}/stdout.log") == chr(97 + rank) * size + "\nshort\n", "the log file differs")


@test
def slow_reader():
    """a reader that waits: the ranks wait, too, and nothing is lost"""
    size = 2 << 20
    p = subprocess.Popen(command("-n", 2, *python(f"sys.stdout.write(('%d' % rank * 99 + '\\n') * {size // 100}); "
                                                  "sys.stdout.flush(); open(f'wrote.{rank}', 'w').write('x')")),
                         env=environment(), stdout=subprocess.PIPE)
    time.sleep(0.5)
    holds(not text("wrote.0") and not text("wrote.1"), "2 MB fit into no pipe")
    got = p.communicate(timeout=LIMIT)[0]
    same((p.returncode, len(got)), (0, 2 * (size // 100) * 104))
    p = subprocess.Popen(command(*python("sys.stdout.write('x\\n' * 40000); sys.stdout.flush(); open('end', 'w').write('x')")),
                         env=environment(), stdout=subprocess.PIPE)
    until(lambda: text("end"), "the rank has ended, and its last bytes are in its pipe")
    time.sleep(0.5)  # until the launcher notices it
    same((p.communicate(timeout=LIMIT)[0], p.returncode), (b"[0] x\n" * 40000, 0))


@test
def closed_reader():
    """a reader that goes away is reported once; the ranks continue, the log files are complete, and what is not shown is no success"""
    p = start("--log-dir", "logs", "--rdzv-id", "closed", *python(
        "print('first', flush=True)\nopen('begun', 'w').write('x')\n"
        "while not os.path.exists('go'): time.sleep(0.02)\n"
        "for i in range(1000): print(i)"), stdout=subprocess.PIPE)
    until(lambda: text("begun"), "it runs")
    same(p.stdout.readline(), b"[0] first\n")
    p.stdout.close()
    go()
    finish(p, 1)
    same(text("logs/closed/attempt_0/0/stdout.log"), "first\n" + "".join(f"{i}\n" for i in range(1000)))
    same(text(p.name + ".err").count("stdout: Broken pipe"), 1)


@test
def closed_by_rank():
    """a rank that closes its output continues"""
    done = run("-n", 2, "sh", "-c", "echo $RANK; exec >&- 2>&-; sleep 0.2; echo x > end.$RANK")
    same(sorted(done.stdout.split()), sorted(b"[0] 0 [1] 1".split()))
    same([text(f"end.{r}") for r in range(2)], ["x\n"] * 2)


@test
def full_disk():
    """a log file that cannot grow is reported once, and the ranks continue; what is missing there is no success"""
    done = run("--log-dir", "logs", "--rdzv-id", "disk", *python("for i in range(100): print(i, flush=True)"),
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)), code=1)
    same(done.stdout, b"".join(b"[0] %d\n" % i for i in range(100)))
    same(done.stderr.count(b"File too large"), 1, done.stderr)
    holds(0 < len(text("logs/disk/attempt_0/0/stdout.log")) <= 100)


# ---- On a terminal ------------------------------------------------------------------------------------------------


def on_terminal(*args):
    return Terminal(*command(*args))


def screen(seen):
    """What a terminal shows after these bytes: \\r, \\n, erase to the end of the line, colours dropped."""
    rows, column = [""], 0
    for part in re.split(rb"(\r|\n|\033\[[0-9;]*[A-Za-z])", seen):
        part = part.decode("utf-8", "replace")
        if part == "\r":
            column = 0
        elif part == "\n":
            rows.append("")
            column = 0
        elif part == "\033[K":
            rows[-1] = rows[-1][:column]
        elif not part.startswith("\033"):
            rows[-1] = rows[-1][:column].ljust(column) + part + rows[-1][column + len(part):]
            column += len(part)
    return rows


# Escape sequences that do more than colour; a bell, a backspace, a CSI of one character.
COMMANDS = [r"\033[2J", r"\033[1;1H", r"\033]0;another title\a", r"\033]52;c;eA==\033\\", r"\033[?1049h", r"\033c", r"\a",
            r"\b\b\b\b", r"\302\2332J"]


@test
def commands_to_the_terminal():
    """on a terminal no rank's escape sequences and control characters pass; into a pipe all bytes do"""
    line = "".join(COMMANDS) + r"\033[1;33mwhat\tis \303\251 shown\033[0m"
    script = f"printf '{line}\n'; printf '{line}' >&2"
    seen = on_terminal("-n", 2, "sh", "-c", f"[ $RANK = 0 ] || {{ {script}; }}").finish(0)
    same(seen.count(b"what\tis \303\251 shown\n"), 2, seen)
    holds(not re.search(rb"[\a\b]|\302\233|\033", seen), seen)
    done = run("sh", "-c", script)
    for end in (done.stdout, done.stderr):
        same(end, b"[0] " + subprocess.run(["printf", line], capture_output=True, check=True).stdout + b"\n")


@test
def names_of_logs_are_taken():
    """something else in the place of a log is neither followed nor waited for: the rank runs without that log, which is no success"""
    folder = "logs/job/attempt_0/0"
    for place, words in ((os.mkfifo, "not a regular file"), (os.mkdir, "Is a directory"),
                         (lambda path: os.symlink(os.path.abspath("mine"), path), "a symbolic link is not followed")):
        os.makedirs(folder)
        place(folder + "/stdout.log")
        done = run("--log-dir", "logs", "--rdzv-id", "job", "sh", "-c", "echo hello; echo loud >&2", code=1)
        same(done.stdout, b"[0] hello\n")
        has(done.stderr, "no log: ", folder + "/stdout.log: " + words)
        same(text(folder + "/stderr.log"), "loud\n")
        holds(not os.path.exists("mine"), "a link was followed")
        shutil.rmtree("logs")


BAR = r"""
def wait(name):
    while not os.path.exists(name): time.sleep(0.005)
columns = os.environ.get('TERN_PROGRESS')
if rank == 0:
    sys.stderr.write('start\n')
    for i in range(11):
        sys.stderr.write('\r' + f'[{"#" * i:10}] {i}/10 of {columns}\033[K')
        sys.stderr.flush()
        if i < 10: wait(f'next.{i}')
    sys.stderr.write('\nend\n')
    sys.stderr.write('\rmore')
    sys.stderr.flush()
    time.sleep(0.2)
    sys.stderr.write('\r\033[K')
else:
    for i in range(10):
        wait(f'shown.{i}')
        print(f'line {i} of {columns}', flush=True)
"""


@test
def one_progress_line():
    """rank 0 redraws one line at the bottom, other ranks' lines appear above it; what it clears is gone"""
    t = on_terminal("-n", 2, *python(BAR))
    for i in range(10):
        until(lambda: b" %d/10 " % i in t.seen(), "the progress line is shown")
        write(f"shown.{i}", "")
        # It comes back below the other rank's line.
        again = re.compile(rb"line %d of None\n\r\[0\] [^\n\r]* %d/10 of 96\033\[K" % (i, i))
        until(lambda: again.search(t.seen()), "it is shown again")
        write(f"next.{i}", "")
    rows = screen(t.finish(0))
    same(rows[0], "[0] start")
    same(rows[1:11], [f"[1] line {i} of None" for i in range(10)])
    same(rows[11], "[0] [##########] 10/10 of 96")
    same(rows[12:], ["[0] end", ""])


@test
def no_progress_line():
    """without a terminal ranks are told that no progress line is shown, and bytes pass unchanged"""
    for i in range(10):
        write(f"shown.{i}", "")
        write(f"next.{i}", "")
    done = run("-n", 2, *python(BAR))
    has(done.stderr, "[0] start\n[0] \r[          ] 0/10 of None\033[K\r[#")
    done = run("sh", "-c", r"printf 'a\rb\r\n'")
    same(done.stdout, b"[0] a\rb\r\n")


@test
def redraws_without_end():
    """a line that is redrawn for megabytes takes no memory and is never split"""
    seen = on_terminal(*python("for i in range(40000): sys.stdout.write('\\r%60d' % i)\nsys.stdout.write('\\n')")).finish(0)
    same(screen(seen), ["[0] " + "%60d" % 39999, ""])


@test
def other_ranks_carriage_returns():
    """on a terminal another rank's \\r cannot wipe out its prefix"""
    seen = on_terminal("-n", 2, "sh", "-c", r"[ $RANK = 0 ] || printf '10%%\r99%%\rdone\r\n'").finish(0)
    same(screen(seen), ["[1] done", ""])


@test
def stopped_terminal():
    """a terminal that is stopped: Ctrl-C still ends everything in bounded time"""
    reading, end = pty.openpty()
    p = subprocess.Popen(command("-n", 2, "--grace", 0.3, "yes"), env=environment(TERM="xterm"), stdout=end, stderr=end,
                         stdin=subprocess.DEVNULL)
    os.close(end)
    holds(select.select([reading], [], [], LIMIT)[0], "something appears")
    time.sleep(0.3)
    p.send_signal(signal.SIGINT)
    same(p.wait(20), 130)
    os.close(reading)


main()
