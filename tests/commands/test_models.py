"""`models` and `update --from`: what a person types and reads, and commands that take a models folder for a run."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from bert4rec import load
from bert4rec.__main__ import main
from bert4rec.checkpoint.models_folder import read_aliases, run_at, write_aliases
from bert4rec.checkpoint.run_folder import lock
from tests.checks import Capture
from tests.conftest import BY_HAND, LOG, WITHOUT_PROGRAM, train_alone
from tests.folders import files_of
from tests.runs import report_of

pytestmark = pytest.mark.usefixtures("alone")

N_ROWS = sum(map(len, LOG.values()))
OLDER, OLDEST = "2026-01-02T03-00-00", "2026-01-01T03-00-00"


@pytest.fixture(scope="module")
def made_models(log_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder that was typed, with copies of its version as two older ones."""
    place = tmp_path_factory.mktemp("models")
    run = train_alone(log_folder, place / "runs", **BY_HAND, **{"run.name": "log"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*WITHOUT_PROGRAM)
        assert main(["update", str(place / "shop"), "--from", str(run)]) == 0
    newest = run_at(place / "shop")
    for name, decision in ((OLDER, "cannot tell"), (OLDEST, "blessed")):
        copy = Path(shutil.copytree(newest, newest.with_name(name), symlinks=True))
        about = json.loads((copy / "version.json").read_text())
        (copy / "version.json").write_text(json.dumps(about | {"time": name, "parent": OLDEST, "decision": decision}))
    write_aliases(place / "shop", {"champion": newest.name, "previous": OLDEST})
    return place / "shop"


@pytest.fixture
def models(made_models: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made_models, tmp_path / "shop", symlinks=True))


def said(capsys: Capture, *words: object, status: int = 0) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == status
    out, err = capsys.readouterr()
    return err if status else out


def values(capsys: Capture, *words: object) -> Any:
    return json.loads(said(capsys, *words, "--json"))


def test_versions_are_listed_the_newest_first(models: Path, capsys: Capture) -> None:
    newest = run_at(models).name
    _, *lines = said(capsys, "models", "list", models).splitlines()
    assert [line.split()[0] for line in lines] == [newest, OLDER, OLDEST]
    ndcg = report_of(run_at(models))["test"]["full"]["NDCG@10"]
    assert re.fullmatch(rf"{newest} +champion +{N_ROWS} +8 +{ndcg:.4f} +first +[\d.]+ .B", lines[0])
    assert "cannot tell" in lines[1]
    assert lines[2].split()[1] == "previous"
    facts = values(capsys, "models", "list", models)
    assert [(one["time"], one["aliases"]) for one in facts] == [
        (newest, ["champion"]), (OLDER, []), (OLDEST, ["previous"]),
    ]  # fmt: skip
    assert {one["NDCG@10"] for one in facts} == {ndcg}
    assert {one["rows"] for one in facts} == {N_ROWS}


def test_a_version_is_shown_by_name_or_alias(models: Path, capsys: Capture) -> None:
    (models / "updates.jsonl").write_text(
        json.dumps({"time": OLDER, "version": OLDER, "reasons": ["few users"]}) + "\n"
    )
    assert values(capsys, "models", "show", models)["time"] == run_at(models).name
    assert values(capsys, "models", "show", models, "previous")["time"] == OLDEST
    shown = said(capsys, "models", "show", models, OLDER)
    assert all(
        text in shown for text in (OLDER, OLDEST, "cannot tell", "few users", f"{models}/versions/{OLDER}/package")
    )
    assert values(capsys, "models", "show", models, OLDER)["reasons"] == ["few users"]


def test_a_second_rollback_undoes_the_first(models: Path, capsys: Capture) -> None:
    before = read_aliases(models)
    assert f"the champion is {OLDEST} again" in said(capsys, "models", "rollback", models)
    assert run_at(models).name == OLDEST
    assert values(capsys, "models", "rollback", models) == before == read_aliases(models)


def test_old_versions_are_removed_but_not_what_an_alias_names(models: Path, capsys: Capture) -> None:
    assert values(capsys, "models", "prune", models) == {"removed": []}
    assert OLDER in said(capsys, "models", "prune", models, "--keep", 1)
    assert [one["time"] for one in values(capsys, "models", "list", models)] == [run_at(models).name, OLDEST]


def test_one_change_at_a_time(models: Path, capsys: Capture) -> None:
    with lock(models):
        for words in (["rollback", models], ["prune", models, "--keep=1"]):
            error = said(capsys, "models", *words, status=2)
            assert re.fullmatch(rf"error: {models}: [^\n]*process \d+ on [^\n]*\n", error)
        said(capsys, "models", "list", models)
    assert len(values(capsys, "models", "list", models)) == 3


@pytest.mark.parametrize(
    "words",
    [
        "models", "models list", "models liste SHOP", "models list nowhere", "models show SHOP 2020-01-01T00-00-00",
        "models list SHOP champion", "models list SHOP --keep=3", "models prune SHOP --keep=0",
        "models prune SHOP --keep=few", "models rollback SHOP --jsn", "update SHOP", "update SHOP --from nowhere",
        "update nowhere --from nowhere",
    ],
)  # fmt: skip
def test_one_line_for_what_cannot_be(models: Path, capsys: Capture, words: str) -> None:
    error = said(capsys, *(models if word == "SHOP" else word for word in words.split()), status=2)
    assert re.fullmatch(r"error: [^\n]+\n", error)
    assert not Path("nowhere").exists()


def test_commands_take_a_models_folder_for_a_run(models: Path, tmp_path: Path, capsys: Capture) -> None:
    run = run_at(models)
    for words in (["recommend", "{}", "--user", "a"], ["similar", "{}", "1"], ["compare", "{}", "{}", "--all"]):
        of_models, of_run = (
            said(capsys, *(word.format(place) for word in words), *(["--top=3"] if words[0] != "compare" else []))
            for place in (models, run)
        )
        assert of_models == of_run
    said(capsys, "export", models, "-o", tmp_path / "package", "--format=safetensors")
    assert load(tmp_path / "package").recommend([[1, 2]], 3) == load(models).recommend([[1, 2]], 3)
    before = files_of(models / "versions")
    said(capsys, "evaluate", models)
    assert report_of(models / "evaluation")["test"] == report_of(run)["test"]
    report = said(capsys, "report", models)
    assert f"bert4rec models rollback {models}\n" in report
    assert f"recommend {models} --all" in report
    assert files_of(models / "versions") == before


def test_an_extended_model_is_a_run_beside_the_first_one_and_no_version(
    made_models: Path, grown_folder: Path, capsys: Capture
) -> None:
    before = [*(made_models / "versions").iterdir()]
    said(capsys, "extend", made_models, grown_folder)
    ids = load(made_models.parent / "runs" / "log-2").items.ids
    assert (ids[:8], {*ids[8:]}) == (load(made_models).items.ids, {9, 10})
    assert [*(made_models / "versions").iterdir()] == before


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "--data is missing"), (["--full", "--accept"], "--accept: is about new rows"),
        (["--full", "--items=items.csv"], "--items=items.csv: is about new rows"),
        (["--full", "--update.tail=0.5"], "--update.tail=0.5: is about new rows"),
        (["--full", "--data=day.csv", "--update.replay=0.2"], "--update.replay=0.2: is for an update that goes on"),
        (["--data=day.csv", "--model.kind=sasrec"], "--model.kind=sasrec: was decided with the first version"),
        (["--from=runs/log", "--full"], "--from: makes the model, and takes nothing else"),
    ],
)  # fmt: skip
def test_an_update_refuses_what_has_no_meaning_in_it(
    models: Path, capsys: Capture, words: list[str], problem: str
) -> None:
    before = files_of(models)
    assert f"error: {problem}" in said(capsys, "update", models, *words, status=2)
    assert files_of(models) == before
