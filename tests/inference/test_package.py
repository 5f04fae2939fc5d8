"""Model packages: loaded without TorchRec, refused in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from bert4rec import load
from bert4rec.export.export import export
from bert4rec.inference.source import find_source
from bert4rec.runtime import manifest
from bert4rec.runtime.errors import DataError

HISTORIES = [[1, 2, 3], [7], [999]]


@pytest.fixture(scope="module")
def packed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "model"
    export(find_source(made), folder, ["safetensors"], k=10, leaves_out_seen=True)
    return folder


@pytest.fixture
def package(packed: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in packed.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def seal(folder: Path) -> None:
    names = [path.name for path in folder.iterdir() if path.name != manifest.MANIFEST]
    manifest.seal(folder, manifest.describe(folder, names))


def change(folder: Path, **changes: object) -> None:
    path = folder / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    seal(folder)


def test_it_recommends_what_its_run_recommends_without_torchrec(made: Path, packed: Path) -> None:
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['torchrec', 'fbgemm_gpu', 'polars', 'datasets'])); "
        f"from bert4rec import load; model = load({str(packed)!r}); "
        f"print([[one.item for one in row] for row in model.recommend({HISTORIES}, 5)]); "
        "print(model.items.ids[:3], tuple(model.items.vectors.shape))"
    )
    ran = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    model = load(made)
    wanted = [[one.item for one in row] for row in model.recommend(HISTORIES, 5)]
    assert ran.stdout == f"{wanted}\n{model.items.ids[:3]} {tuple(model.items.vectors.shape)}\n"


def test_a_dataset_gives_it_users(packed: Path, small_folder: Path, log_folder: Path) -> None:
    assert load(packed, dataset=small_folder).dataset == small_folder
    with pytest.raises(DataError, match=r"is not the dataset that .*/model was trained on"):
        load(packed, dataset=log_folder)


def test_parts_that_do_not_fit_are_refused(package: Path) -> None:
    change(package, n_items=151)
    with pytest.raises(DataError, match=r"item_table.embeddings.item.weight has \d+ rows, not 153"):
        load(package)
    weights = load_file(package / "model.safetensors")
    save_file({name: value for name, value in weights.items() if "norm" not in name}, package / "model.safetensors")
    seal(package)
    with pytest.raises(DataError, match=r"model.safetensors does not fit settings.json: Error") as caught:
        load(package)
    assert "\n" not in str(caught.value)
    (package / "model.safetensors").write_bytes(b"no tensors")
    seal(package)
    with pytest.raises(DataError, match=r"model.safetensors: cannot be read"):
        load(package)


def test_a_list_of_other_items_is_refused(package: Path) -> None:
    (package / "items.jsonl").write_text('{"id": 1}\n')
    seal(package)
    with pytest.raises(DataError, match=r"items.jsonl has 1 items, not \d+"):
        load(package)
