"""Two hosts, as two torchruns on this machine: what differs between them ends both with one line, promptly."""

import json
import shutil
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import preprocessing
from tests.conftest import SMALL
from tests.fixture_types import Settings
from tests.launch import BIN, Launched, settings_file

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


def host(
    rank: int, port: int, arguments: Sequence[str], folder: Path, *, n_processes: int, version: str = ""
) -> Launched:
    """Start a torchrun, the second of two for `rank` 1."""
    site = folder / f"host{rank}"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE.format(folder=str(folder), version=version))
    launcher = [
        str(BIN / "torchrun"), "--nnodes=2", f"--node-rank={rank}", f"--nproc-per-node={n_processes}",
        "--master-addr=localhost", f"--master-port={port}", "train.py",
    ]  # fmt: skip
    return Launched([*launcher, *arguments], PYTHONPATH=str(site))


@pytest.fixture
def run_hosts(small_config: Settings, tmp_path: Path) -> Callable[..., list[Launched]]:
    """Both hosts with the same settings file, the second with `changes` besides; when both have ended."""

    def run(*changes: str, n_processes: int = 1, version: str = "") -> list[Launched]:
        file = settings_file(small_config(**{"run.dir": str(tmp_path / "runs")}), tmp_path)
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        hosts = [
            host(0, port, [file], tmp_path, n_processes=n_processes),
            host(1, port, [file, *changes], tmp_path, n_processes=n_processes, version=version),
        ]
        with ExitStack() as ended:  # both, also where one hangs
            for each in hosts:
                ended.callback(each.end, 120)
        return hosts

    return run


def assert_one_line_each(hosts: list[Launched], named: Sequence[str], folder: Path) -> None:
    """The same on both, soon after all processes were there; no run was begun."""
    n_processes = len(list(folder.glob("[0-9]")))
    all_there = max(float((folder / str(rank)).read_text()) for rank in range(n_processes))
    for each in hosts:
        ((when, line),) = [(when, line) for when, line in each.lines if line.startswith("error: ")]
        assert [text for text in named if text not in line] == [], line
        assert when - all_there < PROMPTLY
        assert each.process.returncode == 1
        assert each.output.count("Traceback") <= 1  # torchrun's own
        print(f"{when - all_there:.2f} s after all processes were there: {line}")
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
    run_hosts: Callable[..., list[Launched]], tmp_path: Path, change: str, difference: str, n_processes: int
) -> None:
    hosts = run_hosts(f"--{change}", n_processes=n_processes)
    assert_one_line_each(hosts, [f"process {n_processes} on {socket.gethostname()}", difference], tmp_path)


@pytest.mark.long
def test_another_version_of_torch(run_hosts: Callable[..., list[Launched]], tmp_path: Path) -> None:
    versions = f'torch = "2.13.0+cu999", not "{torch.__version__}"'
    assert_one_line_each(run_hosts(version="2.13.0+cu999"), ["process 1 on ", versions], tmp_path)


@pytest.mark.long
def test_another_dataset(run_hosts: Callable[..., list[Launched]], small_config: Settings, tmp_path: Path) -> None:
    """Made with the same settings of another log."""
    other = tmp_path / "other"
    arguments = [f"--{key}={value}" for key, value in (SMALL | {"data.n_users": 61}).items()]
    assert preprocessing.main(["--config=config.toml", f"--data.dataset_dir={other}", *arguments]) == 0
    folders = other, small_config().data.folder
    names = [json.loads((folder / "metadata.json").read_text())["fingerprint"][:12] for folder in folders]
    hosts = run_hosts(f"--data.dataset_dir={other}")
    assert_one_line_each(hosts, ["process 1 on ", f'"{names[0]}", not "{names[1]}"'], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "n_processes", "named"),
    [
        ("--data.dataset_dir=nowhere", 1, "nowhere: "),
        ("--training.n_epoch=3", 2, "--training.n_epochs?"),  # which is found before torch is there
    ],
)
def test_an_error_on_one_host(
    run_hosts: Callable[..., list[Launched]], tmp_path: Path, change: str, n_processes: int, named: str
) -> None:
    hosts = run_hosts(change, n_processes=n_processes)
    assert_one_line_each(hosts, [f"process {n_processes} on {socket.gethostname()}: ", named], tmp_path)


@pytest.mark.long
def test_the_same_dataset_in_another_place_is_trained(
    run_hosts: Callable[..., list[Launched]], small_config: Settings, tmp_path: Path
) -> None:
    shutil.copytree(small_config().data.folder, tmp_path / "copy")
    hosts = run_hosts(f"--data.dataset_dir={tmp_path / 'copy'}", "--data.source=random", "--run.name=elsewhere")
    assert [each.process.returncode for each in hosts] == [0, 0], hosts[0].output
    assert f"report: {tmp_path / 'runs' / 'small' / 'report.html'}" in hosts[0].output
    assert "error: " not in hosts[1].output
