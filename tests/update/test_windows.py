"""The windows of an update: those with new interactions, and a share of the others."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.held_out import later_targets
from bert4rec.dataset.reader import open_dataset
from bert4rec.feed.batch import Batch
from bert4rec.feed.batches import WEIGHT_OF_NEW, ChosenWindows, MakeExamples, Windows
from bert4rec.feed.masking import Masking, Shifting
from bert4rec.prepare.append import append, settings_to_append
from bert4rec.update.windows import choose_windows, new_interactions, write_windows
from tests.preparation import prepared

FIRST = 1_700_000_000


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dataset without held-out rows, and with a day of more rows for some users."""
    place = tmp_path_factory.mktemp("days")
    rng = np.random.default_rng(3)
    table = pl.DataFrame({"user": rng.integers(0, 40, 900), "item": rng.integers(0, 30, 900)})
    table = table.with_columns(time=FIRST + pl.int_range(900))
    older = prepared(place, "--user=user", "--item=item", "--time=time", "--split=none", table=table, name="older")
    day = pl.DataFrame(
        {"user": rng.integers(0, 60, 60), "item": rng.integers(0, 33, 60), "time": FIRST + 5000 + pl.Series(range(60))}
    )
    day.write_csv(place / "day.csv")
    config = settings_to_append(older, {"data.path": str(place / "day.csv")})
    append(older, config, place / "grown", tail=0.2, scored=place / "scored")
    return older, place / "grown"


@pytest.mark.parametrize(("length", "step"), [(8, 8), (8, 3), (50, 50)])
def test_windows_with_new_interactions_are_all_chosen_and_others_are_drawn_once(
    folders: tuple[Path, Path], length: int, step: int
) -> None:
    older, grown = map(open_dataset, folders)
    windows, histories = grown.windows(max_len=length, step=step), grown.histories
    n_new = new_interactions(histories, older.histories)
    # written out: the windows of a history, whose last n interactions are new
    wanted, number = [], 0
    for n_train, n in zip(histories.n_train.tolist(), n_new.tolist(), strict=True):
        n_windows = (1 + max(0, -(-(n_train - length) // step))) if n_train else 0
        ends = [n_train - step * (n_windows - 1 - place) for place in range(n_windows)]
        starts = [0, *ends[:-1]]  # of what a window has more than the one before
        wanted += [
            [number + place, min(length, ends[place] - (n_train - n))]
            for place in range(n_windows) if n and ends[place] > n_train - n and starts[place] < n_train
        ]  # fmt: skip
        number += n_windows
    assert number == len(windows)
    assert choose_windows(windows, older.histories, replay=0.0, seed=1).tolist() == wanted
    half = choose_windows(windows, older.histories, replay=0.5, seed=1)
    assert {*map(tuple, wanted)} <= {*map(tuple, half.tolist())}
    numbers = half[:, 0].tolist()
    assert len(numbers) == len({*numbers}) == min(2 * len(wanted), len(windows))
    assert numbers == sorted(numbers)
    assert half[:, 1].sum() == sum(n for _, n in wanted)  # the others have none
    assert half.tolist() == choose_windows(windows, older.histories, replay=0.5, seed=1).tolist()
    everything = choose_windows(windows, older.histories, replay=0.99, seed=1)
    assert everything[:, 0].tolist() == [*range(len(windows))]


@pytest.mark.parametrize("make", [Shifting(), Masking(1, 33, 0.5, 0.2, 0.8, 0.1)], ids=["shifted", "masked"])
@pytest.mark.parametrize("length", [8, 50])
def test_new_items_have_another_weight_in_the_loss(
    folders: tuple[Path, Path], tmp_path: Path, make: MakeExamples, length: int
) -> None:
    older, grown = map(open_dataset, folders)
    windows = grown.windows(max_len=length, step=length)
    chosen = choose_windows(windows, older.histories, replay=0.5, seed=1)
    write_windows(tmp_path / "chosen.npy", chosen)
    every = Windows(windows, make)
    some = ChosenWindows(every, tmp_path / "chosen.npy")
    assert len(some) == len(chosen)
    for place, (number, n_new) in enumerate(chosen.tolist()):
        batch, plain = some.batch(np.array([place]), 3), every.batch(np.array([number]), 3)
        assert isinstance(batch, Batch)
        assert isinstance(plain, Batch)
        assert batch.targets.tolist() == plain.targets.tolist()
        assert batch.items.ids.tolist() == plain.items.ids.tolist()
        n = int(windows.lengths(np.array([number]))[0])
        shift = 1 if isinstance(make, Shifting) else 0  # a target is the next item
        expected = [WEIGHT_OF_NEW if at + shift >= n - n_new else 1.0 for at in plain.positions.tolist()]
        real = (batch.targets != NO_ITEM).tolist()
        assert batch.weights is not None
        found = zip(batch.weights.tolist(), expected, real, strict=True)
        assert all(weight == wanted for weight, wanted, is_real in found if is_real)


def test_later_targets_are_those_after_the_training_parts(folders: tuple[Path, Path]) -> None:
    dataset = open_dataset(folders[1].with_name("scored"))
    histories = dataset.histories
    every = later_targets(histories, dataset.folder, n=10**6, seed=1)
    n_later = np.maximum(0, histories.lengths - np.maximum(1, histories.n_train))
    is_new = histories.users >= open_dataset(folders[0]).n_users  # whose first row is no target
    assert len(every) == n_later.sum() == 60 - is_new.sum()
    rows = every.read(np.arange(len(every)))
    assert rows.targets is not None
    lengths = histories.lengths
    whole = histories.read(np.arange(len(lengths)), np.zeros_like(lengths), lengths).items
    ends = np.cumsum(lengths)
    later = [whole[end - n : end] for end, n in zip(ends, n_later, strict=True)]
    assert rows.targets.tolist() == np.concatenate(later).tolist()
    some = later_targets(histories, dataset.folder, n=7, seed=1)
    assert len(some) == 7
