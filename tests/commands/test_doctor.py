"""`bert4rec doctor`: a line a check, and a status."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bert4rec.__main__ import main
from bert4rec.doctor import exchange, installation
from bert4rec.doctor.finding import Finding
from tests.conftest import SMALL

OPTIONS = [f"--{key}={value}" for key, value in SMALL.items()]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What has tests of its own takes no time here; an empty folder without a settings file."""

    def met() -> Iterator[Finding]:
        yield Finding("gloo", "met")

    monkeypatch.setattr(exchange, "exchange", met)
    monkeypatch.chdir(tmp_path)


def test_all_is_good(small_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--processes=2", *OPTIONS, f"--data.dataset_dir={small_folder}", "--mode=ddp"]) == 1
    *_, gloo, dataset, batches, plan, end = capsys.readouterr().out.splitlines()
    assert gloo == "good  gloo: met"
    assert dataset == f"good  dataset: {small_folder}: 60 users, 130 items, 97 training windows"
    assert batches == (
        "BAD   batches: 16 a process x 2 processes = 32 a step; an epoch has 4 steps; better: 1 process or "
        "--training.per_device_train_batch_size=12"
    )
    assert plan.startswith("good  plan: item table 132 x 20, ")
    assert end == "1 thing to mend, above"
    fewer = "--training.per_device_train_batch_size=4"
    assert main(["doctor", *OPTIONS, fewer, f"--data.dataset_dir={small_folder}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "all is good"


def test_a_dataset_that_is_not_there_and_a_table_that_does_not_fit(
    small_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor", *OPTIONS]) == 1
    assert "BAD   dataset: data/synthetic: no dataset folder (no metadata.json); run `bert4rec prepare`" in (
        capsys.readouterr().out
    )
    monkeypatch.setattr("bert4rec.runtime.memory.host_memory", lambda: 10**6)
    monkeypatch.setattr("bert4rec.runtime.memory.proportional_set_size", lambda: 10**6)
    assert main(["doctor", *OPTIONS, f"--data.dataset_dir={small_folder}"]) == 1
    assert "BAD   plan: this configuration needs " in capsys.readouterr().out


def test_nothing_is_tried_with_packages_that_do_not_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installation, "matching", lambda: Finding("torch, torchrec, fbgemm", "broken", "make setup"))
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["BAD   torch, torchrec, fbgemm: broken; make setup", "1 thing to mend, above"]
    assert len(lines) == 4


def test_bad_arguments_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--processes=0"]) == 2
    assert capsys.readouterr().err == "error: --processes=0: must be at least 1\n"
