"""Two hosts that train together, one late, dead or out of reach; and `bert4rec doctor` on hosts that are broken."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fbgemm_gpu
import pytest

from bert4rec.checkpoint.run_folder import found
from bert4rec.config.tables import Config
from tests.clusters.namespaces import Host, network
from tests.fixture_types import Settings
from tests.launch import BIN, ROOT, Launched, report_of, settings_file, start, wait_for_either

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(900)]

FIVE_MINUTES = 300.0
LONG = {"training.n_epochs": 20}  # enough to be interrupted
PATIENCE = 0.5  # minutes without an answer; a report is written meanwhile, on two busy cores
UNSHARED = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # as docs/clusters.md says


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    with network(2, tmp_path) as both:
        yield both


def torchrun(host: Host, file: str, *options: str, n_processes: int = 1, **variables: str) -> Launched:
    """What docs/clusters.md has a person type on each host."""
    command = [
        "torchrun", "--nnodes=2", f"--nproc-per-node={n_processes}", "--rdzv-backend=c10d", "--rdzv-id=films",
        "--rdzv-endpoint=node-1:29400", *options, "train.py", file, "--resume=auto",
    ]  # fmt: skip
    return Launched(command, host.popen, **variables)


def unbroken(config: Config, folder: Path, n_processes: int = 2) -> dict[str, Any]:
    """The report of the same training on one host."""
    launcher = [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={n_processes}", "train.py"]
    done = start([*launcher, settings_file(config, folder)])
    assert done.returncode == 0, done.stderr
    return report_of(Path(config.run.dir) / config.run_name)


def wait_for_checkpoint(run: Path, launched: Launched) -> None:
    while not found(run / "checkpoints"):
        assert launched.process.poll() is None, launched.output
        time.sleep(0.05)


@pytest.mark.parametrize(("mode", "n_processes"), [("dmp", 1), ("ddp", 1), ("dmp", 2)])
def test_two_hosts_train_as_one(
    hosts: list[Host], small_config: Settings, tmp_path: Path, mode: str, n_processes: int
) -> None:
    settings = {"parallelism.mode": mode, "training.per_device_train_batch_size": 16 // n_processes}
    whole = unbroken(small_config(**settings, **{"run.name": "one"}), tmp_path, 2 * n_processes)
    file = settings_file(small_config(**settings, **{"run.name": "two"}), tmp_path)
    launched = [torchrun(host, file, n_processes=n_processes) for host in hosts]
    assert [each.end() for each in launched] == [0, 0], launched[0].output
    assert report_of(tmp_path / "runs" / "two") == whole
    said = [f"training on {2 * n_processes} processes" in each.output for each in launched]
    assert sorted(said) == [False, True]  # torchrun decides where the first process is


def test_what_differs_is_said_by_both_hosts(hosts: list[Host], small_config: Settings, tmp_path: Path) -> None:
    rates, launched = {"node-1": 0.001, "node-2": 0.01}, []
    for host in hosts:
        (tmp_path / host.name).mkdir()
        config = small_config(**{"training.learning_rate": rates[host.name]})
        launched.append(torchrun(host, settings_file(config, tmp_path / host.name)))
    assert [each.end() for each in launched] == [1, 1]
    differs = r"error: process 1 on (node-\d) differs from process 0 on (node-\d): "
    pattern = differs + r"training\.learning_rate = (\S+), not (\S+); "
    found = [re.findall(pattern, "\n".join(each.errors)) for each in launched]
    assert found[0] == found[1]
    ((second, first, other, one),) = found[0]
    assert {first: float(one), second: float(other)} == rates


class Broken:
    """A run on both hosts that has a checkpoint, and the report of the same training without a break."""

    def __init__(self, hosts: list[Host], make: Settings, folder: Path, *options: str, **changes: Any) -> None:
        self.whole = unbroken(make(**LONG, **{"run.name": "whole"}), folder)
        self._file = settings_file(make(**LONG, **{"run.name": "broken"}, **changes), folder)
        self._run, self._options = folder / "runs" / "broken", options
        self.launched = self.start(*hosts)
        wait_for_checkpoint(self._run, self.launched[0])

    def start(self, *hosts: Host) -> list[Launched]:
        unshared = UNSHARED if self._options else {}
        return [torchrun(host, self._file, *self._options, **unshared) for host in hosts]

    def assert_goes_on(self, launched: list[Launched]) -> None:
        assert [each.end() for each in launched] == [0, 0], "\n".join(each.output for each in launched)
        assert any("resumed after step " in each.output for each in launched)
        assert report_of(self._run) == self.whole


def test_a_host_that_died_comes_back_to_one_that_restarts(hosts: list[Host], make: Settings, tmp_path: Path) -> None:
    """Nobody touches the host that is left: torchrun starts its processes anew, and waits for the other one."""
    broken = Broken(hosts, make, tmp_path, "--max-restarts=3")
    stays, goes = broken.launched
    hosts[1].kill()
    goes.end()
    hosts[1].start()
    began = time.time()
    again = [stays, *broken.start(hosts[1])]
    resumed = wait_for_either(again, "resumed after step ")
    print(f"{resumed - began:.1f} s from the command on the host that came back until training went on")
    broken.assert_goes_on(again)


def test_hosts_that_restart_find_each_other_again(hosts: list[Host], make: Settings, tmp_path: Path) -> None:
    """Nobody touches either of them."""
    broken = Broken(hosts, make, tmp_path, "--max-restarts=3", **{"parallelism.timeout_minutes": PATIENCE})
    hosts[1].cut()
    cut = time.time()
    errors = [each.wait_for("error: ") for each in broken.launched]
    hosts[1].mend()
    mended = time.time()
    resumed = wait_for_either(broken.launched, "resumed after step ")
    said = ", ".join(f"{when - cut:.1f}" for when in errors)
    print(f"the error {said} s after the cut; training went on {resumed - mended:.1f} s after it was mended")
    broken.assert_goes_on(broken.launched)


@pytest.mark.parametrize("loss", ["killed", "cut"])
def test_the_command_typed_again_goes_on(hosts: list[Host], make: Settings, tmp_path: Path, loss: str) -> None:
    broken = Broken(hosts, make, tmp_path, **{"parallelism.timeout_minutes": PATIENCE})
    lost, host = time.time(), hosts[1]
    left = broken.launched if loss == "cut" else broken.launched[:1]
    (host.cut if loss == "cut" else host.kill)()
    said = ", ".join(f"{each.wait_for('error: ') - lost:.1f}" for each in left)
    (host.mend if loss == "cut" else host.start)()
    assert [each.end() for each in left] == [1] * len(left)
    print(f"{loss}: said after {said} s; all had ended after {time.time() - lost:.1f} s")
    assert [len(each.errors) for each in left] == [1] * len(left), left[0].output
    broken.assert_goes_on(broken.start(*hosts))


@pytest.mark.parametrize("number", [0, 1], ids=["with the store", "without the store"])
def test_both_hosts_save_when_a_launcher_is_killed(
    hosts: list[Host], make: Settings, tmp_path: Path, number: int
) -> None:
    """Its processes notice it, and tell those of the other host."""
    broken = Broken(hosts, make, tmp_path)
    launched, killed = broken.launched, time.time()
    hosts[number].do("pkill --signal KILL --full '[t]orchrun'")
    assert [each.end() for each in launched] == [-9 if each is launched[number] else 1 for each in launched]
    print(f"all had ended after {time.time() - killed:.1f} s")
    assert sum("stopped by SIGTERM: saved after step " in each.output for each in launched) == 1, launched[0].output
    assert "the launcher of this run has ended" in launched[number].output
    broken.assert_goes_on(broken.start(*hosts))


def test_a_host_that_comes_five_minutes_late_is_waited_for(
    hosts: list[Host], small_config: Settings, tmp_path: Path
) -> None:
    """Started without torchrun, by variables alone, as platforms do."""
    file = settings_file(small_config(**{"run.name": "late"}), tmp_path)

    def run(rank: int) -> Launched:
        given = {"RANK": f"{rank}", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        given |= {"MASTER_ADDR": "node-1", "MASTER_PORT": "29500"}
        return Launched(["python", "train.py", file], hosts[rank].popen, **given)

    first = run(0)
    time.sleep(FIVE_MINUTES)
    assert first.output.count("waiting for process 1 of 2") == 1
    second = run(1)
    assert [first.end(), second.end()] == [0, 0], first.output
    assert (tmp_path / "runs" / "late" / "report.json").exists()


def test_a_run_folder_belongs_to_one_of_two_hosts(hosts: list[Host], make: Settings, tmp_path: Path) -> None:
    file, run = settings_file(make(**{"run.name": "shared"}), tmp_path), tmp_path / "runs" / "shared"
    working = Launched(["python", "train.py", file], hosts[0].popen)
    wait_for_checkpoint(run, working)
    other = Launched(["python", "train.py", file, f"--resume={run}"], hosts[1].popen)
    assert other.end() == 2
    assert re.search(rf"error: {run}: another job .*node-1.* uses this folder", other.output), other.output
    assert working.end() == 0


LIBRARY = Path(fbgemm_gpu.__path__[0]) / "fbgemm_gpu_py.so"


@pytest.mark.parametrize(
    ("breaking", "bad"),
    [
        ("true", []),
        (f"mount --bind /dev/null {LIBRARY}", ["torch, torchrec, fbgemm: "]),
        ("mount -t tmpfs -o size=1m tmpfs /dev/shm", ["shared memory: 1 MiB free in /dev/shm, less than 64"]),
        ("ulimit -n 64", ["open files: at most 64 a process, less than the 100 "]),
        ("hostname nowhere-else", ["gloo: two processes have not met within "]),
    ],
    ids=["whole", "fbgemm", "shared memory", "open files", "host name"],
)
def test_what_is_wrong_is_said(small_config: Settings, tmp_path: Path, breaking: str, bad: list[str]) -> None:
    file = settings_file(small_config(), tmp_path)
    command = f"cd {tmp_path} && {breaking} && cd {ROOT} && exec {sys.executable} -m bert4rec doctor {file}"
    done = start(["unshare", "--uts", "--mount", "bash", "-c", command])
    found = [line.removeprefix("BAD   ") for line in done.stdout.splitlines() if line.startswith("BAD")]
    assert [line[: len(begin)] for line, begin in zip(found, bad, strict=True)] == bad, done.stdout
    assert done.returncode == (1 if bad else 0), done.stderr
    print("\n".join(found))
