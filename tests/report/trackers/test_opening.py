"""Which trackers a run has, and what is said of one that is not there."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bert4rec.report.trackers import opening
from bert4rec.runtime.errors import SettingsError


def test_a_package_that_is_not_installed_is_named_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    opening.require_packages(["tensorboard"])
    with pytest.raises(SettingsError) as caught:
        opening.require_packages(["tensorboard", "mlflow"])
    assert str(caught.value) == (
        "run.trackers: mlflow is not installed; pip install -r requirements-mlflow.txt (of an installed package: pip "
        'install "bert4rec-torchrec[mlflow]"), or leave it out of run.trackers'
    )


def test_each_gets_the_folder_and_the_settings_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []

    def make(name: str, *given: Any, **keywords: Any) -> None:
        made.append((name, *given, keywords))

    for name in ("TensorBoard", "MLflow", "WeightsAndBiases"):
        monkeypatch.setattr(opening, name, partial(make, name))
    settings = {"model": {"kind": "sasrec"}, "training": {"n_epochs": 3}}
    flat = {"model.kind": "sasrec", "training.n_epochs": 3}
    opening.open_trackers(["wandb", "tensorboard", "mlflow"], tmp_path, settings, purge_from=7)
    assert made == [
        ("WeightsAndBiases", tmp_path, flat, {}),
        ("TensorBoard", tmp_path, flat, {"purge_from": 7}),
        ("MLflow", tmp_path, flat, {}),
    ]
    assert opening.open_trackers([], tmp_path, settings, purge_from=0) == []
