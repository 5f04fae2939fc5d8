"""A run that leaves out seen items by item: its evaluation, lists, package and programs follow one rule."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from bert4rec import load
from bert4rec.__main__ import main
from bert4rec.checkpoint.run_folder import find_trained
from bert4rec.commands.evaluate import settings_of
from bert4rec.dataset.reader import open_dataset
from bert4rec.models.again import missed_by_item
from bert4rec.runtime.errors import DataError
from bert4rec.serving import export as module
from bert4rec.serving.export import export
from bert4rec.serving.load import find_source
from bert4rec.serving.program import Program
from bert4rec.training.evaluate import evaluate
from tests.checks import one_line
from tests.conftest import BY_HAND, leave_group, prepare_log, train_alone
from tests.fixture_types import Capture, Patch
from tests.runs import report_of
from tests.training.test_evaluate import evaluate_on_a_pool, figures

pytestmark = pytest.mark.usefixtures("alone")

COFFEE, BICYCLES = 1, [*range(10, 18)]


def shop() -> dict[str, list[int]]:
    """Eighty users who have coffee three times and six bicycles once; then they take one of these, or a new bicycle.

    So 80 of 80 return to coffee, and none of the 60 of a bicycle: with a mean of 80 / (80 + 480), coffee comes again.
    """
    draw, log = np.random.default_rng(3), {}
    for user in range(80):
        bicycles = draw.permutation(BICYCLES).tolist()
        bought = [COFFEE, *bicycles[:2], COFFEE, *bicycles[2:4], COFFEE, *bicycles[4:6], bicycles[6]]
        log[f"u{user}"] = [*bought, (COFFEE, bicycles[0], bicycles[7])[user % 3]]
    return log


SHOP = shop()
HISTORIES = [items[:-1] for items in SHOP.values()]


@pytest.fixture(scope="module")
def shop_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_log(tmp_path_factory.mktemp("shop"), SHOP)


@pytest.fixture(scope="module")
def shop_run(shop_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {"training.n_epochs": 1, "evaluation.seen_items": "auto"}
    return train_alone(shop_folder, tmp_path_factory.mktemp("runs"), **BY_HAND, **changes, **{"run.name": "run"})


def again_in(run: Path) -> list[int]:
    ids, again = load(run).ids, np.load(run / "comes_again.npy")
    return sorted(ids.of(np.flatnonzero(again).tolist()))


def missed(folder: Path | None) -> dict[int, set[bool]]:
    """Seen target → whether it is missed."""
    found: dict[int, set[bool]] = {}
    for row in pq.read_table(folder / "ranks-test.parquet").to_pylist():
        if row["is_repeated"]:
            found.setdefault(row["original_item"], set()).add(row["full"] == 0)
    return found


def test_a_seen_target_counts_if_people_take_it_again(shop_run: Path) -> None:
    report = report_of(shop_run)
    assert again_in(shop_run) == [COFFEE]
    assert (report["seen_items"], report["items_again"]) == ("by_item", 1)
    seen = missed(shop_run)
    n_missed = sum(items[-1] in items[:-1] and items[-1] != COFFEE for items in SHOP.values())
    assert report["seen_missed"]["test"] == {"users": n_missed, "of": len(SHOP)}
    assert (seen.pop(COFFEE), {*map(frozenset, seen.values())}) == ({False}, {frozenset({True})})


def test_the_share_of_validation_targets_that_are_missed(shop_folder: Path, tmp_path: Path) -> None:
    """For validation, 40 of 80 users take a bicycle again in the one log; in the other log, all items come again."""
    numbered = enumerate(SHOP.items())
    some = {user: [*items[:-2], items[1] if number < 40 else COFFEE, 0] for number, (user, items) in numbered}
    for name, log, share in (("some", some, 0.5), ("all", dict.fromkeys(SHOP, [1, 2] * 3), None)):
        (tmp_path / name).mkdir()
        assert missed_by_item(open_dataset(prepare_log(tmp_path / name, log))) == share
    assert missed_by_item(open_dataset(shop_folder)) == 0


def test_two_processes_give_the_same_figures(pools: Callable[[int], Any], shop_run: Path, tmp_path: Path) -> None:
    trained = find_trained(shop_run)
    for report, _ in pools(2).run(evaluate_on_a_pool, settings_of(trained, []), trained, tmp_path / "out"):
        assert figures(report) == figures(report_of(shop_run))
        assert report["seen_missed"] == report_of(shop_run)["seen_missed"]


def test_lists_of_the_run_its_package_and_its_programs_are_those_of_its_evaluation(
    shop_run: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Files of programs find what the programs find: see test_program.py."""
    model, package = load(shop_run), tmp_path / "package"
    lists = [[one.item for one in found] for found in model.recommend(HISTORIES, 3)]
    assert all(COFFEE in [one.item for one in found] for found in model.recommend(HISTORIES, 9))
    assert not any({*found} & {*history} - {COFFEE} for found, history in zip(lists, HISTORIES, strict=True))
    for example in json.loads((shop_run / "examples.json").read_text())["users"]:
        (found,) = model.recommend([SHOP[example["user"]][:-1]], 9)
        assert [one.item for one in found] == [one["item"] for one in example["recommendations"]]

    programs: dict[str, Program] = {}
    for name in ("save_pt2", "save_onnx"):
        monkeypatch.setattr(module, name, lambda path, program: programs.update({path.name: program}))
    source = find_source(shop_run)
    export(source, package, ["safetensors", "pt2", "onnx"], k=3, leaves_out_seen=source.leaves_out_seen)
    packed = load(package)
    assert packed.recommend(HISTORIES, 3) == model.recommend(HISTORIES, 3)
    known = np.stack([packed.ids.indices(history) for history in HISTORIES])
    assert [*programs] == ["program.pt2", "model.onnx"]
    for program in programs.values():
        best, _ = program(torch.from_numpy(known), torch.tensor(3))
        assert [packed.ids.of([item for item in row if item >= 0]) for row in best.tolist()] == lists


def test_another_run_counts_it_in_its_dataset(shop_run: Path, tmp_path: Path, capsys: Capture) -> None:
    expected = load(shop_run).recommend(HISTORIES, 9)
    run, package = Path(shutil.copytree(shop_run, tmp_path / "run", symlinks=True)), tmp_path / "package"
    (run / "comes_again.npy").unlink()
    assert load(run).recommend(HISTORIES, 9, leave_out_seen="by_item") == expected
    capsys.readouterr()
    given = ",".join(map(str, HISTORIES[0]))
    assert main(["recommend", str(run), f"--items={given}", "--top=9", "--seen=by-item"]) == 0
    printed = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert printed == [str(one.item) for one in expected[0]]

    export(find_source(run), package, ["safetensors"], k=3, leaves_out_seen=False)
    with one_line("this model does not know which items people take again; "):
        load(package).recommend(HISTORIES, 9, leave_out_seen="by_item")
    assert main(["export", str(run), f"--output={tmp_path / 'again'}", "--format=safetensors", "--seen=by-item"]) == 0
    assert load(tmp_path / "again").recommend(HISTORIES, 9) == expected
    np.save(run / "comes_again.npy", np.zeros(3, bool))
    with one_line(f"{run / 'comes_again.npy'}: ", error=DataError):
        load(run).recommend(HISTORIES, 9)


def test_on_another_dataset_the_rule_is_that_of_the_run(shop_run: Path, tmp_path: Path) -> None:
    """Nobody has returned to coffee there, and the model does not know item 99."""
    log = {"a": [10, COFFEE, 11, 12, COFFEE], "b": [COFFEE, 10, 99, 11, 10], "c": [99, 10, 11, 12, 99]}
    other = prepare_log(tmp_path, log)
    expected = {COFFEE: {False}, 10: {True}, 99: {True}}
    trained = find_trained(shop_run)
    assert missed(evaluate(settings_of(trained, [str(other)]), trained, tmp_path / "out").folder) == expected
    leave_group()


def test_an_extended_run_counts_it_anew(shop_run: Path, shop_folder: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(shop_run, tmp_path / "runs" / "run", symlinks=True))
    more = {f"v{user}": [10, 11, 20, 20, 10, 11, 12] for user in range(80)}  # 80 of 80 return to 20, 80 of 140 to 10
    grown = prepare_log(tmp_path, SHOP | more, **{"data.extends": shop_folder})
    assert main(["extend", str(run), str(grown)]) == 0
    again = again_in(run.with_name("run-2"))
    assert {COFFEE, 10, 20} <= {*again} < {COFFEE, 20, *BICYCLES}
