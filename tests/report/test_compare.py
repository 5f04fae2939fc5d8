"""Runs side by side: which are one column, their figures and paired differences, as text and as HTML."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert4rec.evaluation.intervals import paired_difference
from bert4rec.report.compared_runs import Column, columns, differing_settings, pairs, read_run
from bert4rec.report.comparison import Comparison, Table, compare, draw_curves, has_curves, html_page, text_page
from bert4rec.runtime.errors import DataError
from tests.report.runs_by_hand import TRAINING, make_run

X = {"model.kind": "x"}
FULL = "Full catalogue, without the items"


def columns_of(tmp_path: Path, **runs: dict[str, Any]) -> list[Column]:
    return columns([read_run(make_run(tmp_path / name, [1, 2], **options)) for name, options in runs.items()])


def comparison_of(*folders: Path) -> Comparison:
    return compare([read_run(folder) for folder in folders])


def column(*folders: Path) -> Column:
    return Column("X", [read_run(folder) for folder in folders])


def table(comparison: Comparison, title: str) -> Table:
    (found,) = (table for table in comparison.tables if table.title.startswith(title))
    return found


def test_a_run_and_an_evaluation_in_it(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", [1, 2], settings={"model.kind": "sasrec"})
    run = read_run(folder)
    assert run.settings == {"run.name": "a", "training.seed": 1, "model.kind": "sasrec"}
    assert (run.seed, run.fingerprint) == (1, "f1")
    assert run.curve == [(1.0, {"NDCG@10": 0.1}), (2.0, {"NDCG@10": 0.2})]
    (folder / "evaluation").mkdir()
    (folder / "evaluation" / "report.json").write_text(json.dumps({"dataset": {"fingerprint": "f2"}}))
    evaluation = read_run(folder / "evaluation")
    assert (evaluation.settings, evaluation.fingerprint, evaluation.curve) == (run.settings, "f2", [])
    alone = tmp_path / "alone"
    (folder / "evaluation").rename(alone)
    assert read_run(alone).settings == {}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("report.json", "{"), ("config.toml", "seed"), ("config.toml", "seed = 1"),
        ("metrics.jsonl", '{"kind": "validation", "step": 1, "full": {}}'),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, name: str, content: str) -> None:
    folder = make_run(tmp_path / "a", [1, 2])
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=rf"^[^\n]*{name}[^\n]*$"):
        read_run(folder)


def test_runs_that_differ_in_their_seed_alone_are_one_column(tmp_path: Path) -> None:
    sasrec = {"settings": {"model.kind": "sasrec"}}
    found = columns_of(
        tmp_path, a={"seed": 1}, b={**sasrec, "seed": 1}, c={"seed": 2}, d={"seed": 2}, e={"fingerprint": "f2"},
        f={"world_size": 1}, g={"settings": {"run.dir": "x", "data.dataset_dir": "y", "data.path": "z"}, "seed": 3},
    )  # fmt: skip
    assert {column.letter: [run.folder.name for run in column.runs] for column in found} == {
        "A": ["a", "c", "g"], "B": ["b"], "C": ["d"], "D": ["e"], "E": ["f"],
    }  # fmt: skip
    assert [column.title for column in found[:2]] == ["A (3 runs)", "B"]
    assert found[0].trainings == [TRAINING] * 3
    assert differing_settings(found) == {
        "training.seed": ["1; 2; 3", "1", "2", "1", "1"],
        "model.kind": ["–", "sasrec", "–", "–", "–"],
        "processes": ["2", "2", "2", "2", "1"],
        "dataset": ["table f1", "table f1", "table f1", "table f2", "table f1"],
    }


def test_letters_go_on_after_z_and_runs_without_settings_are_alone(tmp_path: Path) -> None:
    found = columns_of(tmp_path, **{f"r{n}": {"settings": {"training.compile": n == 3, "x.n": n}} for n in range(28)})
    assert [column.letter for column in found][24:] == ["Y", "Z", "A1", "B1"]
    assert differing_settings(found)["training.compile"][2:4] == ["false", "true"]
    for name in ("r0", "r1"):
        (tmp_path / name / "config.toml").unlink()
    assert [len(column.runs) for column in columns([read_run(tmp_path / name) for name in ("r0", "r1")])] == [1, 1]


def test_a_users_value_is_the_mean_over_the_runs(tmp_path: Path) -> None:
    """Hits of four users: 1, 0, 0, 1 before; (1 + 1) / 2, (1 + 0) / 2, 0, 1 after."""
    first = column(make_run(tmp_path / "a", [1, 11, 30, 2]))
    other = column(make_run(tmp_path / "b", [2, 10, 40, 2]), make_run(tmp_path / "c", [1, 12, 20, 2], seed=2))
    found = pairs(first, other, {"full": [10]}, split="test")
    assert (found.problem, [*found.differences], [*found.differences["full"]]) == (
        "", ["full"], ["HR@10", "NDCG@10", "MRR"],
    )  # fmt: skip
    assert found.differences["full"]["HR@10"] == paired_difference(np.array([0, 0.5, 0, 0]))
    reciprocal = np.array([0.75 - 1, (1 / 10 + 1 / 12) / 2 - 1 / 11, (1 / 40 + 1 / 20) / 2 - 1 / 30, 0])
    assert found.differences["full"]["MRR"].value == pytest.approx(reciprocal.mean())


def test_other_datasets_seen_items_users_and_missing_ranks_are_not_paired(tmp_path: Path) -> None:
    first = column(make_run(tmp_path / "a", [1, 2]))
    for name, options, reason in (
        ("b", {"fingerprint": "f2"}, "datasets"), ("d", {"seen_items": "keep"}, "evaluation.seen_items"),
        ("e", {"seen_items": "by_item", "items_again": 3}, "evaluation.seen_items"),
        ("c", {"users": [0, 5]}, "users"),
    ):  # fmt: skip
        other = column(make_run(tmp_path / name, [1, 2], **options))
        differences, problem = pairs(first, other, {"full": [10]}, split="test")
        assert (differences, reason in problem) == ({}, True)
    (tmp_path / "c" / "ranks-test.parquet").unlink()
    problem = pairs(first, other, {"full": [10]}, split="test").problem
    assert (str(tmp_path / "c") in problem, "ranks-test.parquet" in problem) == (True, True)
    (tmp_path / "a" / "ranks-test.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"a/ranks-test.parquet"):
        pairs(first, first, {"full": [10]}, split="test")


def test_two_runs_of_the_same_users(tmp_path: Path) -> None:
    """The second run finds the target of every user, the first one that of one user."""
    a, b = make_run(tmp_path / "a", [1, *[30] * 19]), make_run(tmp_path / "b", [1] * 20, settings=X)
    found = comparison_of(a, b)
    (sentence,) = found.sentences
    figures = ["B is better", "+0.9500", "+0.8500 to +1.0000", "p ≤ 0.0001"]
    assert [figure in sentence for figure in figures] == [True] * 4
    assert "B is worse" in comparison_of(b, a).sentences[0]
    runs = [[letter, "Bert4Rec", "table, leave_one_out", str(path)] for letter, path in (("A", a), ("B", b))]
    assert table(found, "Runs").rows == runs
    assert table(found, "Settings").rows == [["model.kind", "–", "x"]]
    full, differences = table(found, f"Test: {FULL}"), table(found, f"Differences: {FULL}")
    assert (full.header, differences.header) == (["", "A", "B"], ["", "B − A"])
    assert full.rows[1] == ["HR@5", "0.0500 [0.0089, 0.2361]", "1.0000 [0.8389, 1.0000]"]
    assert differences.rows[0] == ["HR@5", "+0.9500 [+0.8500, +1.0000], p ≤ 0.0001"]
    costs = [row[1:] for row in table(found, "Cost").rows]
    assert costs == [[cost] * 2 for cost in ("1.5", "3", "250", "1,024", "2")]


def test_on_validation_the_test_is_not_shown(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", [1] * 9, validation=[1, *[30] * 19])
    b = make_run(tmp_path / "b", [30] * 9, validation=[1] * 20, settings=X)
    on_test = make_run(tmp_path / "of test", [1, *[30] * 19]), make_run(tmp_path / "b of test", [1] * 20)
    found, alike = compare([read_run(a), read_run(b)], split="validation"), comparison_of(*on_test)
    assert found.sentences == alike.sentences
    assert table(found, f"Validation: {FULL}").rows == table(alike, f"Test: {FULL}").rows
    assert not any(table.title.startswith("Test") for table in found.tables)
    (missing,) = compare([read_run(a), read_run(on_test[0])], split="validation").sentences
    assert f"{on_test[0]} has no ranks-validation.parquet" in missing


def test_seeds_are_a_mean_and_a_spread_and_other_datasets_unpaired(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / str(n), [1] * n + [30] * (10 - n), seed=n) for n in (2, 4)]
    popular = {"fingerprint": "f3", "test": {"popular": {"HR@10": 0.5, "users": 3}}}
    found = comparison_of(
        *folders, make_run(tmp_path / "b", [1] * 3 + [30] * 7, settings=X),
        make_run(tmp_path / "c", [1, 2, 3], fingerprint="f2", intervals={}), make_run(tmp_path / "d", [1], **popular),
    )  # fmt: skip
    full = table(found, f"Test: {FULL}")
    assert full.header == ["", "A (2 runs)", "B", "C", "D"]
    assert full.rows[0] == ["users", "10", "10", "3", "–"]
    assert (full.rows[1][:2], full.rows[1][2][:8], full.rows[1][3:]) == (
        ["HR@5", "0.3000 ± 0.1414"], "0.3000 [", ["1.0000", "–"],
    )  # fmt: skip
    assert table(found, "Settings").rows[0] == ["training.seed", "2; 4", "1", "1", "1"]
    assert table(found, "Test: Among 5 unseen items drawn by popularity").rows[0] == ["HR@10", *"–––", "0.5000"]
    assert table(found, "Differences").header == ["", "B − A"]


def test_a_line_for_each_run_and_a_colour_for_each_column(tmp_path: Path) -> None:
    found = columns_of(tmp_path, a={}, b={"seed": 2}, c={"settings": X})
    (axes,) = draw_curves(found).axes
    assert [line.get_color() for line in axes.lines] == ["C0", "C0", "C1"]
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[1.0, 0.1], [2.0, 0.2]]] * 3
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["A", "B"]
    (tmp_path / "c" / "metrics.jsonl").unlink()
    assert [has_curves([column(tmp_path / name)]) for name in "ac"] == [True, False]


def test_text_is_aligned_and_html_escapes_all_text(tmp_path: Path) -> None:
    evil = {"model.kind": "<script>alert(1)</script> | &"}
    folders = make_run(tmp_path / "a", [1, 9]), make_run(tmp_path / "b", [1, 11], settings=evil, model="<b>x</b>")
    comparison = comparison_of(*folders)
    text, page = text_page(comparison, picture="c.png"), html_page(comparison)
    assert "\n| model.kind | – | <script>alert(1)</script> \\| & |\n" in text
    lines = text.partition("## Runs\n\n")[2].partition("\n\n")[0].splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].strip("|-") == ""
    assert "](c.png)\n" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; | &amp;" in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert page.count("<svg") == 1
    assert page == html_page(comparison)
    forbidden = ("<script", " src=", "<link", "@import", "url(http", 'href="http')
    assert not any(word in page for word in forbidden)
    assert len(page) < 10**6
