"""Two hosts, as two torchruns on this machine: what differs between them ends both with one line, promptly."""

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import preprocessing
from bert4rec.config.tables import Config
from tests.conftest import SMALL
from tests.end_to_end.test_scripts import BIN, ROOT, settings_file

PROMPTLY = 10.0  # seconds
# Python runs this first: it notes when a training process has last imported a part of the program, which is when it is
# about to meet the others, and pretends another version of torch.
SITE = """
import os, sys, time

def note(event, arguments):
    if event == "import" and arguments[0].startswith("bert4rec.") and "RANK" in os.environ:
        with open(os.path.join({folder!r}, os.environ["RANK"]), "w") as file:
            file.write(str(time.time()))

sys.addaudithook(note)
if {version!r} and "RANK" in os.environ:
    import torch
    torch.__version__ = {version!r}
"""
DIFFERS = "process {rank} on {host} differs from process 0 on {host}: "


class Host:
    """A torchrun, the second of two for `rank` 1; its lines, each with the time at which it came."""

    def __init__(
        self, rank: int, port: int, arguments: Sequence[str], folder: Path, *, n_processes: int, version: str = ""
    ) -> None:
        site = folder / f"host{rank}"
        site.mkdir()
        (site / "sitecustomize.py").write_text(SITE.format(folder=str(folder), version=version))
        variables = {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(site), "CUDA_VISIBLE_DEVICES": ""}
        launcher = [
            str(BIN / "torchrun"), "--nnodes=2", f"--node-rank={rank}", f"--nproc-per-node={n_processes}",
            "--master-addr=localhost", f"--master-port={port}", "train.py",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            [*launcher, *arguments], cwd=ROOT, env=os.environ | variables, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend((time.time(), line.rstrip("\n")) for line in self.process.stdout)

    def end(self) -> str:
        """All that was printed; a torchrun that hangs is ended."""
        try:
            self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            raise
        finally:
            self._reader.join()
        return "\n".join(line for _, line in self.lines)


@pytest.fixture
def run_hosts(small_config: Callable[..., Config], tmp_path: Path) -> Callable[..., list[Host]]:
    """Both hosts with the same settings file, the second with `changes` besides; when both have ended."""

    def run(*changes: str, n_processes: int = 1, version: str = "") -> list[Host]:
        file = settings_file(small_config(**{"run.dir": str(tmp_path / "runs")}), tmp_path)
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        hosts = [
            Host(0, port, [file], tmp_path, n_processes=n_processes),
            Host(1, port, [file, *changes], tmp_path, n_processes=n_processes, version=version),
        ]
        with ExitStack() as ended:  # both, also where one hangs
            for host in hosts:
                ended.callback(host.end)
        return hosts

    return run


def assert_one_line_each(hosts: list[Host], expected: str, folder: Path) -> None:
    """The same on both, soon after all processes were there; no run was begun."""
    n_processes = len(list(folder.glob("[0-9]")))
    all_there = max(float((folder / str(rank)).read_text()) for rank in range(n_processes))
    for host in hosts:
        errors = [(when, line) for when, line in host.lines if "error: " in line]
        assert [line for _, line in errors] == [f"error: {expected}"], host.end()
        assert errors[0][0] - all_there < PROMPTLY
        assert host.process.returncode == 1
        assert host.end().count("Traceback") <= 1  # torchrun's own
        print(f"{errors[0][0] - all_there:.2f} s after all processes were there: {errors[0][1]}")
    assert not (folder / "runs").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "difference", "n_processes"),
    [
        ("training.learning_rate=0.01", "training.learning_rate = 0.01, not 0.001", 1),
        ("training.per_device_train_batch_size=8", "training.per_device_train_batch_size = 8, not 16", 2),
    ],
)
def test_other_settings(
    run_hosts: Callable[..., list[Host]], tmp_path: Path, change: str, difference: str, n_processes: int
) -> None:
    hosts = run_hosts(f"--{change}", n_processes=n_processes)
    more = " (1 more process differs)" if n_processes == 2 else ""
    differs = DIFFERS.format(rank=n_processes, host=socket.gethostname())
    assert_one_line_each(hosts, f"{differs}{difference}; start all hosts with the same settings{more}", tmp_path)


@pytest.mark.long
def test_another_version_of_torch(run_hosts: Callable[..., list[Host]], tmp_path: Path) -> None:
    hosts = run_hosts(version="2.13.0+cu999")
    differs = DIFFERS.format(rank=1, host=socket.gethostname())
    versions = f'torch = "2.13.0+cu999", not "{torch.__version__}"'
    assert_one_line_each(hosts, f"{differs}{versions}; install the same versions on all hosts", tmp_path)


@pytest.mark.long
def test_another_dataset(
    run_hosts: Callable[..., list[Host]], small_config: Callable[..., Config], tmp_path: Path
) -> None:
    """Made with the same settings of another log."""
    other = tmp_path / "other"
    arguments = [f"--{key}={value}" for key, value in (SMALL | {"data.n_users": 61}).items()]
    assert preprocessing.main(["--config=config.toml", f"--data.dataset_dir={other}", *arguments]) == 0
    hosts = run_hosts(f"--data.dataset_dir={other}")
    differs = DIFFERS.format(rank=1, host=socket.gethostname())
    names = [fingerprint(folder) for folder in (other, small_config().data.folder)]
    difference = f'dataset (fingerprint) = "{names[0]}", not "{names[1]}"'
    advice = "make the dataset once and copy its folder to all hosts"
    assert_one_line_each(hosts, f"{differs}{difference}; {advice}", tmp_path)


def fingerprint(folder: Path) -> str:
    return str(json.loads((folder / "metadata.json").read_text())["fingerprint"][:12])


@pytest.mark.long
def test_no_dataset_on_one_host(run_hosts: Callable[..., list[Host]], tmp_path: Path) -> None:
    hosts = run_hosts("--data.dataset_dir=nowhere")
    missing = "nowhere: no dataset folder (no metadata.json); run `bert4rec prepare` with these settings first"
    assert_one_line_each(hosts, f"process 1 on {socket.gethostname()}: {missing}", tmp_path)


@pytest.mark.long
def test_a_wrong_setting_on_one_host(run_hosts: Callable[..., list[Host]], tmp_path: Path) -> None:
    """Which is found before torch is there; and all of that host's processes find it."""
    hosts = run_hosts("--training.n_epoch=3", n_processes=2)
    wrong = "--training.n_epoch: no such option; did you mean --training.n_epochs? --help lists all"
    expected = f"process 2 on {socket.gethostname()}: {wrong} (1 more process has failed)"
    assert_one_line_each(hosts, expected, tmp_path)


@pytest.mark.long
def test_the_same_dataset_in_another_place_is_trained(
    run_hosts: Callable[..., list[Host]], small_config: Callable[..., Config], tmp_path: Path
) -> None:
    shutil.copytree(small_config().data.folder, tmp_path / "copy")
    hosts = run_hosts(f"--data.dataset_dir={tmp_path / 'copy'}", "--data.source=random", "--run.name=elsewhere")
    assert [host.process.returncode for host in hosts] == [0, 0], hosts[0].end()
    assert f"report: {tmp_path / 'runs' / 'synthetic-dmp' / 'report.html'}" in hosts[0].end()
    assert [line for _, line in hosts[1].lines if "error: " in line] == []
