"""The first version of a model: all of a run, whole or not there; and versions after it, whose histories grow."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert4rec import Run, load
from bert4rec.checkpoint.models_folder import find_versions, read_aliases, run_at, set_champion
from bert4rec.checkpoint.run_folder import find_trained
from bert4rec.dataset.format import fingerprint_of
from bert4rec.runtime.errors import DataError, SettingsError, UserError
from bert4rec.serving.load import find_source
from bert4rec.update.versions import about_version, add_version, make_first_version
from tests.checks import one_line
from tests.conftest import GROWN_LOG, LOG, WITHOUT_PROGRAM
from tests.fixture_types import Patch
from tests.folders import files_of
from tests.runs import edit_facts


def best_of(run: Path) -> Path:
    return (run / "checkpoints" / "best").resolve()


HISTORIES = [[1, 2, 3], [7], [999]]
ROOT = Path(__file__).parents[2]


def test_a_first_version_is_the_run(first_models: Path, run_to_update: Path, log_folder: Path) -> None:
    before, version = load(run_to_update), run_at(first_models)
    for path in (first_models, version, version / "package"):
        assert load(str(path)).recommend(HISTORIES, 5) == before.recommend(HISTORIES, 5)
    assert load(first_models).similar([1], 3) == before.similar([1], 3)
    assert (version / "package" / "program.pt2").is_file()
    assert Run(first_models).report == Run(run_to_update).report
    assert read_aliases(first_models) == {"champion": version.name}
    about = {"time": version.name, "parent": None, "rows": sum(map(len, LOG.values())), "users": 6, "items": 8}
    about |= {"last_time": 1_600_000_027, "fingerprint": fingerprint_of(log_folder), "decision": "first"}
    assert json.loads((version / "version.json").read_text()) == about


def contents(folder: Path, *left_out: str) -> dict[str, bytes]:
    return {name: content for name, (content, _) in files_of(folder).items() if not name.startswith(left_out)}


def test_large_files_are_links_and_what_a_training_changes_are_copies(
    run_to_update: Path, log_folder: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(*WITHOUT_PROGRAM)
    run = Path(shutil.copytree(run_to_update, tmp_path / "run", symlinks=True))
    (run / "evaluation").mkdir()
    (run / "evaluation" / "report.json").write_text("{}")
    before = files_of(run), files_of(log_folder)
    version = make_first_version(tmp_path / "shop", run).folder
    assert (files_of(run), files_of(log_folder)) == before
    assert contents(tmp_path / "shop" / "dataset") == contents(log_folder)
    best = (run / "checkpoints" / "best").resolve().relative_to(run).as_posix()
    others = [f"checkpoints/{path.name}/" for path in (run / "checkpoints").glob("step-*") if path.name not in best]
    copied = contents(version, "package/", "version.json")
    assert copied == contents(run, ".lock", "evaluation/", "checkpoints/best/", *others)
    linked = {name for name in copied if (version / name).stat().st_nlink > 1}
    assert linked == {name for name in copied if name.startswith((f"{best}/", "items/"))}
    assert (version / "checkpoints" / "best").resolve() == (version / best).resolve()
    shutil.rmtree(run)
    assert load(tmp_path / "shop").recommend(HISTORIES, 3)


@pytest.mark.long
def test_the_package_of_a_version_needs_torch_alone(first_models: Path) -> None:
    package = run_at(first_models) / "package"
    blocks = re.findall(r"```python\n(.*?)```", (package / "README.md").read_text(), re.DOTALL)
    (example,) = (block for block in blocks if "torch.export" in block)
    alone = f"import sys\nsys.modules['bert4rec'] = sys.modules['pyarrow'] = sys.modules['polars'] = None\n{example}"
    done = subprocess.run([sys.executable, "-c", alone], cwd=package, capture_output=True, text=True, check=False)
    history = json.loads(re.findall(r"history = \d+, (\[.*\])", example)[0])
    assert done.stdout == f"{[one.item for one in load(package).recommend([history], 8)[0]]}\n", done.stderr


def grow(models: Path, grown: Path) -> None:
    shutil.rmtree(models / "dataset")
    shutil.copytree(grown, models / "dataset")


def test_histories_are_those_of_the_grown_dataset(models: Path, grown_folder: Path, log_folder: Path) -> None:
    """A new user and new rows of an old one are in them; items that the version does not know are skipped."""
    before = load(models)
    grow(models, grown_folder)
    version = run_at(models)
    known = [[item for item in GROWN_LOG[user] if item <= 8] for user in ("g", "f", "a")]
    for model in (load(models), load(version), load(version / "package", dataset=models / "dataset")):
        users = model.users(with_times=model.reads_times, with_events=False)
        assert {user: items for part in users.all() for user, items in part} == GROWN_LOG
        histories = [history for _, history in users.of(["g", "f", "a"])]
        assert model.recommend(histories, 5) == before.recommend(known, 5)
        assert {one.user for one in model.users_for(5, 9, leave_out_seen=False)} == {*GROWN_LOG}
        assert model.items.ids == before.items.ids


def test_any_run_reads_the_histories_of_a_dataset_that_extends_its_own(
    run_to_update: Path, grown_folder: Path, small_folder: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(run_to_update, tmp_path / "run", symlinks=True))
    source = find_source(run, grown_folder)
    assert (source.users, source.dataset, source.items) == (grown_folder, None, run / "items")
    users = load(run, dataset=grown_folder).users(with_times=False, with_events=False)
    assert users.of(["g"]) == [("g", GROWN_LOG["g"])]
    with one_line(f"{small_folder}: "):
        load(run, dataset=small_folder)
    shutil.rmtree(run / "items")
    best = (run / "checkpoints" / "best").resolve()
    edit_facts(best, lambda facts: facts["config"]["data"].update(dataset_dir=str(tmp_path / "gone")))
    with one_line(f"{grown_folder}: "):  # what its items were cannot be told
        load(run, dataset=grown_folder)


def test_a_model_that_counts_is_not_counted_in_a_dataset_that_extends_its_own(
    log_config: Callable[..., Any], grown_folder: Path, tmp_path: Path, alone: None
) -> None:
    from bert4rec.training.run import run as train

    run = train(log_config(**{"model.kind": "popularity", "run.dir": str(tmp_path)}))
    with one_line(f"{grown_folder}: is not the dataset "):
        load(run, dataset=grown_folder)
    with one_line(f"{run}: ", "only counts"):
        make_first_version(tmp_path / "shop", run)


def refused(models: Path, run: Path, *words: str, error: type[UserError] = DataError) -> None:
    there = models.exists()
    with one_line("", *words, error=error):
        make_first_version(models, run)
    assert [models.exists(), *models.parent.glob(f".{models.name}*")] == [there]


def test_what_cannot_be_updated_is_refused_in_one_line(
    first_models: Path, run_to_update: Path, log_folder: Path, tmp_path: Path
) -> None:
    shop, version = tmp_path / "shop", run_at(first_models)
    refused(first_models, run_to_update, str(first_models), "is a models folder already", error=SettingsError)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    refused(tmp_path / "full", run_to_update, f"{tmp_path}/full", error=SettingsError)
    refused(shop, version / "package", "package")
    refused(shop, tmp_path, str(tmp_path))

    def changed(change: Callable[[Path, dict[str, Any]], None]) -> Path:
        shutil.rmtree(tmp_path / "changed", ignore_errors=True)
        copy = Path(shutil.copytree(run_to_update, tmp_path / "changed", symlinks=True))
        edit_facts((copy / "checkpoints/best").resolve(), lambda facts: change(copy, facts))
        return copy

    def model(kind: str) -> Callable[[Path, dict[str, Any]], None]:
        return lambda _, facts: facts["config"]["model"].update(kind=kind)

    def dataset(folder: Path) -> Callable[[Path, dict[str, Any]], None]:
        return lambda _, facts: facts["config"]["data"].update(dataset_dir=str(folder))

    timeless = Path(shutil.copytree(log_folder, tmp_path / "timeless"))
    about = json.loads((timeless / "metadata.json").read_text())
    (timeless / "metadata.json").write_text(json.dumps(about | {"has_times": False}))
    refused(shop, changed(model("matrix_factorization")), "matrix factorisation")
    refused(shop, changed(dataset(tmp_path / "gone")), f"{tmp_path}/gone", "dataset")
    refused(shop, changed(dataset(timeless)), str(timeless), "times")
    refused(shop, changed(lambda run, _: (run / "report.json").unlink()), "not finished", str(tmp_path / "changed"))
    other = next(path for path in (run_to_update / "checkpoints").glob("step-*") if path != best_of(run_to_update))
    refused(shop, other, str(other), "checkpoint")


def test_a_finished_run_becomes_a_version_once(models: Path, grown_folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(*WITHOUT_PROGRAM)
    first = run_at(models).name
    name, run = "2030-01-01T00-00-00", models / "next" / "run"
    added = shutil.ignore_patterns("package", "version.json")
    shutil.copytree(models / "versions" / first, run, symlinks=True, ignore=added)
    (run / "package.half.tmp").mkdir()
    about = about_version(models / "dataset", parent=first, decision="blessed")
    for _ in range(2):
        assert add_version(models, run, name, about) == models / "versions" / name
        set_champion(models, name)
    assert read_aliases(models) == {"champion": name, "previous": first}
    versions = [(version.name, version.about["decision"], [*version.aliases]) for version in find_versions(models)]
    assert versions == [(first, "first", ["previous"]), (name, "blessed", ["champion"])]
    assert [*models.glob(f"versions/{name}/package*")] == [models / f"versions/{name}/package"]
    assert not run.exists()
    assert find_trained(models).run == models / "versions" / name
    assert load(models).recommend(HISTORIES, 3) == load(models / "versions" / first).recommend(HISTORIES, 3)


KILLED = """
import os, shutil, signal, sys
from pathlib import Path

import torch
from bert4rec.update import versions

models, run, n_points = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
versions.USUAL_FORMATS = ("safetensors",)

CHANGES = ("os.link", "os.rename", "os.mkdir", "os.symlink", "os.remove", "os.rmdir")

def make(last):
    # Make the model in a child that is killed before its change of a file number `last`; return how many there were.
    read, write = os.pipe()
    if child := os.fork():
        os.close(write)
        _, status = os.waitpid(child, 0)
        with os.fdopen(read, "rb") as pipe:
            return len(pipe.read()), status
    changes = 0

    def watch(event, given):
        nonlocal changes
        is_write = event == "open" and isinstance(given[1], str) and given[1][0] in "wa" or event in CHANGES
        if is_write and str(models.parent) in f"{given}":
            changes += 1
            os.write(write, b".")
            if changes == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    try:
        versions.make_first_version(models, run)
    except BaseException as error:
        print(error)
        os._exit(1)
    os._exit(0)

def listing():
    return sorted(path.relative_to(models).parts[2:] for path in (models / "versions").rglob("*"))

versions.make_first_version(models, run)  # which imports what the children then have
whole = listing()
shutil.rmtree(models)
n, status = make(0)
assert (status, listing()) == (0, whole)
for point in sorted({1 + (n - 1) * place // (n_points - 1) for place in range(n_points)}):
    shutil.rmtree(models)
    _, status = make(point)
    assert os.WTERMSIG(status) == signal.SIGKILL, (point, status)
    assert not models.exists(), point
    if point % 2:  # killed again
        make(point)
    assert make(0)[1] == 0, point
    assert listing() == whole, point
    assert [path.name for path in models.parent.iterdir()] == [models.name], point
print(n, "changes")
"""


@pytest.mark.long
def test_killed_anywhere_it_can_be_typed_again(run_to_update: Path, tmp_path: Path) -> None:
    models = tmp_path / "models" / "shop"
    words = [sys.executable, "-c", KILLED, str(models), str(run_to_update), "7"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 50, done.stdout
    assert load(models).recommend(HISTORIES, 3) == load(run_to_update).recommend(HISTORIES, 3)
