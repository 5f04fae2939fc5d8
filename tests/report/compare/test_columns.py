"""Which runs are one column, and which settings differ."""

from pathlib import Path
from typing import Any

from bert4rec.report.compare.columns import Column, columns, differing_settings
from bert4rec.report.compare.runs import read_run
from tests.report.compare.run_folders import TRAINING, make_run


def compared(tmp_path: Path, **runs: dict[str, Any]) -> list[Column]:
    return columns([read_run(make_run(tmp_path / name, [1, 2], **options)) for name, options in runs.items()])


def letters(found: list[Column]) -> dict[str, list[str]]:
    return {column.letter: [run.folder.name for run in column.runs] for column in found}


def test_runs_that_differ_in_their_seed_alone_are_one_column(tmp_path: Path) -> None:
    sasrec = {"settings": {"model.kind": "sasrec"}}
    found = compared(
        tmp_path, a={"seed": 1}, b={**sasrec, "seed": 1}, c={"seed": 2}, d={"seed": 2}, e={"fingerprint": "f2"},
        f={"world_size": 1}, g={"settings": {"run.dir": "x", "data.dataset_dir": "y", "data.path": "z"}, "seed": 3},
    )  # fmt: skip
    assert letters(found) == {"A": ["a", "c", "g"], "B": ["b"], "C": ["d"], "D": ["e"], "E": ["f"]}
    assert [column.title for column in found[:2]] == ["A (3 runs)", "B"]
    assert found[0].trainings == [TRAINING] * 3
    assert found[1].folders == str(tmp_path / "b")
    assert differing_settings(found) == {
        "training.seed": ["1; 2; 3", "1", "2", "1", "1"],
        "model.kind": ["–", "sasrec", "–", "–", "–"],
        "processes": ["2", "2", "2", "2", "1"],
        "dataset": ["table f1", "table f1", "table f1", "table f2", "table f1"],
    }


def test_runs_without_settings_stand_alone(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, [1, 2]) for name in "ab"]
    for folder in folders:
        (folder / "config.toml").unlink()
    assert letters(columns([read_run(folder) for folder in folders])) == {"A": ["a"], "B": ["b"]}


def test_there_are_letters_enough_and_yes_is_as_in_the_file(tmp_path: Path) -> None:
    found = compared(tmp_path, **{f"r{n}": {"settings": {"training.compile": n == 3, "x.n": n}} for n in range(28)})
    assert [column.letter for column in found][24:] == ["Y", "Z", "A1", "B1"]
    assert differing_settings(found)["training.compile"][2:4] == ["false", "true"]
