"""recommend and similar: what a person types and reads."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert4rec import TimedHistory, load
from bert4rec.__main__ import main
from bert4rec.commands.recommend import as_table
from bert4rec.serving.recommender import Recommendation
from bert4rec.training.run import run
from tests.conftest import LOG, long
from tests.fixture_types import Capture, Patch, Settings


def test_a_history_is_answered_by_a_table_and_so_is_each_item(made: Path, capsys: Capture) -> None:
    found = [Recommendation("SKU-1", "Alien", 2.25), Recommendation("b", "", -0.5)]
    assert as_table(found) == "   1  SKU-1    2.2500  Alien\n   2  b       -0.5000"
    (best,), (first, second) = load(made).recommend([[1, 2, 3]], 4), load(made).similar([1, 2], 3)
    capsys.readouterr()
    assert main(["recommend", str(made), "--items=1,2,3", "--top=4"]) == 0
    assert capsys.readouterr().out == as_table(best) + "\n"
    assert main(["similar", str(made), "1", "2", "--top=3"]) == 0
    assert capsys.readouterr().out == f"1\n{as_table(first)}\n2\n{as_table(second)}\n"
    assert main(["similar", str(made), "1", "--top=3", "--where=item in (2, 5)"]) == 0
    assert sorted(line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]) == ["2", "5"]


def test_users_of_the_dataset_and_all_of_them(made: Path, tmp_path: Path, capsys: Capture) -> None:
    def lines(*who: str) -> list[dict[str, Any]]:
        assert main(["recommend", str(made), *who, f"--output={tmp_path / 'x.jsonl'}"]) == 0
        assert f"{tmp_path}/x.jsonl: " in capsys.readouterr().err.splitlines()[-1]
        return [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]

    every = lines("--all")
    assert [len(line["items"]) for line in every] == [10] * 60
    by_user = {line["user"]: line for line in every}
    for found, expected in zip(lines("--user", "7", "3"), (by_user[7], by_user[3]), strict=True):
        assert (found["user"], found["items"]) == (expected["user"], expected["items"])
        assert found["scores"] == pytest.approx(expected["scores"], abs=2e-6)  # the last digit may depend on the batch
    assert main(["recommend", str(made), "--user", "7", "3", "--top=2"]) == 0
    first, *best_of_first, second, _, _ = capsys.readouterr().out.splitlines()
    assert (first, second) == ("7", "3")
    assert [int(line.split()[1]) for line in best_of_first] == by_user[7]["items"][:2]


def test_histories_of_a_file_with_allowed_and_denied_items(made: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "x.jsonl").write_text('{"user": "new", "items": [1, 999]}\n')
    (tmp_path / "allow").write_text("1\n2\n\n3\n4\n")
    (tmp_path / "deny").write_text("3\n")
    options = [f"--histories={tmp_path / 'x.jsonl'}", f"--allow={tmp_path / 'allow'}", f"--deny={tmp_path / 'deny'}"]
    assert main(["recommend", str(made), *options]) == 0
    printed = capsys.readouterr()
    line = json.loads(printed.out)
    assert (line["user"], sorted(line["items"])) == ("new", [2, 4])
    why, unknown = printed.err.splitlines()
    assert ("--seen=keep" in why, "999" in unknown) == (True, True)
    assert main(["recommend", str(made), *options, "--seen=keep"]) == 0
    printed = capsys.readouterr()
    assert sorted(json.loads(printed.out)["items"]) == [1, 2, 4]
    assert "--seen" not in printed.err


@pytest.mark.parametrize("options", [["--items="], ["--items=nothing"], ["--user", "nobody", "--allow-unknown"]])
def test_who_is_unknown_gets_the_most_popular_items(made: Path, capsys: Capture, options: list[str]) -> None:
    ids = load(made).ids
    capsys.readouterr()
    assert main(["recommend", str(made), *options, "--top=3"]) == 0
    printed = capsys.readouterr()
    found = [int(line.split()[1]) for line in printed.out.splitlines() if line.startswith(" ")]
    assert found == ids.of(ids.most_popular(3).tolist())
    assert printed.err.splitlines()[-1].startswith("warning: ")


@pytest.mark.usefixtures("alone")
def test_who_has_everything_is_counted_and_named(log_config: Settings, tmp_path: Path, capsys: Capture) -> None:
    """The users d and f have all eight items."""
    folder = run(log_config(**{"training.n_epochs": 1}))
    capsys.readouterr()
    assert main(["recommend", str(folder), "--all", "--seen=leave-out", f"--output={tmp_path / 'x.csv'}"]) == 0
    warning = capsys.readouterr().err.splitlines()[-1]
    assert [part in warning for part in ("2 of 6", "(d, f)", "--seen=keep")] == [True, True, True]
    assert {line[0] for line in (tmp_path / "x.csv").read_text().splitlines()[1:]} == {*"abce"}
    assert main(["recommend", str(folder), "--user", "d", "a", "--seen=leave-out"]) == 0
    assert "1 of 2 users" in capsys.readouterr().err
    assert main(["recommend", str(folder), "--all", "--seen=keep", f"--output={tmp_path / 'x.csv'}"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_the_users_for_an_item(made: Path, tmp_path: Path, capsys: Capture) -> None:
    best = load(made).users_for(1, 5)
    capsys.readouterr()
    assert main(["recommend", str(made), "--for-item=1", "--top=5"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        [str(rank), str(one.user)] for rank, one in enumerate(best, 1)
    ]
    for name in ("x.jsonl", "x.csv"):
        assert main(["recommend", str(made), "--for-item=1", "--top=5", f"--output={tmp_path / name}"]) == 0
    line = json.loads((tmp_path / "x.jsonl").read_text())
    assert (line["item"], line["users"]) == (1, [one.user for one in best])
    rows = [f"1,{rank},{one.user},{one.score:.6f}" for rank, one in enumerate(best, 1)]
    assert (tmp_path / "x.csv").read_text().splitlines() == ["item,rank,user,score", *rows]
    everybody = load(made).users_for(1, 100, leave_out_seen=False)
    assert (len(everybody), {*best} <= {*everybody}) == (60, True)
    capsys.readouterr()
    for wrong in (["--for-item=nothing"], ["--for-item=1", "--where=item = 1"], ["--for-item=1", "--all"]):
        assert main(["recommend", str(made), *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["nobody", "1000", "-1", "1.5", "9" * 30])
def test_a_user_who_is_named_and_unknown_is_an_error(made: Path, capsys: Capture, name: str) -> None:
    capsys.readouterr()
    assert main(["recommend", str(made), "--user", "1", "2.0", f"--user={name}" if name[0] == "-" else name]) == 2
    printed = capsys.readouterr()
    assert (name in printed.err, "--allow-unknown" in printed.err, printed.out) == (True, True, "")


def test_progress_is_shown_on_the_way(made: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr("bert4rec.runtime.console.SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr("bert4rec.serving.users.AT_ONCE", 40)
    assert main(["recommend", str(made), "--all", f"--output={tmp_path / 'all.csv'}"]) == 0
    first, second, _ = capsys.readouterr().err.splitlines()[-3:]
    assert re.fullmatch(r"40 histories  [\d,]+ a second  0:00 left", first)
    assert re.fullmatch(r"60 histories  [\d,]+ a second  0:00 left", second)


DENIED = [3, 5, 8, 13]
Answer = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def recommended(made: Path, tmp_path: Path, capsys: Capture) -> Answer:
    """The exit status, the items for one history of 150, and what was said."""

    def get(*options: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        status = main(["recommend", str(made), "--items=1,2", "--top=150", *options])
        out, err = capsys.readouterr()
        return status, {int(line.split()[1]) for line in out.splitlines()}, err

    return get


def test_items_may_be_a_column(recommended: Answer, tmp_path: Path) -> None:
    """tests/sources/test_user_tables.py has every form of a file."""
    pq.write_table(pa.table({"sku": DENIED, "n": DENIED}), tmp_path / "x.parquet")
    every = recommended()[1]
    assert {*DENIED} <= every
    status, items, said = recommended(f"--deny={tmp_path / 'x.parquet'}")
    assert (status, items, "from the column sku" in said) == (0, every - {*DENIED}, True)
    assert recommended(f"--allow={tmp_path / 'x.parquet'}")[1] == {*DENIED}


@pytest.mark.parametrize("option", ["--allow", "--deny"])
@pytest.mark.parametrize("text", ["A,B\nC,D\n", "item,why\nx,3\n", "no\nsuch\n"])
def test_a_list_without_a_known_item_is_refused(recommended: Answer, tmp_path: Path, option: str, text: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    status, items, said = recommended(f"{option}={tmp_path / 'x.csv'}", "--allow-unknown")
    assert (status, items, said.count("\n"), str(tmp_path / "x.csv") in said) == (2, set(), 1, True)


def test_a_list_of_mostly_unknown_items_is_refused_unless_it_is_accepted(recommended: Answer, tmp_path: Path) -> None:
    half, more, empty = (tmp_path / name for name in ("half", "more", "empty"))
    for path, text in ((half, "3\n5\n998\n999\n"), (more, "3\n997\n998\n"), (empty, "\n")):
        path.write_text(text)
    assert recommended(f"--deny={half}")[0] == 0
    status, items, said = recommended(f"--deny={more}")
    assert (status, items, said.count("\n"), "--allow-unknown" in said) == (2, set(), 1, True)
    status, items, _ = recommended(f"--deny={more}", "--allow-unknown")
    assert (status, 3 in items) == (0, False)
    assert recommended(f"--deny={empty}")[:2] == (0, recommended()[1])
    assert recommended(f"--allow={empty}")[0] == 2


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("times", ["target", long("none")])
def test_the_file_that_was_prepared_is_a_file_of_histories(
    log_config: Settings, log_folder: Path, tmp_path: Path, capsys: Capture, times: str
) -> None:
    """Whatever the order of its rows, without an option: the same lists as for the users of the dataset."""
    source = {"data.source": "table", "data.path": str(log_folder.parent / "log.csv")}
    columns = {"data.user_column": "who", "data.item_column": "what", "data.time_column": "at"}
    folder = run(log_config(**source, **columns, **{"model.times": times, "training.n_epochs": 1}))
    header, *lines = (log_folder.parent / "log.csv").read_text().splitlines()
    (tmp_path / "x.csv").write_text("\n".join([header, *reversed(lines)]) + "\n")
    (tmp_path / "y.csv").write_text("\n".join(["buyer,sku,day", *reversed(lines)]) + "\n")

    def lists(*options: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["recommend", str(folder), "--seen=keep", *options]) == 0
        found = map(json.loads, capsys.readouterr().out.splitlines())
        return {line["user"]: line["items"] for line in found}

    expected = lists("--all")
    assert expected.keys() == LOG.keys()
    assert lists(f"--histories={tmp_path / 'x.csv'}") == expected
    named = ["--data.user_column=buyer", "--data.item_column=sku", "--data.time_column=day"]
    assert lists(f"--histories={tmp_path / 'y.csv'}", *named) == expected


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("times", ["target", long("history")])
def test_items_without_times_are_those_of_now_or_of_the_instant_that_is_named(
    log_config: Settings, capsys: Capture, times: str, monkeypatch: Patch
) -> None:
    folder, now = run(log_config(**{"model.times": times, "training.n_epochs": 1})), 1_650_000_000
    monkeypatch.setattr("time.time", lambda: now + 0.7)
    capsys.readouterr()
    for options, at, is_said in (([], now, True), (["--at=2021-02-03T04:05"], 1_612_325_100, False)):
        assert main(["recommend", str(folder), "--items=1,2", *options]) == 0
        out, err = capsys.readouterr()
        (wanted,) = load(folder).recommend([TimedHistory(["1", "2"], [at, at], at)], 10)
        assert [line.split()[1] for line in out.splitlines()] == [str(one.item) for one in wanted]
        assert ("as of now" in err) == is_said


def test_a_file_that_is_read_is_never_replaced(tmp_path: Path, capsys: Capture) -> None:
    for option in ("histories", "allow", "deny"):
        path = tmp_path / f"{option}.csv"
        path.write_text("user,item\n1,2\n")
        history = [] if option == "histories" else ["--items=1"]
        assert main(["recommend", "anywhere", *history, f"--{option}={path}", f"--output={path}"]) == 2
        assert f"--output={path}: is the file of --{option}" in capsys.readouterr().err
        assert path.read_text() == "user,item\n1,2\n"
