"""Which runs a benchmark need not make again."""

import json
from pathlib import Path
from typing import Any

from bert4rec.commands.jobs.earlier_runs import earlier_run, is_finished
from bert4rec.config.load import load_config
from bert4rec.config.tables import Config

OWN = {"run.name": "markov-time", "model.kind": "markov"}


def make(folder: Path, *, fingerprint: str = "abc", processes: int = 1, finished: bool = True, **settings: Any) -> Path:
    folder.mkdir(parents=True)
    resolved = {"training.loss": "softmax", "parallelism.device": "cpu", "data.dataset_dir": "elsewhere"}
    (folder / "config.toml").write_text(load_config(None, OWN | resolved | settings).to_toml())
    (folder / "environment.json").write_text(json.dumps({"world_size": processes}))
    if finished:
        (folder / "report.json").write_text(json.dumps({"dataset": {"fingerprint": fingerprint}}))
    else:
        checkpoint = folder / "checkpoints" / "step-000000007"
        checkpoint.mkdir(parents=True)
        (checkpoint / "facts.json").write_text(json.dumps({"fingerprint": fingerprint}))
    return folder


def wanted(place: Path) -> Config:
    return load_config(None, OWN | {"run.dir": str(place)})


def test_only_the_same_settings_dataset_and_processes_count(tmp_path: Path) -> None:
    name = tmp_path / "markov-time"
    make(name)
    make(tmp_path / "markov-time-2", **{"model.smoothing": 3.0})
    make(tmp_path / "markov-time-3", fingerprint="def")
    make(tmp_path / "markov-time-4", processes=2)
    make(tmp_path / "markov-time-seed5")
    (tmp_path / "markov-time-5").mkdir()  # which nobody can read
    (tmp_path / "markov-time-6").mkdir()
    (tmp_path / "markov-time-6" / "report.json").write_text("{")
    found = [
        earlier_run(wanted(tmp_path), fingerprint=fingerprint, n_processes=n)
        for fingerprint, n in (("abc", 1), ("def", 1), ("abc", 2), ("xyz", 1))
    ]
    assert found == [name, tmp_path / "markov-time-3", tmp_path / "markov-time-4", None]


def test_what_is_finished_counts_more_than_what_can_be_resumed(tmp_path: Path) -> None:
    unfinished = make(tmp_path / "markov-time-2", finished=False)
    assert earlier_run(wanted(tmp_path), fingerprint="abc", n_processes=1) == unfinished
    assert not is_finished(unfinished)
    finished = make(tmp_path / "markov-time")
    assert earlier_run(wanted(tmp_path), fingerprint="abc", n_processes=1) == finished
    assert is_finished(finished)
