"""Runs of kinds that only count: they recommend what their evaluation ranked, and say what they cannot do."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bert4rec import load
from bert4rec.__main__ import main
from bert4rec.checkpoint.run_folder import find_trained
from bert4rec.config.kinds import KINDS, UNTRAINED
from bert4rec.dataset.reader import open_dataset
from bert4rec.evaluation.ranker import Ranker
from bert4rec.models.baselines import BaselineFactory
from bert4rec.runtime.collectives import Partition
from bert4rec.serving.export import export
from bert4rec.serving.load import find_source
from bert4rec.serving.recommender import Recommendations
from bert4rec.training.run import run
from tests.checks import one_line
from tests.conftest import leave_group
from tests.fixture_types import Capture, Patch, Settings

pytestmark = pytest.mark.usefixtures("alone")

Train = Callable[[str, Path], Path]


@pytest.fixture
def counted(small_config: Settings) -> Train:
    """The run of a kind for a dataset that predicts purchases."""

    def make(kind: str, dataset: Path) -> Path:
        recipe = {"data.dataset_dir": str(dataset), "preprocessing.target_events": ["purchase"]}
        folder = run(small_config(**recipe, **{"model.kind": kind, "preprocessing.n_eval_negatives": 5}))
        leave_group()
        return folder

    return make


def pairs(found: list[Recommendations]) -> list[list[tuple[int, float]]]:
    return [[(one.item, one.score) for one in row] for row in found]


@pytest.mark.parametrize("kind", UNTRAINED)
def test_lists_and_scores_are_those_of_the_evaluation(
    counted: Train, event_folder: Path, tmp_path: Path, monkeypatch: Patch, kind: str
) -> None:
    monkeypatch.setattr("bert4rec.evaluation.top_k.TILE", 7)
    folder, dataset = counted(kind, event_folder), open_dataset(event_folder)
    model, split = load(folder), dataset.splits["test"]
    rows = split.read(np.arange(len(split)))
    histories = [model.ids.of(part.tolist()) for part in np.split(rows.items, rows.lengths.cumsum()[:-1])]
    scorer = BaselineFactory(dataset=dataset, partition=Partition()).scorer(kind, lambda: None)
    for leaves_out in (True, False):
        ranker = Ranker(scorer, batch_size=16, device=torch.device("cpu"), leaves_out_seen=leaves_out)
        best = ranker.best(split, np.arange(len(split)), 10)
        expected = [
            [(item, score) for item, score in zip(model.ids.of(items), scores, strict=True) if score > -np.inf]
            for items, scores in zip(best.indices.tolist(), best.scores.tolist(), strict=True)
        ]
        assert pairs(model.recommend(histories, 10, leave_out_seen=leaves_out)) == expected

    by_user = dict(zip(split.users.tolist(), histories, strict=True))  # whose ids are 0, 1, … in the log, too
    for example in json.loads((folder / "examples.json").read_text())["users"]:
        (found,) = pairs(model.recommend([by_user[example["user"]]], 10))
        listed = [(one["item"], one["score"]) for one in example["recommendations"]]
        assert found == [(item, pytest.approx(score)) for item, score in listed]

    package = folder / "export"
    if KINDS[kind].needs_features:
        with one_line(f"{folder}: ", f'model.kind = "{kind}"'):
            export(find_source(folder), package, ["safetensors"], k=3, leaves_out_seen=True)
    else:
        assert main(["export", str(folder)]) == 0
        shutil.move(package, tmp_path / "package")
        packed = load(tmp_path / "package")
        assert len({path.stat().st_mode for path in (tmp_path / "package").iterdir()}) == 1
        assert packed.recommend(histories, 10) == model.recommend(histories, 10)
        with one_line(f"{folder}: ", "pt2", "--format=safetensors"):
            export(find_source(folder), package, ["safetensors", "pt2"], k=3, leaves_out_seen=True)
        with one_line(f"{tmp_path / 'package'}: ", f'model.kind = "{kind}"'):
            find_trained(tmp_path / "package")

    (whole,), some = model.recommend(histories[:1], 28, leave_out_seen=False), [1, 5, 9]
    history, brands = histories[:1], {item: "ab"[item % 3] if item % 3 < 2 else f"no {item}" for item in range(28)}
    for options, is_wanted in (
        ({"allow": some}, lambda item: item in some),
        ({"deny": some}, lambda item: item not in some),
        ({"rules": model.rules(where="brand = 'a'")}, lambda item: brands[item] == "a"),
    ):
        (found,) = model.recommend(history, 28, leave_out_seen=False, **options)
        assert found == [one for one in whole if is_wanted(one.item)]
    (found,) = model.recommend(history, 9, leave_out_seen=False, rules=model.rules(at_most=2, per="brand"))
    taken, expected = Counter[str](), []
    for one in whole:
        taken[brands[one.item]] += 1
        expected += [one] if taken[brands[one.item]] <= 2 else []
    assert found == expected[:9]

    if kind in ("popularity", "recent_popularity"):
        with one_line("", f'model.kind = "{kind}"'):
            model.similar([3])
        assert [one.item for one in model.recommend([[]], 3)[0]] == [one.item for one in whole[:3]]
    else:
        similar = model.similar([3, 5], 6)
        assert similar == model.recommend([[3], [5]], 6, leave_out_seen=True)
        assert [len(row) for row in similar] == [6, 6]


def test_from_the_command_line(counted: Train, event_folder: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = counted("transition_graph", event_folder)
    assert f"next: bert4rec recommend {folder} --user " in capsys.readouterr().out.splitlines()[-1]
    model, lists = load(folder), tmp_path / "all.jsonl"
    assert main(["recommend", str(folder), "--all", "--top=3", f"--output={lists}"]) == 0
    lines = [json.loads(line) for line in lists.read_text().splitlines()]
    users = [pair for part in model.users(with_times=False, with_events=False).all() for pair in part]
    assert [line["user"] for line in lines] == [user for user, _ in users]
    (tmp_path / "histories.jsonl").write_text("\n".join(json.dumps({"user": u, "items": h}) for u, h in users))
    again = tmp_path / "again.jsonl"
    assert main(["recommend", str(folder), f"--histories={tmp_path / 'histories.jsonl'}", "--top=3", f"-o{again}"]) == 0
    assert again.read_bytes() == lists.read_bytes()
    assert [line["items"] for line in lines] == [
        [one.item for one in row] for row in model.recommend([history for _, history in users], 3)
    ]
    capsys.readouterr()
    assert main(["similar", str(folder), "3", "--top=2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["report", str(folder)]) == 0
    assert f"bert4rec recommend {folder} --all" in capsys.readouterr().out


def test_what_it_cannot_do_and_a_missing_or_other_dataset_are_one_line(
    counted: Train, event_folder: Path, log_folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    dataset, moved = tmp_path / "dataset", tmp_path / "moved"
    shutil.copytree(event_folder, dataset)
    folder = counted("ease", dataset)
    model = load(folder)
    for call in (lambda: model.users_for(3), lambda: model.encode([[3]]), lambda: model.items):
        with one_line("", 'model.kind = "ease"'):
            call()
    best = model.recommend([[1, 2, 3]], 5)
    dataset.rename(moved)
    with one_line(f"the dataset of {folder} is not at {dataset}", "--dataset=FOLDER"):
        load(folder)
    with one_line(f"{log_folder}: ", str(folder)):
        load(folder, dataset=log_folder)
    assert load(folder, dataset=moved).recommend([[1, 2, 3]], 5) == best
    shutil.rmtree(folder / "items")
    with one_line(str(folder)):
        load(folder)
