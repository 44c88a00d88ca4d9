"""SLURM with two nodes on this machine, from Debian's packages ``slurm-wlm`` and ``munge``.

    python tests/support/slurm_cluster.py bash

runs a command on this cluster, and stops the cluster when the command ends. The cluster belongs to
the user who starts it, needs no rights of root, and leaves this machine's own settings of SLURM
alone. ``FEDEXP_SLURM`` may name a folder into which the packages are unpacked (``dpkg -x``), for
machines that should not have them installed.
"""

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(os.environ.get("FEDEXP_SLURM", "/"))
NODES = ("fedexp1", "fedexp2")
"""The nodes' names, which no machine can resolve."""

_PROGRAMS = ("munged", "slurmctld", "slurmd", "slurmstepd", "srun", "squeue")
_PATIENCE_S = 60.0
_NODE = "FEDEXP_NODE"
"""Environment variable by which the processes of a node's daemon are known."""

_SETTINGS = """
ClusterName=fedexp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
# A job that is queued again waits for as long as cred_expire.
AuthInfo=socket={folder}/munge,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
# A node that is silent for ten seconds counts as dead.
SlurmdTimeout=10
KillWait=10
# Both nodes are this machine, and pretend to have four cores each.
SlurmdParameters=config_overrides
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=8000
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=8000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE
PartitionName=short Nodes=ALL MaxTime=1
"""


class Cluster:
    """The daemons of SLURM, each in the foreground with a log in ``folder``.

    Attributes:
        environment: the environment variables with which SLURM's commands reach this cluster.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        libraries = [str(path) for path in (*ROOT.glob("usr/lib/*"), *_plugins()) if path.is_dir()]
        self.environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{ROOT / 'usr/bin'}:{os.environ['PATH']}",
        }
        if Path("/") != ROOT:
            self.environment["LD_LIBRARY_PATH"] = ":".join(libraries)

    def ask(self, *command: str) -> str:
        """What a command of SLURM prints, such as ``squeue --noheader``."""
        return subprocess.run(
            command, env=self.environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()

    def start(self, name: str, program: str, *arguments: str) -> None:
        """Start a daemon."""
        environment = self.environment | {_NODE: name}
        with (self._folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [_path(program), *arguments], env=environment, stdout=log, stderr=log
            )

    def start_node(self, name: str) -> None:
        self.start(name, "slurmd", "-D", "-N", name, "-d", _path("slurmstepd"))

    def kill_node(self, name: str) -> None:
        """End a node like a loss of power: its daemon, and all processes of its jobs."""
        self.kill(f"{_NODE}={name}")
        self.kill(f"SLURMD_NODENAME={name}")
        self._daemons.pop(name).wait()

    def kill(self, *variables: str) -> None:
        """Kill all processes of this cluster that have these environment variables."""
        wanted = {f"SLURM_CONF={self.environment['SLURM_CONF']}", *variables}
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended since
                if wanted <= set(path.read_text(errors="replace").split("\0")):
                    os.kill(int(path.parent.name), signal.SIGKILL)

    def stop(self, name: str) -> None:
        """End a daemon, with SIGKILL if it does not end by itself."""
        process = self._daemons.pop(name)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()

    def stop_all(self) -> None:
        """End all jobs, then the daemons, the last one first."""
        with suppress(subprocess.CalledProcessError, TimeoutError):
            self.ask("scancel", f"--user={getpass.getuser()}")
            until(lambda: not self.ask("squeue", "--noheader"))
        for name in reversed(list(self._daemons)):
            self.stop(name)


def missing() -> list[str]:
    """The programs of SLURM and munge that this machine does not have."""
    return [each for each in _PROGRAMS if not _path(each)]


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Start the cluster with all its files in ``folder``; stop it when the block ends."""
    folder.chmod(0o755)
    for name in ("state", *NODES):
        (folder / name).mkdir()
    key, munge = folder / "key", folder / "munge"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    (folder / "slurm.conf").write_text(_settings(folder))
    cluster = Cluster(folder)
    with ExitStack() as stack:
        stack.callback(cluster.stop_all)
        files = (f"--{each}-file={folder / each}" for each in ("key", "pid", "seed"))
        cluster.start("munged", "munged", "--foreground", "--force", f"--socket={munge}", *files)
        until(munge.exists)
        cluster.start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            cluster.start_node(node)
        until(lambda: cluster.ask("sinfo", "-h", "-t", "idle", "-o", "%D") == str(len(NODES)))
        yield cluster


def until(true: Callable[[], bool], patience_s: float = _PATIENCE_S) -> None:
    """Wait until ``true()`` is so. Raises TimeoutError after ``patience_s`` seconds."""
    end = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {patience_s:g} s in vain")
        time.sleep(0.2)


def _settings(folder: Path) -> str:
    """The content of ``slurm.conf``."""
    host, user = socket.gethostname(), getpass.getuser()
    values = {"folder": folder, "host": host, "user": user, "nodes": NODES}
    plugins = [f"PluginDir={path}" for path in _plugins() if Path("/") != ROOT]
    return "\n".join([_SETTINGS.format(ports=_free_ports(3), **values), *plugins, ""])


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _path(program: str) -> str:
    """The file of a program, which Debian gives a longer name; empty if there is none."""
    folders = os.pathsep.join(str(ROOT / each) for each in ("usr/bin", "usr/sbin"))
    return shutil.which(program, path=folders) or shutil.which(f"{program}-wlm", path=folders) or ""


def _plugins() -> list[Path]:
    return sorted(ROOT.glob("usr/lib/*/slurm-wlm"))


if __name__ == "__main__":
    if absent := missing():
        raise SystemExit(f"{ROOT}: has no {', '.join(absent)}; apt-get install slurm-wlm munge")
    with TemporaryDirectory(prefix="fedexp-slurm-") as name, running_cluster(Path(name)) as made:
        raise SystemExit(subprocess.run(sys.argv[1:], env=made.environment).returncode)
