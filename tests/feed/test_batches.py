"""Batches of a training: order, shares, loader processes."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.histories import Histories, TrainingPairs
from bert4rec.dataset.reader import Dataset
from bert4rec.feed.batches import AT_START, EpochOrder, Position, TrainingBatches, Windows
from bert4rec.feed.features import WarmItems
from bert4rec.feed.masking import Masking
from bert4rec.feed.negatives import NegativeSampler
from bert4rec.runtime.collectives import Partition
from bert4rec.runtime.errors import DataError
from tests.feed.shown import shown

ALONE = Partition()


def masking(dataset: Dataset) -> Masking:
    return Masking(
        seed=5, n_items=dataset.n_items, mask_prob=0.2, last_item_mask_prob=0.1, mask_token_share=1.0,
        random_token_share=0.0,
    )  # fmt: skip


def source(
    dataset: Dataset, *, n_epochs: int = 1, per_device: int, partition: Partition = ALONE, start: Position = AT_START,
) -> TrainingBatches:  # fmt: skip
    return TrainingBatches(
        Windows(dataset.windows(max_len=12, step=12), masking(dataset)), partition, n_epochs=n_epochs,
        per_device=per_device, seed=5, start=start,
    )  # fmt: skip


KILLED = """
import os, signal, sys
from multiprocessing import active_children
from pathlib import Path
from bert4rec.feed.batches import TrainingBatches, Windows
from bert4rec.feed.masking import Masking
from bert4rec.dataset.histories import Histories, TrainingWindows
from bert4rec.runtime.collectives import Partition
if __name__ == "__main__":
    windows = TrainingWindows(Histories(Path(sys.argv[1]), 10**6), max_len=12, step=12)
    batches = TrainingBatches(
        Windows(windows, Masking(1, 10**6, 0.2, 0.1, 1.0, 0.0)), Partition(), n_epochs=9, per_device=2, seed=1
    ).batches(num_workers=2)
    next(batches)
    print(*(child.pid for child in active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_loader_processes_end_with_a_training_that_is_killed(small_dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), str(small_dataset.folder)]
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    output, _ = process.communicate(timeout=900)  # which ends when nobody has the pipe any more: all processes are gone
    assert process.returncode == -signal.SIGKILL
    assert len(output.split()) == 2


@pytest.mark.parametrize(("epochs", "sequences", "per_device"), [(0, 0, 16), (0, 48, 16), (1, 96, 16), (2, 30, 10)])
def test_batches_start_where_a_training_was_interrupted(
    small_dataset: Dataset, epochs: int, sequences: int, per_device: int
) -> None:
    split = small_dataset.windows(max_len=12, step=12)
    steps = 7 * epochs + sequences // 16
    whole = source(small_dataset, n_epochs=4, per_device=16)
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
    batches = list(source(small_dataset, n_epochs=3, per_device=16).batches(num_workers=num_workers))
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
    empty, full = (source(small_dataset, per_device=1, partition=partition)[1] for partition in partitions)
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
        list(source(smaller, per_device=16).batches(num_workers=num_workers))
    assert "\n" not in str(caught.value)


def test_what_goes_to_the_loader_processes_is_small(small_dataset: Dataset) -> None:
    windows, pairs = small_dataset.windows(max_len=12, step=12), TrainingPairs(small_dataset.histories)
    batches = TrainingBatches(Windows(windows, masking(small_dataset)), ALONE, n_epochs=2, per_device=16, seed=5)
    assert (windows.mean_length > 0, batches[3].n_sequences, len(pairs.read(np.arange(9))[0])) == (True, 16, 9)
    assert len(small_dataset.histories.users) == len(small_dataset.histories)
    for read, most in ((batches, 5000), (pairs, 1000)):
        assert len(pickle.dumps(read)) < most
    again = pickle.loads(pickle.dumps(batches))[3]
    assert torch.equal(again.positions, batches[3].positions)


def test_every_rank_has_the_negatives_of_its_step(small_dataset: Dataset) -> None:
    sampler = NegativeSampler(n_items=small_dataset.n_items, n=9, power=0.0, seed=5)
    for rank in (0, 1):
        batches = TrainingBatches(
            Windows(small_dataset.windows(max_len=12, step=12), masking(small_dataset)), Partition(rank, 2), n_epochs=2,
            per_device=16, seed=5, sampler=sampler,
        )  # fmt: skip
        for step in (0, len(batches) - 1):
            candidates, expected = batches[step].candidates, sampler.draw(step)
            assert torch.equal(candidates.items.ids[candidates.negatives], expected.ids)
            assert torch.equal(candidates.log_expected, expected.log_expected)


def test_loader_processes_draw_the_same_negatives(small_dataset: Dataset) -> None:
    sampler = NegativeSampler(
        n_items=small_dataset.n_items, n=9, power=0.5, seed=5, popularity=small_dataset.popularity
    )
    batches = TrainingBatches(
        Windows(small_dataset.windows(max_len=12, step=12), masking(small_dataset)), ALONE, n_epochs=1, per_device=64,
        seed=5, sampler=sampler,
    )  # fmt: skip
    for step, batch in enumerate(batches.batches(num_workers=1)):
        assert torch.equal(batch.candidates.items.ids[batch.candidates.negatives], sampler.draw(step).ids)


def orders(n: int, world_size: int, per_device: int, epoch: int = 0) -> list[EpochOrder]:
    return [
        EpochOrder(n, Partition(rank, world_size), per_device=per_device, seed=5, epoch=epoch)
        for rank in range(world_size)
    ]


@given(st.integers(1, 60), st.sampled_from([1, 2, 3]), st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_the_ranks_together_walk_the_global_order(n: int, world_size: int, share: int) -> None:
    global_batch = 6 * share
    ranks, (alone,) = orders(n, world_size, global_batch // world_size), orders(n, 1, global_batch)
    assert {len(order) for order in ranks} == {len(alone)} == {-(-n // global_batch)}
    seen = []
    for step in range(len(alone)):
        dealt = [order[step] for order in ranks]
        np.testing.assert_array_equal(np.concatenate(dealt), alone[step])
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        seen += alone[step].tolist()
    assert sorted(seen) == list(range(n))


@given(st.integers(1, 60), st.integers(0, 59), st.sampled_from([1, 2, 3]), st.integers(1, 7))
@settings(max_examples=80, deadline=None)
def test_an_epoch_continues_after_what_was_seen(n: int, n_seen: int, world_size: int, per_device: int) -> None:
    n_seen = min(n_seen, n)
    whole = EpochOrder(n, Partition(), per_device=n, seed=5, epoch=2)[0].tolist()
    ranks = [
        EpochOrder(n, Partition(rank, world_size), per_device=per_device, seed=5, epoch=2, n_seen=n_seen)
        for rank in range(world_size)
    ]
    dealt = [sequence for step in range(len(ranks[0])) for order in ranks for sequence in order[step].tolist()]
    assert dealt == whole[n_seen:]


def test_epochs_differ() -> None:
    assert orders(50, 1, 50, epoch=0)[0][0].tolist() != orders(50, 1, 50, epoch=1)[0][0].tolist()


def test_loader_processes_map_which_items_are_warm(tmp_path: Path) -> None:
    """Their pickle does not grow with the catalogue."""
    np.save(tmp_path / "counts.npy", np.arange(100_000, dtype=np.int32) % 3)
    warm, items = WarmItems(tmp_path / "counts.npy"), np.array([3, 4, 99_999])
    packed = pickle.dumps(warm)
    assert len(packed) < 1000
    assert warm[items].tolist() == pickle.loads(packed)[items].tolist() == [False, True, False]
