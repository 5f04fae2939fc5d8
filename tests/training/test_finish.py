"""A finished run has a page, pictures, examples and a fallback; an optional file that fails costs no report."""

import json
from collections import Counter
from math import log2
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from bert4rec import load
from bert4rec.__main__ import main
from bert4rec.dataset.reader import open_dataset
from bert4rec.evaluation.evaluator import Evaluator, Example
from bert4rec.report.figures import read_contents
from bert4rec.training import results
from bert4rec.training.results import described
from bert4rec.training.run import run
from tests.checks import one_line
from tests.conftest import leave_group, prepare_log
from tests.fixture_types import Capture, Patch, Settings
from tests.runs import report_of

pytestmark = pytest.mark.usefixtures("alone")

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
    assert page.count("<svg") == len(list((made / "pictures").glob("*.png"))) > 0
    assert all(warning["text"] in (made / "report.md").read_text() for warning in report["warnings"])


def test_what_is_optional_never_costs_the_report(make: Settings, monkeypatch: Patch, capsys: Capture) -> None:
    fail = Mock(side_effect=pa.ArrowInvalid("offset overflow\nwhile concatenating arrays"))
    for place, name in ((Evaluator, "write_ranks"), *((results, name) for name in OPTIONAL)):
        monkeypatch.setattr(place, name, fail)
    folder = run(make(**{"model.kind": "popularity"}))
    assert report_of(folder)["test"]
    lines = [line for line in capsys.readouterr().out.splitlines() if "ArrowInvalid" in line]
    names = ("report.md", "ranks-*.parquet", "examples.json", "report.html")
    assert [line.split(":")[1].strip() for line in lines] == [str(folder / name) for name in names]


@pytest.mark.parametrize(("place", "name"), [(Evaluator, "write_ranks"), (results, "described")])
def test_the_report_is_written_before_the_ids(make: Settings, monkeypatch: Patch, place: Any, name: str) -> None:
    monkeypatch.setattr(place, name, Mock(side_effect=KeyboardInterrupt))  # as the system ends it for its memory
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


WINTER, SUMMER = [*range(15)], [*range(100, 108)]
SHORT = {"training.n_epochs": 1, "model.kind": "sasrec"}


def season(last: list[int]) -> dict[str, list[int]]:
    """Forty users who take nine things of the winter, then two of the summer, and two of `last`, which are held out."""
    draw, log = np.random.default_rng(2), {}
    for user in range(40):
        winter, summer = draw.permutation(WINTER).tolist(), draw.permutation(SUMMER).tolist()
        log[f"u{user}"] = [*winter[:9], *summer[:2], *(summer[2:4] if last is SUMMER else winter[9:11])]
    return log


def trained(config: Settings, dataset: Path, **changes: Any) -> Path:
    return run(config(**{"data.dataset_dir": str(dataset), **SHORT, **changes}))


def ndcg(dataset: Path, order: list[Any]) -> float:
    """NDCG@10 of the validation targets in an order of all items, without those of each history."""
    split = open_dataset(dataset).splits["validation"]
    rows = split.read(np.arange(len(split)))
    gains = []
    for history, target in zip(np.split(rows.items, rows.lengths.cumsum()[:-1]), rows.targets.tolist(), strict=True):
        place = [item for item in order if item not in history].index(target)
        gains.append(1 / log2(place + 2) if place < 10 else 0.0)
    return sum(gains) / len(gains)


def test_things_of_the_season_for_a_new_user(log_config: Settings, tmp_path: Path, capsys: Capture) -> None:
    log, package = season(SUMMER), tmp_path / "package"
    dataset = prepare_log(tmp_path, log)
    folder = trained(log_config, dataset)
    model = load(folder)
    order, overall = model.ids.most_popular(99).tolist(), np.argsort(-model.ids.train_counts, kind="stable").tolist()
    figures = {"popularity": ndcg(dataset, overall), "recent_popularity": ndcg(dataset, order)}
    assert report_of(folder)["fallback"] == {
        "kind": "recent_popularity", "metric": "NDCG@10", "validation": pytest.approx(figures),
    }  # fmt: skip
    assert {*model.ids.of(overall[:15])} == {*WINTER}
    newest = Counter(items[at] for items in log.values() for at in (9, 10))  # the last tenth, and the same second
    counts = dict(zip(model.items.ids, model.ids.recent_counts.tolist(), strict=True))  # type: ignore[union-attr]
    assert counts == {item: newest[item] for item in counts}

    assert main(["export", str(folder), f"--output={package}", "--format=safetensors"]) == 0
    (best,) = load(folder).recommend([["unknown"]], 23)
    assert best.fallback == "recent_popularity"
    for place in (package, folder / "checkpoints" / "best"):
        assert load(place).recommend([["unknown"]], 23) == [best]
    assert ({one.item for one in best[:8]}, {one.item for one in best[8:]}) == ({*SUMMER}, {*WINTER})
    assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
    assert sum(np.exp(one.score) for one in best) == pytest.approx(1.0)
    (tmp_path / "new.jsonl").write_text('{"user": "new", "items": []}\n')
    for place in (folder, package):
        capsys.readouterr()
        assert main(["recommend", str(place), "--items=", "--top=8"]) == 0
        assert {int(line.split()[1]) for line in capsys.readouterr().out.splitlines()} == {*SUMMER}
        assert main(["recommend", str(place), f"--histories={tmp_path / 'new.jsonl'}"]) == 0
        assert json.loads(capsys.readouterr().out)["fallback"] == "recent_popularity"


def test_overall_popularity_where_the_last_weeks_mislead(log_config: Settings, tmp_path: Path) -> None:
    folder = trained(log_config, prepare_log(tmp_path, season(WINTER)))
    said = report_of(folder)["fallback"]
    assert said["kind"] == "popularity"
    assert said["validation"]["popularity"] > said["validation"]["recent_popularity"]
    (best,) = load(folder).recommend([[]], 15)
    assert (best.fallback, {one.item for one in best}) == ("popularity", {*WINTER})
    np.save(folder / "recent_counts.npy", np.zeros(23, np.int32))  # as if the same run had decided otherwise before
    assert trained(log_config, tmp_path / "dataset", **{"run.resume": str(folder), "training.n_epochs": 2}) == folder
    assert load(folder).recommend([[]], 15) == [best]


@pytest.mark.parametrize("what", ["no times", "no validation", "not among the baselines"])
def test_overall_popularity_where_nothing_tells(log_config: Settings, tmp_path: Path, what: str) -> None:
    changes = {
        "no times": {"data.time_column": ""}, "no validation": {"preprocessing.split": "none"},
        "not among the baselines": {"evaluation.baselines": ["markov"]},
    }[what]  # fmt: skip
    folder = trained(log_config, prepare_log(tmp_path, season(SUMMER), **changes), **changes)
    assert "fallback" not in report_of(folder)
    assert not (folder / "recent_counts.npy").exists()
    (best,) = load(folder).recommend([[]], 3)
    assert best.fallback == "popularity"
    assert {one.item for one in best} < {*WINTER}


def test_an_extended_run_keeps_to_the_season_by_its_own_data(log_config: Settings, tmp_path: Path) -> None:
    places = [tmp_path / "old", tmp_path / "grown"]
    for place in places:
        place.mkdir()
    log = season(SUMMER)
    old = prepare_log(places[0], log)
    folder = trained(log_config, old, **{"run.name": "run"})
    later = {f"v{user}": [*WINTER[:11], 200, 107, 107, 107] for user in range(20)}
    assert main(["extend", str(folder), str(prepare_log(places[1], log | later, **{"data.extends": old}))]) == 0
    ids = load(folder.with_name("run-2")).ids
    counts = dict(zip(ids.originals.to_pylist(), ids.recent_counts.tolist(), strict=True))  # type: ignore[union-attr]
    newest = Counter({200: 20, 107: 20})  # of 440 + 260 training positions; those of one second come together
    newest.update(items[10] for items in [*log.values(), *later.values()])
    assert counts == {item: newest[item] for item in counts}
    assert ids.of(ids.most_popular(1).tolist()) == [107]


def test_counts_that_do_not_fit_are_refused(whole: Path) -> None:
    path = whole / "recent_counts.npy"
    np.save(path, np.zeros(3, np.int32))
    for content in (b"no array", b"\x93NUMPY", path.read_bytes()):
        path.write_bytes(content)
        with one_line(f"{path}: "):
            load(whole)
