"""A Slurm of two nodes on this machine: its own munge, database, accounting and controller, in one temporary folder.

Each node is a slurmd in namespaces of its own, with a name and an address that jobs on it can look up; the file of
names, too, is seen there alone. No process outlives the one that has started it, however that ends.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.clusters.namespaces import UNSHARE, WITH_US

Start = Callable[[Sequence[str], Callable[[], bool]], None]

NODES = {"node1": "127.0.0.11", "node2": "127.0.0.12"}
PROGRAMS = ("munged", "mariadb-install-db", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "unshare", "setpriv")
AS_A_NODE = [*UNSHARE, "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]

DATABASE = """\
DbdHost=localhost
DbdPort={dbd_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""
# cred_expire is also how long a job waits that was put back (120 seconds where nothing is said). Heterogeneous jobs,
# which torchx submits, are started by the backfill scheduler alone. No cgroups: a machine may not let a test make them.
CLUSTER = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={dbd_port}
AccountingStoragePass={folder}/munge/socket
JobAcctGatherType=jobacct_gather/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=bf_interval=1,sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
{nodes}
PartitionName=usual Nodes=ALL Default=YES PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""
NODE = "NodeName={name} NodeAddr={address} NodeHostname={name} Port={port} CPUs=2 RealMemory=8000"


@contextmanager
def slurm_cluster() -> Iterator[Path]:
    """Both nodes up and idle; the file for `SLURM_CONF`, in a folder in which all logs are."""
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    assert not missing, f"not on PATH: {', '.join(missing)}; `make test-slurm`, as root, installs them"
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, ExitStack() as ending:
        folder = Path(name)
        folder.chmod(0o755)  # munge wants its socket to be within reach of all
        settings = _configure(folder)
        environment = os.environ | {"SLURM_CONF": str(settings), "MYSQL_UNIX_PORT": str(folder / "database.socket")}

        def start(command: Sequence[str], is_ready: Callable[[], bool]) -> None:
            log = (folder / "daemons.log").open("ab")
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            ending.callback(_end, process)
            _wait_for(is_ready, process, folder)

        _start_authentication(folder, start)
        _start_database(folder, start)
        start([*WITH_US, "slurmdbd", "-D"], lambda: "started" in _text(folder / "slurmdbd.log"))
        start([*WITH_US, "slurmctld", "-D"], lambda: _states(environment) != [])
        for node in NODES:
            become = f"hostname {node} && mount --bind {folder}/hosts /etc/hosts && slurmd -D -N {node}; exit"
            start([*AS_A_NODE, become], lambda: True)
        _wait_for(lambda: _states(environment) == ["idle", "idle"], None, folder)
        yield settings


def _configure(folder: Path) -> Path:
    for name in ("munge", "database", "controller"):
        (folder / name).mkdir(mode=0o755)
    port, dbd_port, *node_ports = _free_ports(2 + len(NODES))
    named = zip(NODES.items(), node_ports, strict=True)
    nodes = "\n".join(NODE.format(name=name, address=place, port=node_port) for (name, place), node_port in named)
    (folder / "slurm.conf").write_text(CLUSTER.format(folder=folder, port=port, dbd_port=dbd_port, nodes=nodes))
    (folder / "slurmdbd.conf").write_text(DATABASE.format(folder=folder, dbd_port=dbd_port))
    (folder / "slurmdbd.conf").chmod(0o600)
    names = "".join(f"{address} {name}\n" for name, address in NODES.items())
    (folder / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n{names}")
    return folder / "slurm.conf"


def _start_authentication(folder: Path, start: Start) -> None:
    munge = folder / "munge"
    (munge / "key").write_bytes(os.urandom(128))
    (munge / "key").chmod(0o600)
    socket, places = munge / "socket", [f"--{name}-file={munge / name}" for name in ("key", "pid", "seed", "log")]
    start([*WITH_US, "munged", "--foreground", f"--socket={socket}", *places], socket.exists)


def _start_database(folder: Path, start: Start) -> None:
    """MariaDB, whose root needs no password: it is reached by a socket only."""
    common, socket = ["--no-defaults", "--user=root", f"--datadir={folder / 'database'}"], folder / "database.socket"
    quiet = ["--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(["mariadb-install-db", *common, *quiet], check=True, capture_output=True)
    start([*WITH_US, "mariadbd", *common, "--skip-networking", f"--socket={socket}"], socket.exists)


def _states(environment: dict[str, str]) -> list[str]:
    """Of the nodes; none where the controller does not answer."""
    command = ["sinfo", "--noheader", "--Node", "--partition=usual", "--format=%T"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.split()


def _wait_for(is_ready: Callable[[], bool], process: "subprocess.Popen[bytes] | None", folder: Path) -> None:
    give_up = time.monotonic() + 120
    while not is_ready():
        assert process is None or process.poll() is None, _text(folder / "daemons.log")
        assert time.monotonic() < give_up, _text(folder / "daemons.log")
        time.sleep(0.2)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()  # at once: what it leaves is thrown away, and with a node all ends that runs on it
    process.wait()


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _free_ports(number: int) -> list[int]:
    with ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(number)]
        for probe in sockets:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in sockets]
