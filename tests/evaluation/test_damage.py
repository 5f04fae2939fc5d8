"""The comparison without the users whom damage of the log concerns: who they are, and its figures from the ranks."""

from pathlib import Path

import numpy as np
import pytest

import preprocessing
from bert4rec.dataset.reader import Dataset, open_dataset
from bert4rec.evaluation.damage import without_damage
from bert4rec.evaluation.intervals import Ranking, paired_difference, strongest_baseline

N_USERS, N_ROWS = 60, 12
Row = tuple[str, int, int]


def dataset_of(folder: Path, rows: list[Row]) -> Dataset:
    """The dataset of rows of user, item and second."""
    lines = (f"{user},i{item},{1_600_000_000 + second}" for user, item, second in rows)
    (folder / "log.csv").write_text("\n".join(["user,item,time", *lines]) + "\n")
    arguments = [f"--data.path={folder / 'log.csv'}", f"--data.dataset_dir={folder / 'dataset'}", "--data.source=table"]
    assert preprocessing.main(["--config=config.toml", *arguments]) == 0
    return open_dataset(folder / "dataset")


def rows_of(user: str, first: int, n: int) -> list[Row]:
    return [(user, (first + 7 * at) % 50, 100 * at) for at in range(n)]


@pytest.mark.parametrize(("n_robots", "name"), [(1, "one large user"), (3, "heavy users")])
def test_users_with_very_many_rows_are_left_out(tmp_path: Path, n_robots: int, name: str) -> None:
    robots = [row for robot in range(n_robots) for row in rows_of(f"robot{robot}", robot, 1100 + robot)]
    people = [row for user in range(N_USERS) for row in rows_of(f"u{user}", user, N_ROWS)]
    dataset = dataset_of(tmp_path, robots + people)
    split = dataset.splits["test"]
    is_robot = split.lengths(np.arange(len(split))) > N_ROWS
    assert is_robot.sum() == n_robots
    ranks = np.where(is_robot, 1, 2 + np.arange(len(split)) % 20).astype(np.int32)
    model, markov = Ranking({"full": ranks}), Ranking({"full": np.full(len(split), 4, np.int32)})
    found = without_damage(dataset, model, {"markov": markov}, np.ones(len(split), bool))
    gains = np.where(ranks <= 10, 1 / np.log2(ranks + 1.0), 0)
    difference = paired_difference((gains - 1 / np.log2(5))[~is_robot])
    assert found[name]["value"] == pytest.approx(gains[~is_robot].mean())
    assert found[name]["value_of_all"] == pytest.approx(gains.mean())
    assert found[name]["difference"] == pytest.approx(difference.value)
    assert found[name]["interval"] == pytest.approx([difference.low, difference.high])
    assert [found[name][key] for key in ("users", "left_out", "of")] == [N_USERS, n_robots, N_USERS + n_robots]


def test_targets_that_repeat_the_row_before_are_left_out(tmp_path: Path) -> None:
    """Every third user ends with the same row twice, and others only with the same item, or only at the same time."""
    rows = []
    for user in range(N_USERS):
        own = rows_of(f"u{user}", user, N_ROWS)
        _, item, second = own[-1]
        again = [(item, second), (item, second + 1), (item + 1, second)][user % 3]
        rows += [*own, (f"u{user}", *again), *([own[0]] * 2)]
    dataset = dataset_of(tmp_path, rows)
    split = dataset.splits["test"]
    rank = np.arange(1, len(split) + 1, dtype=np.int32)
    model, markov = Ranking({"full": rank}), Ranking({"full": rank[::-1].copy()})
    (found,) = without_damage(dataset, model, {"markov": markov}, np.ones(len(split), bool)).values()
    targets = split.targets(np.arange(len(split)))
    is_again = split.are_tied & (targets == split.last_items)
    assert is_again.sum() == N_USERS // 3 == found["left_out"]
    others = [Ranking({"full": ranking.ranks["full"][~is_again]}) for ranking in (model, markov)]
    comparison = strongest_baseline(others[0], {"markov": others[1]})
    assert {key: found[key] for key in comparison} == comparison
    untied = without_damage(dataset, model, {"markov": markov}, ~split.are_tied)["duplicates"]
    assert untied == {"users": N_USERS // 3, "left_out": 0, "of": N_USERS // 3}


def test_a_log_without_damage_has_no_further_comparison(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, [row for user in range(N_USERS) for row in rows_of(f"u{user}", user, N_ROWS)])
    ranking = Ranking({"full": np.ones(N_USERS, np.int32)})
    assert without_damage(dataset, ranking, {"markov": ranking}, np.ones(N_USERS, bool)) == {}
