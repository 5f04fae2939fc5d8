"""Forgotten users of a model: no file has them, all others are answered as before, wherever it was killed."""

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert4rec import load
from bert4rec.__main__ import main
from bert4rec.checkpoint.models_folder import find_versions, run_at
from bert4rec.checkpoint.run_folder import lock
from bert4rec.dataset.check import check_dataset
from bert4rec.update import clean_run
from bert4rec.update import forget as forgetting
from bert4rec.update.versions import make_first_version
from tests.checks import Capture, Patch
from tests.conftest import BY_HAND, WITHOUT_PROGRAM, long, prepare_log, spare, train_alone
from tests.folders import files_of
from tests.update.test_nightly import Killed, kill_before

pytestmark = pytest.mark.usefixtures("alone")

N_ROWS = 9  # of each user
LEFT = 'c-5 "é"&co'  # an id that JSON, CSV and HTML write in ways of their own


def names() -> list[str]:
    return [LEFT if number == 5 else f"c-{number}" for number in range(14)]


def made(place: Path, users: list[str], items: Sequence[Any] = range(11)) -> Path:
    """A models folder of a log of these users, with what commands add to a version and to the folder."""
    log = {user: [items[(number * (1 + at) + at) % 11] for at in range(N_ROWS)] for number, user in enumerate(users)}
    data = prepare_log(place, {f'"{user.replace(chr(34), 2 * chr(34))}"': items for user, items in log.items()})
    run = train_alone(data, place / "runs", draws=True, **BY_HAND, **{"run.name": "log", "training.n_epochs": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*WITHOUT_PROGRAM)
        make_first_version(models := place / "shop", run)
    (evaluation := run_at(models) / "evaluation").mkdir()
    texts = [one.strip('"').replace('""', '"') if isinstance(one, str) else one for one in items]
    table = pa.table({
        "user": [int(one) if one.isdigit() else one for one in users], "rank": range(len(users)),
        "item": [texts[number % 11] for number in range(len(users))],
    })  # fmt: skip
    pq.write_table(table, evaluation / "lists-test.parquet")
    rows = table.to_pylist()
    lists = [{"user": row["user"], "items": [row["item"], texts[-1]], "scores": [2.0, 1.0]} for row in rows]
    (evaluation / "lists-test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lists))
    with (evaluation / "lists-test.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["user", "rank", "item"], *(row.values() for row in rows)])
    (models / "tails").mkdir()
    numbers = np.arange(len(users))
    np.savez(
        models / "tails" / f"{run_at(models).name}.npz", users=numbers, champion=numbers / 10, challenger=numbers / 9
    )
    (models / "next").mkdir()
    (models / "next" / "update.json").write_text(json.dumps({"input": users[0]}))
    return models


@pytest.fixture(scope="module")
def made_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("texts"), names())


@pytest.fixture
def models(made_models: Path, tmp_path: Path) -> Path:
    """A copy of the models folder."""
    return Path(shutil.copytree(made_models, tmp_path / "shop", symlinks=True))


@pytest.fixture(autouse=True)
def quick(monkeypatch: Patch) -> None:
    spare(monkeypatch)
    monkeypatch.setattr(*WITHOUT_PROGRAM)


def said(capsys: Capture, *words: object, status: int = 0) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == status
    out, err = capsys.readouterr()
    return err if status == 2 else out


def values(capsys: Capture, *words: object, status: int = 0) -> Any:
    return json.loads(said(capsys, *words, "--json", status=status))


def found(capsys: Capture, models: Path, *names: str, option: str = "user") -> list[str]:
    """The files in which the search finds users or items."""
    options = [f"--{option}={name}" for name in names]
    capsys.readouterr()
    status = main(["models", "forget", str(models), *options, "--prove", "--json"])
    files = [str(Path(path).relative_to(models)) for path in json.loads(capsys.readouterr().out)["found"]]
    assert status == bool(files)
    return files


def lists_of(capsys: Capture, models: Path) -> dict[Any, Any]:
    lines = map(json.loads, said(capsys, "recommend", models, "--all").splitlines())
    return {line["user"]: line["items"] for line in lines}


@pytest.mark.parametrize("user", ["c-1", "c-13", LEFT])
def test_every_file_that_has_a_user_is_found_before_and_none_after(models: Path, capsys: Capture, user: str) -> None:
    lists, version = lists_of(capsys, models), f"versions/{run_at(models).name}"
    kinds = ("csv", "jsonl", "parquet")
    has_user = {
        "dataset/users/part-0000000000.parquet", f"{version}/ranks-test.parquet",
        *(f"{version}/evaluation/lists-test.{kind}" for kind in kinds),
    }  # fmt: skip
    examples = json.loads((run_at(models) / "examples.json").read_text())
    if user in [one["user"] for one in examples["users"]]:
        has_user |= {f"{version}/examples.json", f"{version}/report.html"}
    assert has_user <= {*found(capsys, models, user)} <= has_user | {f"{version}/ranks-validation.parquet"}
    text = said(capsys, "models", "forget", models, f"--user={user}")
    assert text.splitlines()[0] == f"{models}: 1 user with {N_ROWS} rows forgotten"
    assert run_at(models).name in text
    assert "--full" in text
    assert found(capsys, models, user) == []
    check_dataset(models / "dataset")
    assert lists_of(capsys, models) == {other: items for other, items in lists.items() if other != user}
    kept = json.loads((run_at(models) / "examples.json").read_text())
    assert kept == examples | {"users": [one for one in examples["users"] if one["user"] != user]}
    assert (run_at(models) / "report.html").is_file()
    assert not (models / "next").exists()
    (tail,) = (models / "tails").glob("*.npz")
    arrays = np.load(tail)
    assert len(arrays["users"]) == len(arrays["champion"]) == len(arrays["challenger"]) == 13


@pytest.mark.long
def test_users_whose_ids_are_numbers_are_found_where_ids_are(tmp_path: Path, capsys: Capture) -> None:
    models = made(tmp_path, [str(20 + number) for number in range(14)])
    capsys.readouterr()
    version = f"versions/{run_at(models).name}"
    examples = json.loads((run_at(models) / "examples.json").read_text())
    user = str(examples["users"][0]["user"])
    kinds = ("csv", "jsonl", "parquet")
    has_user = {
        "dataset/users/part-0000000000.parquet", f"{version}/ranks-test.parquet", f"{version}/examples.json",
        f"{version}/report.html", *(f"{version}/evaluation/lists-test.{kind}" for kind in kinds),
    }  # fmt: skip
    assert has_user <= {*found(capsys, models, user)} <= has_user | {f"{version}/ranks-validation.parquet"}
    said(capsys, "models", "forget", models, f"--user={user}")
    assert found(capsys, models, user) == []
    check_dataset(models / "dataset")


def test_several_users_of_a_file_and_some_who_are_not_there(models: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "users.txt").write_text("c-2\n\n c-9 \nc-2\nnobody\n")
    answer = values(capsys, "models", "forget", models, "--users", tmp_path / "users.txt", "--user=c-11")
    names = [version.name for version in find_versions(models)]
    assert answer == {"users": 3, "rows": 3 * N_ROWS, "unknown": ["nobody"], "versions": names, "events": 0}
    assert found(capsys, models, "c-2", "c-9", "c-11") == []
    (only := tmp_path / "empty.txt").write_text("\n")
    for words in (["--user=c-2"], ["--users", only], [], ["--users", tmp_path / "nothing"]):
        before = files_of(models) | {".lock": ()}
        error = said(capsys, "models", "forget", models, *words, status=2)
        assert len(error.strip().splitlines()) == 1
        assert files_of(models) | {".lock": ()} == before
    assert len(lists_of(capsys, models)) == 11


@pytest.mark.parametrize("option", ["user", "item"])
def test_it_is_killed_anywhere_and_the_same_again_ends_as_if_unbroken(
    models: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch, option: str
) -> None:
    whole = Path(shutil.copytree(models, tmp_path / "whole", symlinks=True))
    name = json.loads((run_at(models) / "examples.json").read_text())["users"][3]["user"] if option == "user" else "5"
    said(capsys, "models", "forget", whole, f"--{option}={name}")
    first = ["replace_directory", "card_again"] if option == "item" else []
    for place, function in (
        (forgetting, f"forget_{option}s"), *((clean_run, one) for one in first), (clean_run, "_clean_parquet"),
        (clean_run, "atomic_write"), (clean_run, "write_html"),
        *([(forgetting, "_clean_tail")] if option == "user" else []), (forgetting, "replace_directory"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            kill_before(patch, place, function, 1)
            with pytest.raises(Killed):
                main(["models", "forget", str(models), f"--{option}={name}"])
        assert load(models).recommend([["1", "2"]], 3)[0]
        check_dataset(models / "dataset")
    said(capsys, "models", "forget", models, f"--{option}={name}")
    assert found(capsys, models, name, option=option) == []
    other, same = ({name: content for name, (content, _) in files_of(one).items()} for one in (whole, models))
    assert other.keys() == same.keys()
    varying = (".lock", "dataset/metadata.json", f"versions/{run_at(models).name}/report.html", "index.html")
    assert {name: one for name, one in other.items() if name not in varying} == {
        name: one for name, one in same.items() if name not in varying
    }
    metadata = [
        json.loads((one / "dataset" / "metadata.json").read_text()) | {"created_at": ""} for one in (whole, models)
    ]
    assert metadata[0] == metadata[1]


def test_an_update_at_the_same_time_is_waited_for_and_options_of_others_are_refused(
    models: Path, capsys: Capture
) -> None:
    with lock(models):
        assert "another job" in said(capsys, "models", "forget", models, "--user=c-1", status=2)
    assert "forget MODEL" in said(capsys, "models", "list", models, "--user=c-1", status=2)


def test_rows_of_a_forgotten_user_are_found_by_number(models: Path, capsys: Capture) -> None:
    said(capsys, "models", "forget", models, "--user=c-3")
    (tail,) = (models / "tails").glob("*.npz")
    arrays = dict(np.load(tail))
    number = sorted(names()).index("c-3")
    np.savez(tail, **{name: np.append(one, [number]) for name, one in arrays.items()})
    assert found(capsys, models, "c-1000") == [str(tail.relative_to(models))]


QUOTED = '"i-5 ""é""&co"'  # as CSV writes it
AS_TEXT = [QUOTED if number == 5 else f"i-{number}" for number in range(11)]


@pytest.mark.parametrize(("items", "item"), [long(range(11), "5"), (AS_TEXT, 'i-5 "é"&co'), long(AS_TEXT, "i-1")])
def test_a_forgotten_item_is_in_no_file_and_in_no_list_and_the_nights_go_on(
    tmp_path: Path, capsys: Capture, items: Sequence[Any], item: str
) -> None:
    models = made(tmp_path, names(), items)
    capsys.readouterr()
    version = f"versions/{run_at(models).name}"
    name: Any = int(item) if item.isdigit() else item
    others = [name for name in (load(models).ids.of(range(11))) if str(name) != item]
    before = dict(zip(others, load(models).similar(others, 10), strict=True))
    has_item = {
        "dataset/items/part-0000000000.parquet", f"{version}/package/items.jsonl", f"{version}/examples.json",
        *(f"{version}/evaluation/lists-test.{kind}" for kind in ("csv", "jsonl", "parquet")),
    }  # fmt: skip
    assert has_item <= {*found(capsys, models, item, option="item")}
    text = said(capsys, "models", "forget", models, f"--item={item}")
    assert text.startswith(f"{models}: 1 item with ")
    assert run_at(models).name in text
    assert found(capsys, models, item, option="item") == []
    check_dataset(models / "dataset")
    for model in (load(models), load(run_at(models) / "package")):
        assert not model.knows([name]).any()
        lists = [*model.recommend([others[:2], []], 11, leave_out_seen=False), *model.similar(others, 10)]
        assert {one.item for some in lists for one in some} == {*others}
        for other, found_before in before.items():
            (now,) = model.similar([other], 10)
            assert [one.item for one in now] == [one.item for one in found_before if one.item != name]
    lines = (run_at(models) / "evaluation" / "lists-test.jsonl").read_text().splitlines()
    assert {len(json.loads(line)["items"]) == len(json.loads(line)["scores"]) for line in lines} == {True}
    assert len(lines) == 14
    assert "has no item" in said(capsys, "models", "forget", models, f"--item={item}", status=2)
    assert "users and items at once" in said(capsys, "models", "forget", models, "--item=1", "--user=2", status=2)
    (tmp_path / "day.csv").write_text(f"who,what,at\nc-1,{items[2]},1700000000\nc-2,{items[3]},1700000001\n")
    assert main(["update", str(models), f"--data={tmp_path}/day.csv", "--accept"]) == 0
    assert main(["update", str(models), "--full"]) == 0
    assert found(capsys, models, item, option="item") == []
    assert {one.item for one in load(models).recommend([others[:2]], 11, leave_out_seen=False)[0]} == {*others}
