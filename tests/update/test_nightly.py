"""Nights of a small shop: whatever kills an update, the champion answers, and the same command ends as if unbroken."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from bert4rec import load
from bert4rec.checkpoint.models_folder import read_aliases, read_updates
from bert4rec.checkpoint.run_folder import find_trained, lock
from bert4rec.config.load import Overrides
from bert4rec.dataset.check import check_dataset
from bert4rec.runtime.errors import DataError, SettingsError
from bert4rec.update import finish, nightly
from bert4rec.update.forget import forget
from bert4rec.update.nightly import Nightly
from bert4rec.update.versions import make_first_version
from tests.conftest import leave_group
from tests.fixture_types import Patch
from tests.runs import tensors_of
from tests.update.conftest import DAY, FIRST, champion, day_of

pytestmark = [
    pytest.mark.usefixtures("alone", "quick"), pytest.mark.filterwarnings("ignore::FutureWarning"),
]  # fmt: skip


def night(shop: Path, number: int, *, full: bool = False, accept: bool = False, **settings: Any) -> nightly.Outcome:
    """The outcome of an update with the rows of a day."""
    given = Overrides({"data.path": str(shop.parents[1] / f"day-{number}.csv"), **settings})
    try:
        return Nightly(shop, given, full=full, accept=accept).run()
    finally:
        leave_group()


def test_a_night_appends_scores_trains_judges_and_switches_and_the_same_rows_again_are_stopped(shop: Path) -> None:
    before = champion(shop)
    outcome = night(shop, 3)
    (update,) = read_updates(shop)
    assert outcome.status == (0 if update["taken"] else 3)
    assert outcome.sentence == update["reasons"][0]
    assert update["rows"] | {"future": 0} == {
        "read": 200, "new": 200, "known": 0, "late": 0, "future": 0, "bad": 0, "guests": 0,
    }  # fmt: skip
    assert update["taken"]
    assert champion(shop) == shop / "versions" / update["version"]
    assert read_aliases(shop)["previous"] == before.name
    assert not (shop / "next").exists()
    check_dataset(shop / "dataset")
    new = sorted(
        {*day_of(3)["item"].to_list()} - {item for day in range(3) for item in day_of(day, n_rows=300)["item"]}
    )
    model = load(champion(shop))
    assert new
    assert model.knows(new).all()  # items of the day can be recommended the next day
    assert not load(before).knows(new).any()
    assert update["items"]["new"] == len(new)
    users = {user for number in range(3) for user in day_of(number, n_rows=300)["user"]}
    counts = day_of(3)["user"].value_counts(name="n")
    is_known = pl.col("user").is_in(users)
    assert update["score"]["users"] == counts.filter(is_known).height
    assert update["score"]["new_users"]["users"] == counts.filter(~is_known, pl.col("n") > 1).height > 0

    after = champion(shop), (shop / "dataset" / "metadata.json").read_bytes()
    outcome = night(shop, 3)
    assert outcome.status == 3
    assert "there already" in outcome.sentence
    assert (champion(shop), (shop / "dataset" / "metadata.json").read_bytes()) == after
    assert [update["decision"] for update in read_updates(shop)][1:] == ["stopped"]


@pytest.mark.long
def test_a_forgotten_user_who_comes_back_is_a_new_one(shop: Path) -> None:
    older = pl.concat([day_of(number, n_rows=300) for number in range(3)])
    user = next(one for one in day_of(3)["user"] if one in older["user"].to_list())
    forget(shop, "users", [user])
    night(shop, 3)
    check_dataset(shop / "dataset")
    users = load(shop).users(with_times=False, with_events=False)
    items = day_of(3).filter(pl.col("user") == user)["item"].to_list()
    assert users.of([user]) == [(user, items)]
    n_users = pl.concat([older, day_of(3)])["user"].n_unique()
    assert len(users) == len(dict(pair for part in users.all() for pair in part)) == n_users


def test_an_unusual_day_is_stopped_unless_it_is_accepted(shop: Path) -> None:
    facts = {"decision": "blessed", "taken": True, "version": None}
    usual = [
        facts | {"time": f"2023-11-{10 + number}T03-00-00", "rows": {"read": 5000, "new": 5000 + number}}
        for number in range(9)
    ]
    (shop / "updates.jsonl").write_text("".join(f"{json.dumps(update)}\n" for update in usual))
    outcome = night(shop, 3)
    assert outcome.status == 3
    assert outcome.sentence.startswith("stopped: 200 new rows; usual are 5,004")
    assert outcome.sentence.endswith("--accept")
    assert night(shop, 3, accept=True).status == 0
    first, second = (update["decision"] for update in read_updates(shop)[-2:])
    assert first == "stopped" != second


class Killed(BaseException):
    pass


KILLS: list[tuple[Any, str, int]] = [  # before the n-th call of a function
    (nightly, "append", 1), (nightly, "rank_test", 1), (nightly, "write_windows", 1), (nightly, "extend", 1),
    (nightly, "run_training", 1), (nightly, "rank_test", 1), (nightly, "rank_test", 2), (nightly, "judge", 1),
    (finish, "replace_directory", 1), (finish, "_keep_version", 1), (finish, "set_champion", 1),
    (finish, "atomic_write", 1), (finish, "withdraw_directory", 1),
]  # fmt: skip


def kill_before(monkeypatch: Patch, place: Any, name: str, n: int) -> None:
    """Make the n-th call of a function kill the update."""
    called, work = 0, getattr(place, name)

    def count(*arguments: Any, **options: Any) -> Any:
        nonlocal called
        called += 1
        if called == n:
            raise Killed
        return work(*arguments, **options)

    monkeypatch.setattr(place, name, count)


@pytest.mark.long
def test_an_update_that_is_killed_anywhere_goes_on_and_ends_with_the_bits_of_an_unbroken_one(
    shop: Path, first_run: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    make_first_version(other := tmp_path / "models" / "unbroken", first_run)
    night(other, 3)
    histories = [["0", "1"], ["3"]]
    for place, name, n in KILLS:
        with monkeypatch.context() as patch:
            kill_before(patch, place, name, n)
            with pytest.raises(Killed):
                night(shop, 3)
        assert len(load(champion(shop)).recommend(histories, 3)[0]) == 3  # the champion answers
    night(shop, 3)
    one, two = (tensors_of((champion(place) / "checkpoints" / "best").resolve()) for place in (shop, other))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    files = [json.loads((place / "dataset" / "metadata.json").read_text())["files"] for place in (shop, other)]
    assert files[0] == files[1]
    updates = [read_updates(place)[0] for place in (shop, other)]
    varying = ("time", "began", "seconds", "version", "champion")
    assert [{name: value for name, value in update.items() if name not in varying} for update in updates[:1]] == [
        {name: value for name, value in update.items() if name not in varying} for update in updates[1:]
    ]


@pytest.mark.long
def test_a_model_that_is_trained_anew_has_seen_all_rows_and_no_weights_of_the_champion(
    shop: Path, monkeypatch: Patch
) -> None:
    night(shop, 3)
    with monkeypatch.context() as patch:
        kill_before(patch, nightly, "run_training", 1)
        with pytest.raises(Killed):
            night(shop, 4, full=True)
    night(shop, 4, full=True)
    settings = find_trained(champion(shop)).settings
    assert read_updates(shop)[-1]["taken"]
    assert (settings["training.n_epochs"], settings["run.name"]) == (3, "run")
    assert load(champion(shop)).knows(day_of(4)["item"].to_list()).all()


@pytest.mark.long
def test_a_model_is_trained_anew_without_new_rows_and_nights_go_on(shop: Path) -> None:
    night(shop, 3)
    before = champion(shop), (shop / "dataset" / "metadata.json").read_bytes()
    try:
        outcome = Nightly(shop, Overrides(), full=True).run()
    finally:
        leave_group()
    update = read_updates(shop)[-1]
    assert (outcome.status, champion(shop).name) == (0, update["version"])
    assert {"rows", "score"}.isdisjoint(update)
    assert update["gate"]["users"] == read_updates(shop)[0]["gate"]["users"] > 0
    assert (before[0].is_dir(), (shop / "dataset" / "metadata.json").read_bytes()) == (True, before[1])
    assert not (shop / "next").exists()
    assert find_trained(champion(shop)).settings["training.n_epochs"] == 3
    assert night(shop, 4).status == 0
    check_dataset(shop / "dataset")


def test_a_second_update_at_the_same_time_and_another_folder_are_refused(shop: Path, tmp_path: Path) -> None:
    with lock(shop), pytest.raises(SettingsError, match="another job"):
        night(shop, 3)
    with pytest.raises(DataError, match="expected a models folder"):
        Nightly(tmp_path / "nothing", Overrides({"data.path": "x"}), full=False).run()
    assert not (tmp_path / "nothing").exists()


def test_a_day_of_one_time_and_new_users_trains_and_cannot_tell(shop: Path) -> None:
    table = pl.DataFrame({"user": ["new-1", "new-2"] * 60, "item": [*range(40)] * 3, "time": FIRST + 3 * DAY})
    table.write_csv(shop.parents[1] / "day-3.csv")
    outcome = night(shop, 3)
    (update,) = read_updates(shop)
    assert outcome.sentence.startswith("cannot tell: no user")
    assert (update["score"]["users"], update["gate"]["users"], update["taken"]) == (0, 0, True)
    assert load(champion(shop)).knows([39]).all()


@pytest.mark.long
def test_a_bad_setting_is_one_line_and_the_update_can_be_typed_again(shop: Path) -> None:
    before = champion(shop)
    with pytest.raises(SettingsError, match=r"training\.n_epochs"):
        night(shop, 3, **{"training.n_epochs": "many"})
    assert champion(shop) == before
    assert night(shop, 3).status == 0
    assert [update["rows"]["new"] for update in read_updates(shop)] == [200]


def test_a_training_that_diverges_is_refused_and_the_champion_stays(shop: Path) -> None:
    before = champion(shop)
    rates = {"training.learning_rate": 1e30, "parallelism.sparse_learning_rate": 1e30}
    outcome = night(shop, 3, **rates, **{"training.max_grad_norm": 0.0})
    assert outcome.status == 3
    assert outcome.sentence.startswith("refused: ")
    assert champion(shop) == before
    assert read_updates(shop)[0]["version"] is None
    check_dataset(shop / "dataset")
    assert not (shop / "next").exists()
