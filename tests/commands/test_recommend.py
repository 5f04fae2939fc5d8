"""`recommend`: what a person types and reads."""

import json
import re
from pathlib import Path

import pytest

from bert4rec import load
from bert4rec.__main__ import main
from bert4rec.commands.recommend import LEFT_OUT, as_table
from bert4rec.inference.recommender import Recommendation


def test_one_history_is_answered_by_a_table(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = load(made).recommend([[1, 2, 3]], 4)
    capsys.readouterr()
    assert main(["recommend", str(made), "--items=1,2,3", "--top=4"]) == 0
    assert capsys.readouterr().out == as_table(found) + "\n"


def test_columns_stand_below_each_other() -> None:
    found = [Recommendation("SKU-1", "Alien", 2.25), Recommendation("b", "", -0.5)]
    assert as_table(found) == "   1  SKU-1    2.2500  Alien\n   2  b       -0.5000"


def test_users_of_the_dataset_and_all_of_them(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", str(made), "--all", f"--output={tmp_path / 'all.jsonl'}"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"{tmp_path}/all.jsonl: recommendations for 60 histories"
    every = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert len(every) == 60
    assert all(len(line["items"]) == 10 for line in every)
    capsys.readouterr()
    assert main(["recommend", str(made), "--user", "7", "3", f"--output={tmp_path / 'two.jsonl'}"]) == 0
    by_user = {line["user"]: line for line in every}
    two = [json.loads(line) for line in (tmp_path / "two.jsonl").read_text().splitlines()]
    assert two == [by_user[7], by_user[3]]
    capsys.readouterr()
    assert main(["recommend", str(made), "--user", "7", "3", "--top=2"]) == 0
    first, *best_of_first, second, _, _ = capsys.readouterr().out.splitlines()
    assert (first, second) == ("7", "3")
    assert [int(line.split()[1]) for line in best_of_first] == by_user[7]["items"][:2]


def test_histories_of_a_file_with_allowed_and_denied_items(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.jsonl").write_text('{"user": "new", "items": [1, 999]}\n')
    (tmp_path / "allow").write_text("1\n2\n\n3\n4\n")
    (tmp_path / "deny").write_text("3\n")
    options = [f"--histories={tmp_path / 'x.jsonl'}", f"--allow={tmp_path / 'allow'}", f"--deny={tmp_path / 'deny'}"]
    assert main(["recommend", str(made), *options]) == 0
    printed = capsys.readouterr()
    line = json.loads(printed.out)
    assert (line["user"], sorted(line["items"])) == ("new", [2, 4])
    assert printed.err.splitlines() == [LEFT_OUT, "warning: 1 of 2 items skipped: the model knows no 999"]
    assert main(["recommend", str(made), *options, "--seen=keep"]) == 0
    printed = capsys.readouterr()
    assert sorted(json.loads(printed.out)["items"]) == [1, 2, 4]
    assert LEFT_OUT not in printed.err


@pytest.mark.parametrize("options", [["--items="], ["--items=nothing"], ["--user", "nobody"]])
def test_who_is_unknown_gets_the_most_popular_items(
    made: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    ids = load(made).ids
    capsys.readouterr()
    assert main(["recommend", str(made), *options, "--top=3"]) == 0
    printed = capsys.readouterr()
    found = [int(line.split()[1]) for line in printed.out.splitlines() if line.startswith(" ")]
    assert found == ids.of(ids.most_popular(3).tolist())
    assert "knows no \n" not in printed.err
    assert printed.err.splitlines()[-1] == (
        "warning: 1 of 1 history without an item that the model knows: the most popular items are recommended"
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--items=1", "--top=0"], "--top=0: must be at least 1"),
        (["--items=1", "--allow=nowhere"], "nowhere: cannot be read: No such file or directory"),
        ([], "required"),
    ],
)
def test_one_line_for_what_cannot_be(
    made: Path, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    assert main(["recommend", str(made), *options]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


def test_progress_is_shown_on_the_way(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bert4rec.runtime.console.SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr("bert4rec.inference.user_histories.AT_ONCE", 40)
    assert main(["recommend", str(made), "--all", f"--output={tmp_path / 'all.csv'}"]) == 0
    first, second, _ = capsys.readouterr().err.splitlines()[-3:]
    assert re.fullmatch(r"40 histories  [\d,]+ a second  0:00 left", first)
    assert re.fullmatch(r"60 histories  [\d,]+ a second  0:00 left", second)
