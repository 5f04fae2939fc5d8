"""Hosts on this machine: namespaces on one bridge, each with a name, an address, cores and processes of its own.

Linux, iproute2, util-linux, and root, or a user namespace (`unshare --user --map-root-user`), is what it takes.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

NETWORK = "10.97.0"  # in namespaces alone: it meets no network of the machine
OWN = ["--net", "--uts", "--mount", "--pid"]  # the namespaces of a host
WITH_US = ["setpriv", "--pdeathsig", "KILL"]  # the kernel ends what this process has started, should it be killed
UNSHARE = [*WITH_US, "unshare"]


class Host:
    """A namespace that `start` makes and `kill` ends, with all its processes, as when the power fails."""

    def __init__(self, number: int, switch: int, names: Path, cores: Sequence[int]) -> None:
        self.name, self.address = f"node-{number}", f"{NETWORK}.{number}"
        self._switch, self._names, self._cores = switch, names, ",".join(map(str, cores))
        self._init: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._init = _first_process([*OWN, "--fork", "--kill-child", "--mount-proc"])
        link = f"to-{self.name}"
        _within(self._switch, f"ip link add {link} type veth peer name eth0 netns {self.pid}")
        _within(self._switch, f"ip link set {link} master bridge up")
        self.do(
            f"hostname {self.name} && mount --bind {self._names} /etc/hosts && ip link set lo up && "
            f"ip address add {self.address}/24 dev eth0 && ip link set eth0 up"
        )

    @property
    def pid(self) -> int:
        """Of the first process within, as the machine counts."""
        assert self._init is not None
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()
        return int(children[0])

    def do(self, command: str) -> None:
        subprocess.run([*self._enter(), "sh", "-c", command], check=True, capture_output=True)

    def popen(self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> "subprocess.Popen[str]":
        """Start a command within; stdout and stderr in one pipe."""
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        on_its_cores = ["taskset", "--cpu-list", self._cores, *command]
        return subprocess.Popen([*self._enter(), f"--wd={cwd}", *on_its_cores], env=env, **options)

    def cut(self) -> None:
        """Pull the cable: nothing arrives any more, and nobody is told."""
        _within(self._switch, f"ip link set to-{self.name} down")

    def mend(self) -> None:
        _within(self._switch, f"ip link set to-{self.name} up")

    def kill(self) -> None:
        if self._init is not None:
            os.kill(self.pid, signal.SIGKILL)
            self._init.wait()  # for all of them: the last thing that others hear is that connections are closed
            self._init = None
            _within(self._switch, f"ip link delete to-{self.name} || true")  # it may go by itself, at some time

    def _enter(self) -> list[str]:
        return ["nsenter", f"--target={self.pid}", *OWN]


@contextmanager
def network(n_hosts: int, folder: Path) -> Iterator[list[Host]]:
    """`n_hosts` that are up and know one another by name; the file of names is in `folder`."""
    with ExitStack() as ending:
        switch = _first_process(["--net"])
        ending.callback(switch.wait)
        ending.callback(switch.kill)
        _within(switch.pid, "ip link add bridge type bridge && ip link set bridge up")
        names, cores = folder / "hosts", sorted(os.sched_getaffinity(0))
        shares = [cores[number::n_hosts] or cores for number in range(n_hosts)]
        hosts = [Host(number, switch.pid, names, share) for number, share in enumerate(shares, start=1)]
        lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in hosts)]
        names.write_text("\n".join(lines) + "\n")
        for host in hosts:
            ending.callback(host.kill)
            host.start()
        yield hosts


def _first_process(options: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Make namespaces, and return the process that holds them, once they are there: it has written a line then."""
    command = [*UNSHARE, *options, "sh", "-c", "echo; exec sleep infinity"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # it complains of its end
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline(), f"{process.stderr.read().decode()}root, or a user namespace, is what it takes"
    return process


def _within(pid: int, command: str) -> None:
    subprocess.run(["nsenter", f"--target={pid}", "--net", "sh", "-c", command], check=True, capture_output=True)
