"""Runs, checkpoints and model packages: loaded, or refused in one line."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from bert4rec import Run, load
from bert4rec.checkpoint.run_folder import FACTS_FILE
from bert4rec.dataset.runs import CATALOGUE
from bert4rec.runtime import files
from bert4rec.runtime.errors import DataError
from bert4rec.serving.export import export
from bert4rec.serving.load import find_source, network_of
from tests.checks import one_line
from tests.folders import files_of
from tests.runs import flip


def test_a_checkpoint_is_loaded_too(made: Path) -> None:
    best = load(made / "checkpoints" / "best").recommend([[1, 2, 3]], 3)
    assert load(made).recommend([[1, 2, 3]], 3) == best
    step = (made / "checkpoints" / "best").resolve()
    assert load(str(step)).recommend([[1, 2, 3]], 3) == best


def test_what_is_missing_damaged_or_foreign_is_named(whole: Path, tmp_path: Path, log_folder: Path) -> None:
    with pytest.raises(DataError, match="nothing"):
        load(tmp_path / "nothing")
    with pytest.raises(DataError, match=f"^{log_folder}: .*/whole "):
        load(whole, dataset=log_folder)
    with pytest.raises(DataError, match=f"^{tmp_path}: "):
        load(whole, dataset=tmp_path)
    best = (whole / "checkpoints" / "best").resolve()
    flip(next(best.glob("*.distcp")), 1000)
    with pytest.raises(DataError, match=r"\.distcp .*checksum"):
        load(whole)


def test_a_checkpoint_with_other_weights_is_refused_in_one_line(made: Path) -> None:
    source = find_source(made)
    config = dict(source.trained.metadata["config"])
    config["model"] = config["model"] | {"times": "history"}
    other = replace(source, trained=replace(source.trained, metadata={**source.trained.metadata, "config": config}))
    with pytest.raises(DataError, match=r"dates.weight") as caught:
        network_of(other)
    assert "\n" not in str(caught.value)


def change(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    seal(file.parent)


def seal(folder: Path) -> None:
    names = [path.name for path in folder.iterdir() if path.name != files.MANIFEST]
    files.write_manifest(folder, files.describe(folder, names))


def test_a_relative_dataset_is_found_from_any_folder(
    made: Path, small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it was started: runs/… and data/… in one folder."""
    shutil.copytree(small_folder, tmp_path / "data/small")
    run = Path(shutil.copytree(made, tmp_path / "runs/whole", symlinks=True))
    checkpoint = (run / "checkpoints/best").resolve()
    config = json.loads((checkpoint / FACTS_FILE).read_text())["config"]
    config["data"]["dataset_dir"], config["run"]["dir"] = "data/small", "runs"
    change(checkpoint / FACTS_FILE, config=config)
    assert find_source(run).dataset == tmp_path / "data/small"
    monkeypatch.chdir(tmp_path)
    assert find_source(Path("runs/whole")).dataset == Path("data/small")


HISTORIES = [[1, 2, 3], [7], [999]]


def test_a_run_needs_its_dataset_for_the_histories_of_users_alone(
    made: Path, small_folder: Path, log_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load(made)
    run = Path(shutil.copytree(made, tmp_path / "elsewhere" / "run", symlinks=True))
    for place, problem in ((tmp_path / "gone", "the dataset of "), (log_folder, f"{log_folder}: is not the dataset ")):
        monkeypatch.setattr("bert4rec.checkpoint.run_folder.Trained.dataset", place)
        model = load(run)
        assert model.recommend(HISTORIES, 5) == before.recommend(HISTORIES, 5)
        assert model.similar([1, 7], 5) == before.similar([1, 7], 5)
        with one_line(problem, str(run), str(place), "--dataset=FOLDER"):
            model.users_for(1)
        assert load(run, dataset=small_folder).users_for(1, 3) == before.users_for(1, 3)
    export(find_source(run), tmp_path / "of-links", ["safetensors", "vectors"], k=10, leaves_out_seen=True)
    shutil.rmtree(run / CATALOGUE)  # as in a run of an earlier version
    with pytest.raises(DataError, match=f"^{log_folder}: is not the dataset that {run} was trained on; "):
        load(run)
    monkeypatch.undo()
    assert load(run).recommend(HISTORIES, 5) == before.recommend(HISTORIES, 5)
    export(find_source(run), tmp_path / "of-dataset", ["safetensors", "vectors"], k=10, leaves_out_seen=True)
    links, copies = (files_of(tmp_path / name) for name in ("of-links", "of-dataset"))
    assert {name: links[name][0] for name in links} == {name: copies[name][0] for name in copies}


@pytest.fixture(scope="module")
def packed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "model"
    export(find_source(made), folder, ["safetensors"], k=10, leaves_out_seen=True)
    return folder


def test_it_recommends_what_its_run_recommends_without_torchrec(made: Path, packed: Path) -> None:
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['torchrec', 'fbgemm_gpu', 'polars', 'datasets'])); "
        f"from bert4rec import load; model = load({str(packed)!r}); "
        f"print([[one.item for one in row] for row in model.recommend({HISTORIES}, 5)]); "
        "print(model.items.ids[:3], tuple(model.items.vectors.shape))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (ran.stderr.count("DataWarning: 1 of "), ran.stderr.count("Warning: ")) == (2, 2)  # no library warns
    model = load(made)
    wanted = [[one.item for one in row] for row in model.recommend(HISTORIES, 5)]
    assert ran.stdout == f"{wanted}\n{model.items.ids[:3]} {tuple(model.items.vectors.shape)}\n"


def test_a_dataset_gives_it_users(packed: Path, small_folder: Path, log_folder: Path) -> None:
    assert load(packed, dataset=small_folder).dataset == small_folder
    with pytest.raises(DataError, match=f"^{log_folder}: .*/model "):
        load(packed, dataset=log_folder)


def test_parts_that_do_not_fit_are_refused(packed: Path, tmp_path: Path) -> None:
    package = Path(shutil.copytree(packed, tmp_path / "model"))
    lines = (package / "items.jsonl").read_text()
    (package / "items.jsonl").write_text('{"id": 1, "train_count": 1}\n')
    seal(package)
    with pytest.raises(DataError, match=r"items.jsonl .* 1 item.* \d+"):
        load(package)
    (package / "items.jsonl").write_text(lines)
    change(package / "settings.json", n_items=151)
    with pytest.raises(DataError, match=r"item_table.embeddings.item.weight .* \d+ rows.* 151"):
        load(package)
    weights = load_file(package / "model.safetensors")
    save_file({name: value for name, value in weights.items() if "norm" not in name}, package / "model.safetensors")
    seal(package)
    with pytest.raises(DataError, match=r"model.safetensors .*settings.json") as caught:
        load(package)
    assert "\n" not in str(caught.value)
    (package / "model.safetensors").write_bytes(b"no tensors")
    seal(package)
    with pytest.raises(DataError, match=r"model.safetensors: "):
        load(package)


def test_a_finished_run_says_what_it_found(made: Path) -> None:
    run = Run(str(made))
    assert run.folder == made
    assert run.report == json.loads((made / "report.json").read_text())
    assert run.metrics == run.report["test"]
    assert {str(made), f"{run.metrics['full']['HR@10']:.4f}"} <= {*re.split("[ ',]+", repr(run))}
    records = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    assert run.history == records
    assert [(record["kind"], record["step"]) for record in run.history] == [
        ("train", 7), ("validation", 7), ("train", 14), ("validation", 14), ("train", 21), ("validation", 21),
    ]  # fmt: skip
    model = run.load()
    assert model.dataset == Path(re.findall(r'dataset_dir = "(.+)"', (made / "config.toml").read_text())[0])
