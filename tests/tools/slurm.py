"""A Slurm of our own: slurmctld and two nodes on this machine, while a test needs them. Skips the test if that is not
possible."""
import os
import socket
import subprocess
import time

from launch import Skip, environment, free_port, need, until, write

CONFIGURATION = """
ClusterName=tern
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
SlurmUser=root
ReturnToService=2
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 Gres=gpu:2
PartitionName=p Nodes=n1,n2 Default=YES State=UP
"""


class Slurm:
    """A controller and two nodes on this machine."""

    def __enter__(self):
        need("srun", "slurmctld", "slurmd")
        if os.geteuid() != 0:
            raise Skip("a Slurm of our own needs root")
        folder = os.getcwd()
        os.mkdir("state")
        write("slurm.conf", CONFIGURATION.format(host=socket.gethostname(), folder=folder, ports=[free_port() for _ in range(3)]))
        # Two GPUs on each node, as far as Slurm can tell: it looks only for devices.
        write("gres.conf", "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        self.env = environment(SLURM_CONF=os.path.join(folder, "slurm.conf"))
        commands = [["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]]
        with open("daemons.log", "wb") as log:
            self.daemons = [subprocess.Popen(c, env=self.env, stdout=log, stderr=log) for c in commands]
        try:
            until(self.is_up, "Slurm's nodes are idle", 30)
        except AssertionError as why:
            self.__exit__()
            raise Skip(f"slurmctld does not start here: {why}") from why
        return self

    def is_up(self):
        time.sleep(0.2)
        p = subprocess.run(["sinfo", "-h", "-o", "%t %D"], env=self.env, capture_output=True, check=False)
        return p.stdout.strip() == b"idle 2"

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
