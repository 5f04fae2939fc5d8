"""What a finished run leaves: page, pictures, example users; and that what is optional never costs the report."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bert4rec.dataset.reader import open_dataset
from bert4rec.evaluation.evaluator import Evaluator, Example
from bert4rec.report.figures import read_contents
from bert4rec.training import results
from bert4rec.training.results import described
from bert4rec.training.run import run
from tests.conftest import leave_group, prepare_log
from tests.fixture_types import Capture, Patch, Settings
from tests.runs import report_of

OPTIONAL = ("described", "report_page", "write_html")


def test_a_run_leaves_its_page_its_pictures_and_its_examples(made: Path) -> None:
    report, users = report_of(made), read_contents(made).examples["users"]
    assert len(users) == 10
    assert [user["rank"] for user in users] == sorted(user["rank"] for user in users)
    for user in users:
        items = [item["item"] for item in user["recommendations"]]
        assert len(items) == 10
        assert (user["target"]["item"] in items) == (user["rank"] <= 10)
    hits = report["hits_by_rank"]
    assert hits["test"][hits["ks"].index(10)] == report["test"]["full"]["HR@10"]
    parts = report["training"]["seconds_by_part"]
    assert parts.keys() == {"start", "training", "validation", "saving", "test"}
    assert parts["training"] <= report["training"]["seconds"]
    n_bytes = sum(shard["weight_bytes"] for shard in report["plan"]["shards"])
    assert n_bytes == 4 * report["plan"]["tables"]["item"]["rows"] * 20
    page = (made / "report.html").read_text()
    assert f"User {users[0]['user']}" in page
    assert page.count("<svg") == len(list((made / "pictures").glob("*.png"))) == 7
    assert all(warning["text"] in (made / "report.md").read_text() for warning in report["warnings"])


@pytest.mark.usefixtures("alone")
def test_what_is_optional_never_costs_the_report(make: Settings, monkeypatch: Patch, capsys: Capture) -> None:
    def fail(*_: Any) -> None:
        raise pa.ArrowInvalid("offset overflow\nwhile concatenating arrays")

    for place, name in ((Evaluator, "write_ranks"), *((results, name) for name in OPTIONAL)):
        monkeypatch.setattr(place, name, fail)
    folder = run(make(**{"model.kind": "popularity"}))
    assert report_of(folder)["test"]
    lines = [line for line in capsys.readouterr().out.splitlines() if "ArrowInvalid" in line]
    names = ("report.md", "ranks-*.parquet", "examples.json", "report.html")
    assert [line.split(":")[1].strip() for line in lines] == [str(folder / name) for name in names]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("place", "name"), [(Evaluator, "write_ranks"), (results, "described")])
def test_the_report_is_written_before_the_ids(make: Settings, monkeypatch: Patch, place: Any, name: str) -> None:
    monkeypatch.setattr(place, name, lambda *_: signal.raise_signal(signal.SIGINT))  # as for too little memory
    config = make(**{"run.name": "ended", "model.kind": "popularity"})
    with pytest.raises(KeyboardInterrupt):
        run(config)
    leave_group()
    assert report_of(Path(config.run.dir) / "ended")["test"]


def test_ids_and_titles_are_those_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "titles.csv").write_text("item,title\n1,<One>\n4,Four\n")
    folder = prepare_log(tmp_path, **{"data.titles_path": tmp_path / "titles.csv"})
    dataset = open_dataset(folder)
    ids = {original: index for index, original in enumerate(dataset.originals(8))}
    history = np.array([ids[item] for item in (1, 2, 3, 4, 5, 6, 7, 8, 1)], np.int32)
    items = np.array([ids[4], ids[5]], np.int32)
    content = described(dataset, [Example(3, history, ids[4], 1, items, np.array([2.0, 1.5]))])
    titles = {1: "<One>", 4: "Four"}

    def item(name: int) -> dict[str, object]:
        return {"item": name, "title": titles.get(name, "")}

    assert content == {
        "n_items": 8,
        "n_test_users": 6,
        "users": [{
            "user": "d", "rank": 1, "n_history": 9, "target": item(4),
            "history": [item(name) for name in (2, 3, 4, 5, 6, 7, 8, 1)],  # the last eight
            "recommendations": [item(4) | {"score": 2.0}, item(5) | {"score": 1.5}],
        }],
    }  # fmt: skip
