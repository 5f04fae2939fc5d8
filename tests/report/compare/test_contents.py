"""Tables and sentences, to the letter."""

from pathlib import Path

from bert4rec.report.compare.contents import Comparison, Table, compare
from bert4rec.report.compare.runs import read_run
from tests.report.compare.run_folders import make_run

RULES = (
    "Test: the last item of each user; validation: the last but one of a sample of the users. Seen is all of a user's "
    "history before the target. Ties go to the lower id; ids are shuffled."
)


def comparison_of(*folders: Path) -> Comparison:
    return compare([read_run(folder) for folder in folders])


def table(comparison: Comparison, title: str) -> Table:
    (found,) = (table for table in comparison.tables if table.title.startswith(title))
    return found


def test_two_runs_of_the_same_users(tmp_path: Path) -> None:
    """The second one finds the target of every user, and the first one of none but one."""
    a, b = make_run(tmp_path / "a", [1, *[30] * 19]), make_run(tmp_path / "b", [1] * 20, settings={"model.kind": "x"})
    found = comparison_of(a, b)
    assert found.sentences == [
        "B is better than A in NDCG@10 (full catalogue): +0.9500 (95 % interval +0.8500 to +1.0000, p ≤ 0.0001)."
    ]
    assert [table.title.partition(":")[0] for table in found.tables] == [
        "Runs", "Settings that differ", "Test", "Differences", "Cost",
    ]  # fmt: skip
    assert table(found, "Runs").rows == [
        ["A", "Bert4Rec", "table, leave_one_out", str(a)],
        ["B", "Bert4Rec", "table, leave_one_out", str(b)],
    ]
    assert table(found, "Settings").rows == [["model.kind", "–", "x"]]
    full = table(found, "Test: Full catalogue, without the items")
    assert full.header == ["", "A", "B"]
    assert full.rows[:2] == [["users", "20", "20"], ["HR@5", "0.0500 [0.0000, 0.1500]", "1.0000 [1.0000, 1.0000]"]]
    differences = table(found, "Differences: Full catalogue, without the items")
    assert differences.header == ["", "B − A"]
    assert differences.rows[0] == ["HR@5", "+0.9500 [+0.8500, +1.0000], p ≤ 0.0001"]
    assert table(found, "Cost").rows == [
        ["minutes of training", "1.5", "1.5"],
        ["epochs", "3", "3"],
        ["sequences a second", "250", "250"],
        ["peak memory, MiB a process", "1,024", "1,024"],
        ["processes", "2", "2"],
    ]
    assert found.notes[0] == RULES
    assert len(found.notes) == 3
    assert comparison_of(b, a).sentences[0].startswith("B is worse than A in NDCG@10 (full catalogue): -0.9500 (95 %")


def test_on_validation_nothing_is_said_of_the_test(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", [1] * 9, validation=[1, *[30] * 19])
    b = make_run(tmp_path / "b", [30] * 9, validation=[1] * 20, settings={"model.kind": "x"})
    on_test = make_run(tmp_path / "of test", [1, *[30] * 19]), make_run(tmp_path / "b of test", [1] * 20)
    found, alike = compare([read_run(a), read_run(b)], split="validation"), comparison_of(*on_test)
    assert found.sentences == alike.sentences
    full = "Full catalogue, without the items"
    assert table(found, f"Validation: {full}").rows == table(alike, f"Test: {full}").rows
    assert not any(table.title.startswith("Test") for table in found.tables)
    (missing,) = compare([read_run(a), read_run(on_test[0])], split="validation").sentences
    assert missing.startswith(f"B is not paired with A: {on_test[0]} has no ranks-validation.parquet")


def test_seeds_are_a_mean_and_a_spread(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / str(n), [1] * n + [30] * (10 - n), seed=n) for n in (2, 4)]
    found = comparison_of(*folders, make_run(tmp_path / "b", [1] * 3 + [30] * 7, settings={"model.kind": "x"}))
    full = table(found, "Test: Full catalogue, without the items")
    assert full.header == ["", "A (2 runs)", "B"]
    assert full.rows[1][:2] == ["HR@5", "0.3000 ± 0.1414"]
    assert full.rows[1][2].startswith("0.3000 [")
    assert table(found, "Settings").rows == [["training.seed", "2; 4", "1"], ["model.kind", "–", "x"]]
    assert found.sentences[0].startswith("B and A do not clearly differ in NDCG@10 (full catalogue): +0.0000 (95 %")
    assert "±: the standard deviation over the runs of a column, which differ in training.seed alone." in found.notes


def test_other_data_stand_side_by_side_unpaired(tmp_path: Path) -> None:
    """So does a report of an older version, and one of what was not trained."""
    old = {"intervals": {}, "model": "SASRec", "training": {"seconds": 30.0}}
    popular = {"HR@10": 0.5, "users": 3}
    found = comparison_of(
        make_run(tmp_path / "a", [1, 2]), make_run(tmp_path / "b", [1, 2, 3], fingerprint="f2", **old),
        make_run(tmp_path / "c", [1, 2, 3], fingerprint="f3", test={"popular": popular}),
    )  # fmt: skip
    assert found.sentences == [
        "B is not paired with A: they were measured on different datasets.",
        "C is not paired with A: they were measured on different datasets.",
    ]
    assert not any(table.title.startswith("Differences") for table in found.tables)
    assert table(found, "Test: Full catalogue, without the items").rows[:2] == [
        ["users", "2", "3", "–"],
        ["HR@5", "1.0000 [1.0000, 1.0000]", "1.0000", "–"],
    ]
    assert table(found, "Test: Among 5 unseen items drawn by popularity").rows[0] == ["HR@10", "–", "–", "0.5000"]
    assert table(found, "Cost").rows[:2] == [["minutes of training", "1.5", "0.5", "1.5"], ["epochs", "3", "–", "3"]]
    assert len(found.notes) == 2
