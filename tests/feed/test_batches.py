"""One global order, and batches that read what the dataset holds."""

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

from bert4rec.dataset.reader import Dataset, Rows, Split
from bert4rec.dataset.schema import MASK_ID, PAD_ID, table_rows
from bert4rec.feed.batch import Batch
from bert4rec.feed.batches import TrainingBatches
from bert4rec.feed.inference import with_mask
from bert4rec.feed.masking import Masking
from bert4rec.feed.negatives import NegativeSampler
from bert4rec.feed.order import EpochOrder, Position
from bert4rec.runtime.errors import DataError

START = Position()


def masking(dataset: Dataset) -> Masking:
    return Masking(
        seed=5, n_rows=table_rows(dataset.n_items), mask_prob=0.2, last_item_mask_prob=0.1, mask_token_share=1.0,
        random_token_share=0.0,
    )  # fmt: skip


def orders(n: int, world_size: int, per_device: int, epoch: int = 0) -> list[EpochOrder]:
    return [
        EpochOrder(n, per_device=per_device, rank=rank, world_size=world_size, seed=5, epoch=epoch)
        for rank in range(world_size)
    ]


def source(
    dataset: Dataset, *, n_epochs: int = 1, per_device: int, rank: int = 0, world_size: int = 1,
    start: Position = START,
) -> TrainingBatches:  # fmt: skip
    return TrainingBatches(
        dataset.splits["train"], masking(dataset), n_epochs=n_epochs, per_device=per_device, rank=rank,
        world_size=world_size, seed=5, start=start,
    )  # fmt: skip


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


KILLED = """
import os, signal, sys
from multiprocessing import active_children
from pathlib import Path
from bert4rec.feed.batches import TrainingBatches
from bert4rec.feed.masking import Masking
from bert4rec.dataset.reader import Split
if __name__ == "__main__":
    batches = TrainingBatches(
        Split(Path(sys.argv[1]) / "train", 10**6), Masking(1, 10**6, 0.2, 0.1, 1.0, 0.0), n_epochs=9, per_device=2,
        rank=0, world_size=1, seed=1,
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
    output, _ = process.communicate(timeout=60)  # which ends when nobody has the pipe any more: all processes are gone
    assert process.returncode == -signal.SIGKILL
    assert len(output.split()) == 2


@given(st.integers(1, 60), st.integers(0, 59), st.sampled_from([1, 2, 3]), st.integers(1, 7))
@settings(max_examples=80, deadline=None)
def test_an_epoch_goes_on_behind_what_was_seen(n: int, n_seen: int, world_size: int, per_device: int) -> None:
    n_seen = min(n_seen, n)
    whole = EpochOrder(n, per_device=n, rank=0, world_size=1, seed=5, epoch=2)[0].tolist()
    ranks = [
        EpochOrder(n, per_device=per_device, rank=rank, world_size=world_size, seed=5, epoch=2, n_seen=n_seen)
        for rank in range(world_size)
    ]
    dealt = [sequence for step in range(len(ranks[0])) for order in ranks for sequence in order[step].tolist()]
    assert dealt == whole[n_seen:]


@pytest.mark.parametrize(("epochs", "sequences", "per_device"), [(0, 0, 16), (0, 48, 16), (1, 96, 16), (2, 30, 10)])
def test_batches_begin_where_a_training_was_broken_off(
    small_dataset: Dataset, epochs: int, sequences: int, per_device: int
) -> None:
    split = small_dataset.splits["train"]
    steps = 7 * epochs + sequences // 16
    whole = source(small_dataset, n_epochs=4, per_device=16)
    rest = source(small_dataset, n_epochs=4, per_device=per_device, start=Position(epochs, sequences, steps))
    left = -(-(len(split) - sequences) // per_device) + (3 - epochs) * -(-len(split) // per_device)
    assert len(rest) == sum(rest.steps_of(epoch) for epoch in range(epochs, 4)) == left
    if per_device == 16:
        for step in range(left):
            expected, found = whole[steps + step], rest[step]
            for name in ("items", "lengths", "positions", "targets"):
                assert torch.equal(getattr(found, name), getattr(expected, name))


def test_epochs_differ() -> None:
    assert orders(50, 1, 50, epoch=0)[0][0].tolist() != orders(50, 1, 50, epoch=1)[0][0].tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_hold_the_windows_of_the_order_sorted_by_length(small_dataset: Dataset, num_workers: int) -> None:
    split = small_dataset.splits["train"]
    epochs = [orders(len(split), 1, 16, epoch)[0] for epoch in range(3)]
    batches = list(source(small_dataset, n_epochs=3, per_device=16).batches(num_workers=num_workers))
    assert len(batches) == 3 * len(epochs[0])
    for step, batch in enumerate(batches):
        indices = epochs[step // len(epochs[0])][step % len(epochs[0])]
        whole = batch.items.clone()
        whole[batch.positions] = batch.targets
        windows = [window.tolist() for window in whole.split(batch.lengths.tolist())]
        expected = [split.read(np.array([i])).items.tolist() for i in indices]
        assert batch.n_sequences == len(indices)
        assert sorted(windows) == sorted(expected)
        assert batch.lengths.tolist() == sorted(batch.lengths.tolist())
        assert (batch.items[batch.positions] == MASK_ID).all()


def test_the_second_epoch_is_masked_otherwise(small_dataset: Dataset) -> None:
    whole = source(small_dataset, n_epochs=2, per_device=10_000)
    first, second = whole[0], whole[1]
    assert first.n_sequences == second.n_sequences == len(small_dataset.splits["train"])
    assert first.positions.tolist() != second.positions.tolist()
    np.testing.assert_array_equal(whole[0].items, first.items)


def test_an_empty_share_predicts_nothing(small_dataset: Dataset) -> None:
    """As many ranks as windows but one, a window each: the second step has a single window, for the last rank."""
    n_ranks = len(small_dataset.splits["train"]) - 1
    empty, full = (source(small_dataset, per_device=1, rank=rank, world_size=n_ranks)[1] for rank in (0, n_ranks - 1))
    assert (empty.n_sequences, full.n_sequences) == (1, 1)
    assert len(empty.lengths) == 1
    assert empty.targets.tolist() == [PAD_ID] * len(empty.positions)
    assert PAD_ID not in full.targets.tolist()


def test_inference_keeps_the_last_items_and_asks_for_the_next() -> None:
    rows = Rows(np.array([2, 3, 4, 5, 6, 7], np.int32), np.array([4, 1, 1]), np.array([8, 9, 10], np.int32))
    batch = with_mask(rows, max_len=3)
    assert batch.items.tolist() == [4, 5, MASK_ID, 6, MASK_ID, 7, MASK_ID]
    assert batch.lengths.tolist() == [3, 2, 2]
    assert batch.positions.tolist() == [2, 4, 6]
    assert batch.targets.tolist() == [8, 9, 10]


def test_a_batch_moves_whole() -> None:
    batch = Batch(torch.tensor([2, 1]), torch.tensor([2]), torch.tensor([1]), torch.tensor([3]))
    moved = batch.to(torch.device("meta"))
    assert {getattr(moved, name).device.type for name in ("items", "lengths", "positions", "targets")} == {"meta"}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_row_is_one_line_whoever_reads_it(small_dataset: Dataset, num_workers: int) -> None:
    """An error of a loader process would else come with its traceback in the message."""
    smaller = Dataset(
        small_dataset.folder, small_dataset.metadata, {"train": Split(small_dataset.folder / "train", n_rows=100)}
    )
    with pytest.raises(DataError, match=r"train: row \d+: column items has the id \d+, outside 2…99; ") as caught:
        list(source(smaller, per_device=16).batches(num_workers=num_workers))
    assert "\n" not in str(caught.value)


def test_what_goes_to_the_loader_processes_is_small(small_dataset: Dataset) -> None:
    whole = source(small_dataset, n_epochs=2, per_device=16)
    assert whole[3].n_sequences == 16
    assert len(pickle.dumps(whole)) < 5000


def test_every_rank_has_the_negatives_of_its_step(small_dataset: Dataset) -> None:
    sampler = NegativeSampler(n_items=small_dataset.n_items, n=9, power=0.0, seed=5)
    for rank in (0, 1):
        batches = TrainingBatches(
            small_dataset.splits["train"], masking(small_dataset), n_epochs=2, per_device=16, rank=rank, world_size=2,
            seed=5, sampler=sampler,
        )  # fmt: skip
        for step in (0, len(batches) - 1):
            negatives, expected = batches[step].negatives, sampler.draw(step)
            assert negatives is not None
            assert torch.equal(negatives.ids, expected.ids)
            assert torch.equal(negatives.log_expected, expected.log_expected)


def test_loader_processes_draw_the_same_negatives(small_dataset: Dataset) -> None:
    sampler = NegativeSampler(
        n_items=small_dataset.n_items, n=9, power=0.5, seed=5, popularity=small_dataset.popularity
    )
    batches = TrainingBatches(
        small_dataset.splits["train"], masking(small_dataset), n_epochs=1, per_device=64, rank=0, world_size=1, seed=5,
        sampler=sampler,
    )  # fmt: skip
    for step, batch in enumerate(batches.batches(num_workers=1)):
        assert batch.negatives is not None
        assert torch.equal(batch.negatives.ids, sampler.draw(step).ids)
