#!/usr/bin/env python3
"""`tern run` on one host: what ranks are told, exit codes, the report of the first failure, restarts, signals."""
import os
import signal
import sys
import time

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from launch import TERN, environment, errors, finish, free_port, go, has, holds, main, run, same, shell, start, tern, test, text, until, write

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, under which tests may run, silences it for everything below


@test
def variables():
    """each rank is told its place in torchrun's variables"""
    done = run("-n", 3, *shell('echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE '
                               '$MASTER_ADDR $TERN_STORE $TERN_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT '
                               '$TORCHELASTIC_MAX_RESTARTS" $((MASTER_PORT > 0)) ${#TERN_TOKEN}; '
                               '[ "$TERN_RUN_ID" = "$TORCHELASTIC_RUN_ID" ] && [ -n "$TERN_RUN_ID" ]'))
    same(sorted(done.stdout.decode().splitlines()),
         [f"[{r}] {r} {r} 3 3 0 1 127.0.0.1 agent 0 0 0 1 32" for r in range(3)])
    same(done.stderr, b"")


@test
def environment_passes():
    """other variables pass, an outer job's place does not, OMP_NUM_THREADS is left alone"""
    done = run(*shell('echo "$FRUIT $RANK $OMP_NUM_THREADS $TERN_FLIGHT_DIR ${TERN_LAUNCHER%-*}"; '
                     "tr '\\0' '\\n' < /proc/$$/environ | cut -d= -f1 | sort | uniq -d"),
               env=environment(FRUIT="pear", RANK=7, OMP_NUM_THREADS=3, TERN_FLIGHT_DIR="/outer", TERN_LAUNCHER="1-1"))
    line = done.stdout.decode().splitlines()
    holds(line[0].startswith("[0] pear 0 3 /outer ") and not line[0].endswith(" 1"), done.stdout)
    same(len(line), 1, done.stdout)
    done = run("-n", 2, *shell('[ $RANK = 0 ] || echo "<$TERN_PROGRESS>"'), env=environment(TERN_PROGRESS=40))
    same(done.stdout, b"[1] <>\n")  # an outer launcher's is for its own rank 0


@test
def options_of_the_program():
    """what comes after the program belongs to it"""
    done = run("--nproc_per_node", 1, "echo", "-n", "--help", "--nnodes=7")
    same(done.stdout, b"[0] --help --nnodes=7\n")


# What torchrun has and this launcher does not.
TORCHRUN_ALONE = ("-m", "--module", "--run-path", "--start-method", "--role", "-r", "--redirects", "--local-ranks-filter", "--local-addr",
                  "--duplicate-stdout-filters", "--log-line-prefix-template", "--logs-specs", "--event-log-handler", "--numa-binding",
                  "--virtual-local-rank", "--signals-to-handle", "--print-completion")


@test
def wrong_options():
    """wrong options and a missing program are refused before anything starts"""
    for args, words in (
            (["-n", "0", "true"], "a whole number from 1"),
            (["-n", "2x", "true"], '"2x"'),
            (["--nnodes", "3:2", "--rdzv-endpoint", "h:1", "true"], "the first number must be the smaller"),
            (["--nnodes", "2", "true"], "needs --rdzv-endpoint"),
            (["--rdzv-endpoint", "h:70000", "true"], "70000"),
            (["--rdzv-endpoint", ":29400", "true"], "should be HOST:PORT"),
            (["--rdzv-endpoint", "h", "--master-port", "5", "true"], "are alternatives"),
            (["--rdzv-id", "../up", "true"], "letters, digits"),
            (["--rdzv-id", "..", "true"], "letters, digits"),
            (["--standalone", "--nnodes", "2", "true"], "--standalone means one host"),
            (["--node-rank", "1", "true"], "at most 1 hosts"),
            (["--token", "", "true"], "the token has 0 characters"),
            (["--token", "x", "--token-file", "y", "true"], "are alternatives"),
            (["--rdzv-endpoint", "h", "--token-file", "not-there", "true"], "not-there"),
            (["--ports", "5-4", "true"], '--ports is "5-4": should be FIRST-LAST'),
            (["--ports", "30000-30001", "--rdzv-endpoint", "127.0.0.1:29400", "true"], "port is 29400, which is not one of the ports 30000-30001"),
            (["--grace", "soon", "true"], '--grace: "soon" should be a number from 0'),
            (["--monitor-interval", "0", "true"], "at least 0.01"),
            (["--heartbeat", "0.2", "true"], "three times"),
            (["--rdzv-backend", "etcd", "true"], '"etcd" should be c10d or static'),
            (["--rdzv-conf", "is_host=1", "true"], '"is_host=1": only join_timeout=S'),
            (["--rdzv-conf", "join_timeout", "true"], '"join_timeout": only join_timeout=S'),
            (["--rdzv-conf", "join_timeout=soon", "true"], "a number of seconds"),
            (["--rdzv-endpoint", "elsewhere:0", "true"], "works only with one host, on localhost"),
            (["--nnodes", 2, "--rdzv-endpoint", "localhost:0", "true"], "port 0 (any free port) works only with one host"),
            (["--tee", "0:3,1:1", "--log-dir", "logs", "true"], '"0:3,1:1" should be 3'),
            (["--nproc-per-node=many", "true"], '"many" should be a whole number from 1'),
            *(([option, "true"], option.lstrip("-")) for option in TORCHRUN_ALONE),
            ([], "no program to start")):
        done = run(*args, code=64)
        has(done.stderr, words)
    done = run("no_such_program_anywhere", code=127)
    has(done.stderr, "no_such_program_anywhere: not found in PATH")
    done = run("./here", code=127)
    write("here", "no program")
    run("./here", code=126)


@test
def exit_codes():
    """the exit code is the first failure's, 128 + signal for a signal, 0 only when all ranks ended with 0"""
    run("-n", 2, "true")
    run("-n", 2, *shell("exit $((RANK * 7))"), code=7)
    done = run("-n", 2, *shell("[ $RANK = 0 ] || kill -ABRT $$; exec sleep 60"), code=128 + signal.SIGABRT)
    write("bad", "#!/no/such/interpreter")
    os.chmod("bad", 0o755)
    done = run("--max-restarts", 3, "./bad", code=127)
    has(done.stderr, "cannot start ./bad: No such file", "#! interpreter")
    holds(b"start again" not in done.stderr, done.stderr)


@test
def no_programs():
    """a file that is not a program is an error at once: it is never guessed to be a shell script, nor tried again"""
    for name, content in (("empty", b""), ("bare", b"echo run by a shell > trace\n"), ("noise", bytes(range(128, 256)) * 9)):
        write(name, content)
        os.chmod(name, 0o755)
        for path in (f"./{name}", name):
            done = run("-n", 2, "--max-restarts", 3, path, env=environment(PATH=os.environ["PATH"] + ":."), code=126)
            has(done.stderr, f"cannot start {path}: Exec format error", "#!", "ended with exit code 126")
            holds(b"start again" not in done.stderr, done.stderr)
    holds(not os.path.exists("trace"), "a file without #! was run by a shell")
    os.mkdir("folder")
    done = run("./folder", code=126)
    has(done.stderr, "./folder: Is a directory")


@test
def root_cause():
    """the report names the first failure, how it ended, its last lines, and which ranks failed because of it"""
    done = run("-n", 3, *shell('if [ $RANK = 1 ]; then seq -f "step %g" 1 30 >&2; kill -SEGV $$; fi; '
                               'trap "echo peer is gone >&2; exit 5" TERM; '
                               'while kill -0 $(cat pid.1 2>/dev/null || echo $$) 2>/dev/null; do sleep 0.05; done; '
                               'echo peer is gone >&2; exit 5'), code=128 + signal.SIGSEGV)
    report = [line for line in done.stderr.decode().splitlines() if line.startswith("tern: ")]
    has(report[0], "rank 1 (host ", "pid ", "was killed by SIGSEGV")
    has(report[0], " s after its start")
    same(report[1], "tern:   the last lines of its stderr:")
    same(report[2:22], [f"tern:     | step {i}" for i in range(11, 31)])


@test
def explained():
    """a rank that ends first, without a word, is not blamed for what another one says and ends with"""
    wait = "[ $RANK = 0 ] || { while [ ! -e ready ]; do sleep 0.02; done; rm ready; exit %d; }; "
    done = run("-n", 2, *shell(wait % 1 + 'trap "" TERM; touch ready; while [ -e ready ]; do sleep 0.02; done; sleep 0.2; '
                               'echo the file is missing >&2; exit 1'), code=1)
    has(done.stderr, "tern: rank 0 (host ", "ended with exit code 1", "    | the file is missing", "also rank 1 (host ")
    done = run("-n", 2, *shell(wait % 9 + 'trap "echo asked to stop >&2; exit 5" TERM; touch ready; while :; do sleep 0.02; done'), code=9)
    has(done.stderr, "tern: rank 1 (host ", "ended with exit code 9", "it wrote nothing to stderr")


@test
def followers():
    """of failures seen at the same time one by a signal comes first, and the others follow"""
    p = start("-n", 2, *shell('echo $$ > pid.$RANK; while [ ! -e go ]; do sleep 0.05; done; '
                              '[ $RANK = 1 ] || exit 5; while [ -e /proc/$(cat pid.0)/fd/0 ]; do sleep 0.05; done; kill -SEGV $$'))
    until(lambda: text("pid.0") and text("pid.1"), "both ranks run")
    p.send_signal(signal.SIGSTOP)
    go()
    until(lambda: all("State:\tZ" in text(f"/proc/{text(f'pid.{r}').strip()}/status") for r in range(2)), "both have ended")
    p.send_signal(signal.SIGCONT)
    finish(p, 128 + signal.SIGSEGV)
    report = [line for line in errors(p).splitlines() if "host" in line]
    has(report[0], "tern: rank 1 (host", "was killed by SIGSEGV")
    has(report[1], "tern:   then rank 0 (host", "ended with exit code 5")
    holds(", -" not in report[1], report[1])


@test
def binary_tail():
    """the report safely shows last lines that are not text, progress lines, and a line without newline"""
    done = run(*shell(r'printf "10%%\r20%%\rdone\n\033[31mred\033[0m\001\002\n%2000s\nlast" x >&2; exit 3'), code=3)
    lines = done.stderr.decode().splitlines()
    holds("tern:     | done" in lines and "tern:     | last" in lines and "tern:     | red??" in lines, done.stderr)
    holds(max(len(line) for line in lines if line.startswith("tern:")) < 500, "a long line is cut in the report")
    done = run(*shell("exit 143"), code=143)
    has(done.stderr, "ended with exit code 143, as after SIGTERM")
    done = run(*shell("exit 4"), code=4)
    has(done.stderr, "ended with exit code 4", "it wrote nothing to stderr")


@test
def restarts():
    """all ranks start again until there are no restarts left; the count is passed"""
    done = run("-n", 2, "--max-restarts", 2, *shell(
        'echo "$TERN_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS" >> said.$RANK; '
        'while [ $(cat said.* | wc -l) != $((2 * TERN_RESTART_COUNT + 2)) ]; do sleep 0.02; done; '
        '[ $RANK = 0 ] || exit 9; exec sleep 60'), code=9)
    for rank in range(2):
        same(text(f"said.{rank}"), "0 0 2\n1 1 2\n2 2 2\n")
    has(done.stderr, "restart 1 of 2", "restart 2 of 2", "rank 1 (host", "ended with exit code 9")
    same(done.stderr.count(b"ended with exit code 9"), 3)

    done = run("-n", 2, "--max-restarts", 1, *shell('[ $RANK = 0 ] || exit $((1 - TERN_RESTART_COUNT))'))

    for status in (64, 65, 126, 127):
        done = run("-n", 2, "--max-restarts", 3, *shell(f'[ $RANK = 0 ] || exec sleep 60; echo . >> refused.{status}; exit {status}'), code=status)
        same(text(f"refused.{status}"), ".\n")


@test
def rendezvous_port():
    """the port of the store is open, and nothing else can take it, as long as ranks run"""
    program = ("import os, socket\n"
               "at = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
               "socket.create_connection(at).close()\n"
               "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
               "try: s.bind(at); print('stolen')\n"
               "except OSError as e: print('kept')\n")
    port = free_port()
    done = run("--rdzv-endpoint", f"127.0.0.1:{port}", sys.executable, "-c", program + f"print(at[1] == {port})")
    same(done.stdout, b"[0] kept\n[0] True\n", done.stderr)
    same(run("-n", 2, sys.executable, "-c", program).stdout.count(b"kept"), 2)


@test
def log_files():
    """log files hold the ranks' bytes, per restart and rank, and are appended to, never cut"""
    args = ["-n", 2, "--max-restarts", 1, "--log-dir", "logs", "--rdzv-id", "night", *shell(
        'printf "out $RANK"; echo "err $RANK" >&2; echo "$TERN_FLIGHT_DIR" > flight.$RANK.$TERN_RESTART_COUNT; '
        'cd /; sleep 0.5; [ $TERN_RESTART_COUNT = 1 ]')]
    run(*args)
    for attempt in range(2):
        for rank in range(2):
            folder = f"logs/night/attempt_{attempt}/{rank}"
            same(text(f"{folder}/stdout.log"), f"out {rank}")
            same(text(f"{folder}/stderr.log"), f"err {rank}\n")
            same(os.path.realpath(text(f"flight.{rank}.{attempt}").strip()), os.path.realpath(folder))
    run(*args)
    same(text("logs/night/attempt_0/1/stderr.log"), "err 1\nerr 1\n")
    with open("file", "w", encoding="utf-8"):
        pass
    done = run("--log-dir", "file/x", "echo", "hello")
    same(done.stdout, b"[0] hello\n")
    has(done.stderr, "file/x", "rank 0 has no log files")


def begun(count):
    return lambda: all(text(f"begun.{r}") for r in range(count))


@test
def interrupts():
    """SIGTERM, SIGINT and SIGHUP reach the ranks, and are the exit code"""
    for name, code in (("TERM", 143), ("INT", 130), ("HUP", 129)):
        p = start("-n", 2, *shell(f'trap "echo got > got.{name}.$RANK; exit 0" {name}; echo x > begun.$RANK; '
                                  'while :; do sleep 0.05; done'))
        until(begun(2), "both ranks run")
        p.send_signal(getattr(signal, "SIG" + name))
        finish(p, code)
        same([text(f"got.{name}.{r}") for r in range(2)], ["got\n"] * 2)
        has(errors(p), f"SIG{name}")
        for rank in range(2):
            os.remove(f"begun.{rank}")


@test
def stubborn_ranks():
    """a rank that ignores SIGTERM, or is stopped, is killed after the grace"""
    p = start("-n", 2, "--grace", 0.5, *shell('trap "" TERM INT; echo x > begun.$RANK; [ $RANK = 0 ] || kill -STOP $$; '
                                              'while :; do sleep 0.05; done'))
    until(begun(2), "both ranks run")
    begin = time.monotonic()
    p.terminate()
    finish(p, 143)
    holds(time.monotonic() - begin >= 0.5, "the grace was kept")


@test
def interrupted_output():
    """a job that went well, but whose output was cut off by a signal, has failed"""
    import subprocess
    p = start("--grace", 0.5, *shell("head -c 150000 /dev/zero | tr '\\0' x; echo; echo x > end"), stdout=subprocess.PIPE)
    until(lambda: text("end"), "the rank has ended, and nothing reads its output")
    time.sleep(0.5)  # until the launcher notices it
    p.terminate()
    finish(p, 143)
    p.stdout.close()


@test
def impatience():
    """a second Ctrl-C ends the ranks at once"""
    p = start("--grace", 1000, *shell('trap "" TERM INT; echo x > begun.0; while :; do sleep 0.05; done'))
    until(begun(1), "the rank runs")
    p.send_signal(signal.SIGINT)
    until(lambda: "SIGINT" in errors(p), "the first signal is seen")
    p.send_signal(signal.SIGINT)
    finish(p, 130, 20)


@test
def twice():
    """a second SIGTERM, as where Slurm and another process send it, leaves the ranks their time"""
    p = start(*shell('trap "sleep 0.5; echo x > saved.0; exit 3" TERM; echo x > begun.0; while :; do sleep 0.05; done'))
    until(begun(1), "the rank runs")
    p.terminate()
    until(lambda: "SIGTERM" in errors(p), "the first signal is seen")
    p.terminate()
    finish(p, 143, 20)
    holds(os.path.exists("saved.0"), "the rank was killed")


@test
def other_signals():
    """SIGUSR1 is passed on to the ranks, and a silenced SIGHUP stays silenced"""
    p = start("-n", 2, *shell('trap "echo usr1 > got.$RANK" USR1; echo x > begun.$RANK; '
                              'while [ ! -e got.$RANK ]; do sleep 0.05; done'), prefix=["nohup"])
    until(begun(2), "both ranks run")
    p.send_signal(signal.SIGHUP)
    p.send_signal(signal.SIGUSR1)
    finish(p, 0)


@test
def standard_input():
    """ranks read nothing, whatever the launcher's stdin is; closed standard files do no harm"""
    done = run(*shell("cat; echo end"), input=b"text\n")
    same(done.stdout, b"[0] end\n")
    done = run(*shell("cat; echo end"), preexec_fn=lambda: os.close(0))
    same(done.stdout, b"[0] end\n")
    p = start(*shell("echo x > begun.0; echo lost"), preexec_fn=lambda: (os.close(1), os.close(2)))
    finish(p, 0)
    same(text("begun.0"), "x\n")


@test
def commands():
    """tern without run: help, version, info, and unknown commands"""
    same(tern("--version").split()[0], "tern")
    tern("help")
    has(tern("walk", code=64), '"walk"')
    has(tern("info", "--help"), "no options")
    tern("info", "more", code=64)
    has(tern("info"), "version", "build", "cores", "kernels", "local  yes")
    has(tern("run", "--help"), "--max-restarts", "RANK, WORLD_SIZE", "The exit status is 0 when")


@test
def full_output():
    """output that could not be printed is a failure of the command; a job runs to its end, and then reports it"""
    import subprocess
    with open("/dev/full", "wb") as full:
        for args in (["--version"], ["help"], ["info"], ["run", "--help"]):
            done = subprocess.run([TERN, *args], stdout=full, stderr=subprocess.PIPE, check=False, timeout=30)
            same(done.returncode, 1, args)
            has(done.stderr, "tern: stdout: ")
        p = start(*shell("for i in 1 2 3; do echo $i; sleep 0.1; done; echo x > end"), stdout=full)
        finish(p, 1)
        has(errors(p), "stdout: No space left on device")
        same(text("end"), "x\n")
        p = start(*shell("echo $RANK >&2"), stderr=full)
        finish(p, 1)
        p = start(*shell("echo 1; exit 7"), stdout=full)
        finish(p, 7)
    # A reader that has gone, `| true`: likewise, whether or not a shell has silenced SIGPIPE.
    for silent in (False, True):
        for args, code in ((["--version"], 1), (["info"], 1), (["plan", "--model", "gpt2", "--ranks", "2", "--tokens", "8192"], 1),
                           (["run", "--help"], 1), (["run", *shell("echo 1; echo x > end")], 1), (["run", *shell("echo 1; exit 7")], 7)):
            reading, writing = os.pipe()
            os.close(reading)
            done = subprocess.run([TERN, *args], stdout=writing, stderr=subprocess.PIPE, check=False, timeout=30, restore_signals=False,
                                  preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN if silent else signal.SIG_DFL))
            os.close(writing)
            killed = args[0] != "run" or args[1] == "--help"
            same(done.returncode, code if silent or not killed else -signal.SIGPIPE, (args, silent))
    same(text("end"), "x\n")


@test
def plain_words():
    """usage errors and a failed join have no escape sequences and no places in the command's own code"""
    for args, code in ((["--nnodes", "\x1b]0;x\x07\x1b[31m9", "true"], 64), (["no\x1b[31mprogram"], 127)):
        said = run(*args, code=code).stderr
        holds(b"9" in said or b"noprogram" in said, said)
        holds(b"\x1b" not in said and b"\x07" not in said, said)
    said = run("--nnodes", "1:2", "--node-rank", 1, "--timeout", 1, "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--token", "x", "true",
               code=1).stderr
    holds(b"found no store" in said and b"+0x" not in said and b".c:" not in said, said)


main()
