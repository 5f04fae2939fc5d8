"""Batches of windows and of pairs: what they hold, their order, how they travel."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Histories, TrainingPairs
from bert4rec.dataset.reader import Dataset
from bert4rec.feed.batch import (
    ID_ROWS,
    LARGEST_COUNTED,
    TENSOR_ALIGNMENT,
    Batch,
    Candidates,
    FlatBatch,
    Lookup,
    Pairs,
    Widths,
    unique_with_inverse,
)
from bert4rec.feed.batches import EpochOrder, Position, TrainingBatches, Windows
from bert4rec.feed.features import WarmItems
from bert4rec.feed.masking import Masking
from bert4rec.feed.negatives import Negatives, NegativeSampler
from bert4rec.feed.pairs import TEST_PAIRS, TRAINING_PAIRS, VALIDATION_PAIRS, PairExamples, parts_of_pairs
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DataError
from tests.feed.shown import shown, tensors_in

ALONE = Partition()


def source(
    dataset: Dataset, partition: Partition = ALONE, *, n_epochs: int = 1, per_device: int = 16, **others: Any
) -> TrainingBatches:
    masking = Masking(5, dataset.n_items, 0.2, 0.1, 1.0, 0.0)
    windows = Windows(dataset.windows(max_len=12, step=12), masking)
    return TrainingBatches(windows, partition, n_epochs=n_epochs, per_device=per_device, seed=5, **others)


@pytest.mark.parametrize(("epochs", "sequences", "per_device"), [(0, 0, 16), (0, 48, 16), (1, 96, 16), (2, 30, 10)])
def test_batches_start_where_a_training_was_interrupted(
    small_dataset: Dataset, epochs: int, sequences: int, per_device: int
) -> None:
    split = small_dataset.windows(max_len=12, step=12)
    steps = 7 * epochs + sequences // 16
    whole = source(small_dataset, n_epochs=4)
    rest = source(small_dataset, n_epochs=4, per_device=per_device, start=Position(epochs, sequences, steps))
    left = -(-(len(split) - sequences) // per_device) + (3 - epochs) * -(-len(split) // per_device)
    assert len(rest) == sum(rest.steps_of(epoch) for epoch in range(epochs, 4)) == left
    if per_device == 16:
        for step in range(left):
            expected, found = whole[steps + step], rest[step]
            assert torch.equal(shown(found), shown(expected))
            for name in ("lengths", "positions", "targets"):
                assert torch.equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_hold_the_windows_of_the_order_sorted_by_length(small_dataset: Dataset, num_workers: int) -> None:
    split = small_dataset.windows(max_len=12, step=12)
    epochs = [EpochOrder(len(split), ALONE, per_device=16, seed=5, epoch=epoch) for epoch in range(3)]
    batches = list(source(small_dataset, n_epochs=3).batches(num_workers=num_workers))
    assert len(batches) == 3 * len(epochs[0])
    for step, batch in enumerate(batches):
        indices = epochs[step // len(epochs[0])][step % len(epochs[0])]
        whole = shown(batch)
        whole[batch.positions] = batch.targets
        windows = [window.tolist() for window in whole.split(batch.lengths.tolist())]
        expected = [split.read(np.array([i])).items.tolist() for i in indices]
        assert batch.n_sequences == len(indices)
        assert sorted(windows) == sorted(expected)
        assert batch.lengths.tolist() == sorted(batch.lengths.tolist())
        assert (shown(batch)[batch.positions] == NO_ITEM).all()


def test_the_second_epoch_is_masked_otherwise(small_dataset: Dataset) -> None:
    whole = source(small_dataset, n_epochs=2, per_device=10_000)
    first, second = whole[0], whole[1]
    assert first.n_sequences == second.n_sequences == len(small_dataset.windows(max_len=12, step=12))
    assert first.positions.tolist() != second.positions.tolist()
    np.testing.assert_array_equal(whole[0].places, first.places)


def test_an_empty_share_predicts_nothing(small_dataset: Dataset) -> None:
    """As many ranks as windows but one, a window each: the second step has a single window, for the last rank."""
    n_ranks = len(small_dataset.windows(max_len=12, step=12)) - 1
    partitions = (Partition(rank, n_ranks) for rank in (0, n_ranks - 1))
    empty, full = (source(small_dataset, partition, per_device=1)[1] for partition in partitions)
    assert (empty.n_sequences, full.n_sequences) == (1, 1)
    assert len(empty.lengths) == 1
    assert empty.targets.tolist() == [NO_ITEM] * len(empty.positions)
    assert NO_ITEM not in full.targets.tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_row_is_one_line_whoever_reads_it(small_dataset: Dataset, num_workers: int) -> None:
    """An error of a loader process would else come with its traceback in the message."""
    histories = Histories(small_dataset.folder, n_items=100)
    smaller = Dataset(small_dataset.folder, small_dataset.metadata, histories, {})
    with pytest.raises(DataError, match=r"histories: column items has the id \d+, outside 0…99; ") as caught:
        list(source(smaller).batches(num_workers=num_workers))
    assert "\n" not in str(caught.value)


def test_what_goes_to_the_loader_processes_is_small_and_reads_the_same(
    small_dataset: Dataset, rated_folder: Path, tmp_path: Path
) -> None:
    batches, pairs = source(small_dataset, n_epochs=2), TrainingPairs(Histories(rated_folder, 10**6))
    examples = parts_of_pairs(pairs, seed=3, loss="mse", rating_validation=0.05)[TRAINING_PAIRS]
    np.save(tmp_path / "counts.npy", np.arange(100_000, dtype=np.int32) % 3)
    warm = WarmItems(tmp_path / "counts.npy")
    reads: list[tuple[Any, Callable[[Any], Any]]] = [
        (batches, lambda batches: tensors_in(batches[3])),
        (examples, lambda examples: tensors_in(examples.batch(np.arange(9), 0))),
        (warm, lambda warm: [torch.from_numpy(warm[np.array([3, 4, 99_999])])]),
    ]
    for packed, read in reads:
        expected, content = read(packed), pickle.dumps(packed)
        assert len(content) < 5000
        assert [part.tolist() for part in read(pickle.loads(content))] == [part.tolist() for part in expected]
    assert warm[np.array([3, 4, 99_999])].tolist() == [False, True, False]


@pytest.mark.parametrize(("rank", "num_workers", "power"), [(0, 0, 0.0), (1, 1, 0.5)])
def test_every_rank_and_loader_process_has_the_negatives_of_its_step(
    small_dataset: Dataset, rank: int, num_workers: int, power: float
) -> None:
    counts = small_dataset.popularity
    sampler = NegativeSampler(n_items=small_dataset.n_items, n=9, power=power, seed=5, popularity=counts)
    batches = source(small_dataset, Partition(rank, 2), n_epochs=2, sampler=sampler)
    for step, batch in enumerate(batches.batches(num_workers=num_workers)):
        candidates, expected = batch.candidates, sampler.draw(step)
        assert torch.equal(candidates.items.ids[candidates.negatives], expected.ids)
        assert torch.equal(candidates.log_expected, expected.log_expected)


@given(st.integers(1, 60), st.integers(0, 59), st.sampled_from([1, 2, 3]), st.integers(1, 7))
@settings(max_examples=120, deadline=None)
def test_the_ranks_together_walk_the_global_order_from_where_they_start(
    n: int, n_seen: int, world_size: int, per_device: int
) -> None:
    n_seen = min(n_seen, n)
    whole = EpochOrder(n, ALONE, per_device=n, seed=5, epoch=2)[0].tolist()
    assert sorted(whole) == list(range(n))
    ranks = [
        EpochOrder(n, Partition(rank, world_size), per_device=per_device, seed=5, epoch=2, n_seen=n_seen)
        for rank in range(world_size)
    ]
    assert {len(order) for order in ranks} == {-(-(n - n_seen) // (world_size * per_device))}
    seen = []
    for step in range(len(ranks[0])):
        dealt = [order[step].tolist() for order in ranks]
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        seen += [sequence for share in dealt for sequence in share]
    assert seen == whole[n_seen:]


MSE = {"seed": 3, "loss": "mse", "rating_holdout": 0.1, "rating_validation": 0.05}


@pytest.fixture
def training_pairs(rated_folder: Path) -> TrainingPairs:
    return TrainingPairs(Histories(rated_folder, 10**6))


def test_pairs_are_those_of_the_folder(training_pairs: TrainingPairs, rated_folder: Path) -> None:
    rows = datasets.load_from_disk(str(rated_folder / "histories"))
    pairs = [(row["user"], row["items"][at], row["ratings"][at]) for row in rows for at in range(row["n_train"])]
    everything = PairExamples(training_pairs, range(len(training_pairs)), seed=None, has_ratings=True)
    assert len(everything) == len(pairs) > 900
    for indices in ([*range(len(pairs))], [5, 900, 5, 0]):
        batch = everything.batch(np.array(indices), 0)
        columns = (batch.users.ids[batch.places], batch.targets, batch.ratings)
        found = zip(*(column.tolist() for column in columns), strict=True)
        assert [*found] == [pairs[index] for index in sorted(indices)]


def test_parts_share_the_pairs_out_by_the_seed(training_pairs: TrainingPairs) -> None:
    parts = parts_of_pairs(training_pairs, **MSE)
    numbers = {name: part.numbers(np.arange(len(part))).tolist() for name, part in parts.items()}
    n = len(training_pairs)
    shares = {TEST_PAIRS: round(0.1 * n), VALIDATION_PAIRS: round(0.05 * n)}
    shares[TRAINING_PAIRS] = n - sum(shares.values())
    assert {name: len(part) for name, part in numbers.items()} == shares
    assert sorted(number for part in numbers.values() for number in part) == list(range(n))
    assert numbers[TEST_PAIRS] != sorted(numbers[TEST_PAIRS])
    without = parts_of_pairs(training_pairs, **MSE | {"rating_validation": 0.0})
    assert without[TEST_PAIRS].numbers(np.arange(20)).tolist() == numbers[TEST_PAIRS][:20]
    others = parts_of_pairs(training_pairs, **MSE | {"seed": 4})
    assert others[TEST_PAIRS].numbers(np.arange(20)).tolist() != numbers[TEST_PAIRS][:20]


def test_rankings_are_learnt_from_all_pairs_without_ratings(training_pairs: TrainingPairs) -> None:
    parts = parts_of_pairs(training_pairs, **MSE | {"loss": "bpr"})
    assert parts.keys() == {TRAINING_PAIRS}
    assert len(parts[TRAINING_PAIRS]) == len(training_pairs)
    assert parts[TRAINING_PAIRS].batch(np.arange(3), 0).ratings is None


NEGATIVES = Negatives(torch.tensor([9, 4, 9]), torch.tensor([-1.0, -2.0, -1.0]))
NONE = torch.tensor([], dtype=torch.int64)


@pytest.mark.parametrize(
    ("shown", "lengths", "positions", "ids", "places", "widths"),
    [
        ([7, NO_ITEM, 3, 7, NO_ITEM, 5], [4, 2], [1, 4], [3, 5, 7], [2, 3, 0, 2, 3, 1], Widths(4, 1)),
        ([NO_ITEM, NO_ITEM], [1, 1], [0, 1], [], [0, 0], Widths(1, 1)),
        ([3, 1, 4, 1, 5, 9], [1, 3, 2], [1, 3, 5], [1, 3, 4, 5, 9], [1, 0, 2, 0, 3, 4], Widths(3, 2)),
        ([3], [1], [], [3], [0], Widths(1, 0)),
    ],
)
def test_equal_items_are_asked_for_once_and_the_mask_token_never(
    shown: list[int], lengths: list[int], positions: list[int], ids: list[int], places: list[int], widths: Widths
) -> None:
    at = torch.tensor(positions, dtype=torch.int64)
    batch = Batch.from_items(torch.tensor(shown), torch.tensor(lengths), at, at)
    assert (batch.items.ids.tolist(), batch.places.tolist(), batch.widths) == (ids, places, widths)


def test_candidates_are_targets_and_negatives_each_once() -> None:
    candidates = Candidates.of(torch.tensor([5, NO_ITEM, 9, 5]), NEGATIVES)
    assert candidates.items.ids.tolist() == [0, 4, 5, 9]
    assert candidates.positives.tolist() == [2, 0, 3, 2]
    assert candidates.negatives.tolist() == [3, 1, 3]
    assert candidates.log_expected.tolist() == [-1.0, -2.0, -1.0]


def test_items_that_are_rated_are_candidates_without_negatives() -> None:
    pairs = Pairs.between(torch.tensor([4, 4, 0]), torch.tensor([7, 3, 7]), torch.tensor([1.0, 2.0, 3.0]))
    assert (pairs.users.ids.tolist(), pairs.places.tolist()) == ([0, 4], [1, 1, 0])
    assert (pairs.candidates.items.ids.tolist(), pairs.candidates.positives.tolist()) == ([3, 7], [1, 0, 1])
    assert len(pairs.candidates.negatives) == 0
    assert Pairs.between(torch.tensor([4]), torch.tensor([7])).candidates is None


@settings(deadline=None)
@given(st.lists(st.integers(0, 3) | st.integers(0, 2**40), max_size=30))
@example([5 * LARGEST_COUNTED - 1, 3, 5 * LARGEST_COUNTED - 1, 0, 3])
@example([5 * LARGEST_COUNTED, 3, 5 * LARGEST_COUNTED, 0, 3])
def test_each_id_comes_once_and_all_come_back(ids: list[int]) -> None:
    """Few and small ones are counted, large ones are sorted."""
    found, places = unique_with_inverse(torch.tensor(ids, dtype=torch.int64))
    assert found.ids.tolist() == sorted({*ids})
    assert found.ids[places].tolist() == ids
    assert {tensor.dtype for tensor in (found.ids, found.lengths, places)} == {torch.int64}


@pytest.mark.parametrize("n", [0, 1, ID_ROWS, 3 * ID_ROWS + 5])
def test_ids_are_spread_evenly_over_the_rows(n: int) -> None:
    lengths = Lookup.of(torch.arange(n)).lengths
    assert (len(lengths), int(lengths.sum())) == (ID_ROWS, n)
    assert int(lengths.max() - lengths.min()) <= 1


TARGETS = torch.tensor([5, 7, 5])
SEQUENCES = Batch.from_items(torch.tensor([3, 1, 4]), torch.tensor([1, 2]), torch.tensor([1]), torch.tensor([9]))
BATCHES: dict[str, Any] = {
    "sequences": SEQUENCES._replace(n_sequences=2),
    "sequences and negatives": SEQUENCES._replace(candidates=Candidates.of(TARGETS, NEGATIVES)),
    "pairs": Pairs.between(torch.tensor([2, 2, 9]), TARGETS),
    "rated pairs": Pairs.between(torch.tensor([2, 2, 9]), TARGETS, torch.tensor([3.5, 1.0, 5.0])),
    "one number everywhere": SEQUENCES._replace(places=torch.tensor([4]).expand(3)),
    "nothing to predict": SEQUENCES._replace(positions=NONE),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_a_batch_goes_whole_to_another_process_in_one_tensor_and_to_another_device(batch: Any) -> None:
    flat = FlatBatch.of(batch)
    assert tensors_in(flat) == [flat.content]
    assert _described(pickle.loads(pickle.dumps(flat)).unpack()) == _described(batch)
    first, parts = flat.content.data_ptr(), [tensor for tensor in tensors_in(flat.unpack()) if len(tensor)]
    assert {(tensor.data_ptr() - first) % TENSOR_ALIGNMENT for tensor in parts} == {0}  # as torch allocates them
    moved = batch.to(torch.device("meta"))
    assert {tensor.device.type for tensor in tensors_in(moved)} == {"meta"}
    assert [tensor.shape for tensor in tensors_in(moved)] == [tensor.shape for tensor in tensors_in(batch)]
    assert moved.n_sequences == batch.n_sequences


def _described(batch: Any) -> Any:
    """Structure, types and numbers."""
    if isinstance(batch, Tensor):
        return batch.dtype, batch.tolist()
    if isinstance(batch, tuple):
        return type(batch), [_described(part) for part in batch]
    return batch
