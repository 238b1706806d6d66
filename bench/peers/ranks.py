"""A worker (duel.py) that is several processes."""
import os
import secrets
import socket

import duel


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ranks:
    """A line goes to all ranks; the loss is their mean, the times are those of rank 0."""

    def __init__(self, command, ranks, threads=1):
        job = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
               "TERN_TOKEN": secrets.token_hex(16)}
        self.workers, self.size = [], ranks
        for rank in range(ranks):
            os.environ.update({k: str(v) for k, v in {**job, "RANK": rank, "LOCAL_RANK": rank}.items()})
            self.workers.append(duel.Worker(command, threads, bind=ranks == 1))
        for name in [*job, "RANK", "LOCAL_RANK"]:
            del os.environ[name]

    def ask_all(self, line):
        for w in self.workers:
            w.tell(line)
        return [w.hear() for w in self.workers]

    def run(self, n):
        answers = self.ask_all(f"run {n}")
        return sum(loss for loss, *_ in answers) / len(answers), answers[0][1:]

    def ask(self, line):
        """The numbers of all ranks, added up."""
        return [sum(x) for x in zip(*self.ask_all(line))]

    def close(self):
        """Ends the ranks; self.reports is then what each of them reported, an empty list if nothing."""
        for w in self.workers:
            w.process.stdin.close()
        self.reports = [[float(x) for x in w.process.stdout.readline().split()] for w in self.workers]
        for w in self.workers:
            w.process.wait()
