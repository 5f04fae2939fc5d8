"""Runs and packages of earlier versions, which had the mask token's vector in row 1 of the item table."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bert4rec import load
from bert4rec.checkpoint.run_folder import found
from bert4rec.checkpoint.trained import find_trained
from bert4rec.commands.jobs.evaluate import settings_of
from bert4rec.export.export import export
from bert4rec.inference.source import find_source
from bert4rec.runtime import manifest
from bert4rec.runtime.errors import SettingsError
from bert4rec.training.evaluate import evaluate
from bert4rec.training.run import run
from tests.conftest import leave_group
from tests.runs import Make, put_mask_into_table, tensors_of, with_mask_in_table

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries about themselves
]

HISTORIES = [[1, 2, 3], [7], [999]]


@pytest.fixture
def older(whole: Path) -> Path:
    """The run with its best checkpoint and its last one in the earlier layout."""
    for checkpoint in {(whole / "checkpoints" / "best").resolve(), found(whole / "checkpoints")[-1].resolve()}:
        put_mask_into_table(checkpoint)
    return whole


def figures(path: Path, output: Path, dataset: Path) -> Any:
    trained = find_trained(path)
    return evaluate(settings_of(trained, [f"--data.dataset_dir={dataset}"]), trained, output).report["test"]


def test_it_recommends_and_is_exported_and_evaluated_as_before(
    made: Path, older: Path, small_folder: Path, tmp_path: Path
) -> None:
    wanted = load(made).recommend(HISTORIES, 5)
    assert load(older).recommend(HISTORIES, 5) == wanted
    export(find_source(older), tmp_path / "model", ["safetensors"], k=5, leaves_out_seen=True)
    assert load(tmp_path / "model").recommend(HISTORIES, 5) == wanted
    wanted, *found = (figures(path, tmp_path / f"{number}", small_folder) for number, path in enumerate((made, older)))
    assert found == [wanted]


def test_a_package_of_the_first_version_is_read(made: Path, small_folder: Path, tmp_path: Path) -> None:
    export(find_source(made), tmp_path / "model", ["safetensors"], k=5, leaves_out_seen=True)
    weights = tmp_path / "model" / "model.safetensors"
    save_file(with_mask_in_table(load_file(weights)), weights)
    settings = tmp_path / "model" / "settings.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"format_version": 1}))
    names = [path.name for path in weights.parent.iterdir() if path.name != manifest.MANIFEST]
    manifest.seal(weights.parent, manifest.describe(weights.parent, names))
    assert load(tmp_path / "model").recommend(HISTORIES, 5) == load(made).recommend(HISTORIES, 5)
    wanted = figures(made, tmp_path / "of run", small_folder)
    assert figures(tmp_path / "model", tmp_path / "of package", small_folder) == wanted


def test_another_run_starts_from_its_weights_and_it_is_not_resumed(make: Make, made: Path, older: Path) -> None:
    with pytest.raises(SettingsError, match=r"^an earlier version .* start another run from its weights with --run"):
        run(make(**{"run.resume": str(older), "training.n_epochs": 4}))
    leave_group()
    still = {"training.n_epochs": 1, "training.learning_rate": 1e-12, "parallelism.sparse_learning_rate": 1e-12}
    one, other = (
        tensors_of(run(make(**{"run.init_from": str(path), "run.name": name}, **still)) / "checkpoints" / "best")
        for name, path in (("new", made), ("old", older))
    )
    assert torch.equal(one["model.mask_vector"], other["model.mask_vector"])
