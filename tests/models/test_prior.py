"""The prior: counted weights and the scores that they give, written out."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.checkpoint.prior import read_prior, write_prior
from bert4rec.dataset.format import NO_ITEM
from bert4rec.models import prior_rows, transitions
from bert4rec.models.baselines import DECAY, SMOOTHING, TrainingHistories
from bert4rec.models.prior import PRIOR_SOURCES, TOP, Prior, Source, source_bytes
from bert4rec.models.prior_rows import Rows, counted_rows, ease_rows, log_shares
from bert4rec.runtime.collectives import Partition
from tests.folders import histories_of
from tests.models.test_untrained import dataset_of

N_ITEMS = 9
ALL = {"transitions": [0.7], "neighbours": [1.3], "ease": [2.0, 0.5]}


def as_dicts(rows: Rows) -> list[dict[int, float]]:
    """The weights of each item by target; targets are ascending, and nothing follows NO_ITEM."""
    found = []
    for ids, values in zip(rows.ids.tolist(), rows.values.tolist(), strict=True):
        targets = [item for item in ids if item != NO_ITEM]
        assert targets == sorted(set(targets))
        found.append(
            dict(zip(targets, (v for v, item in zip(values, ids, strict=True) if item != NO_ITEM), strict=True))
        )
    return found


def joined(parts: Sequence[tuple[int, Rows]]) -> Rows:
    assert [first for first, _ in parts] == np.cumsum([0, *(len(rows.ids) for _, rows in parts)]).tolist()[:-1]
    masses = [rows.masses for _, rows in parts if rows.masses is not None]
    ids, values = (np.concatenate([getattr(rows, name) for _, rows in parts]) for name in ("ids", "values"))
    return Rows(ids, values, np.concatenate(masses) if masses else None)


def pairs_of(
    histories: Sequence[Sequence[int]], reach: int, decay: float, targets: Sequence[Sequence[bool]], *, both: bool
) -> dict[int, dict[int, float]]:
    found: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for history, are_targets in zip(histories, targets, strict=True):
        for later, item in enumerate(history):
            for distance in range(1, min(reach, later) + 1):
                earlier = history[later - distance]
                found[earlier][item] += decay ** (distance - 1) * are_targets[later]
                found[item][earlier] += decay ** (distance - 1) * are_targets[later - distance] * both
    return found


@pytest.mark.parametrize("has_kinds", [False, True], ids=["all are predicted", "some kinds are predicted"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_rows_are_the_greatest_of_pairs_counted_by_hand_in_any_parts(has_kinds: bool, data: st.DataObject) -> None:
    histories = data.draw(
        st.lists(st.lists(st.integers(0, N_ITEMS - 1), min_size=1, max_size=40), min_size=1, max_size=8)
    )
    events = [[1 + (5 * at + len(history)) % 2 for at in range(len(history))] for history in histories]
    kinds: dict[str, Any] = {"events": events, "target_kinds": [2]} if has_kinds else {}
    are_targets = [[not has_kinds or event == 2 for event in of_user] for of_user in events]
    predicted = [
        item
        for history, are in zip(histories, are_targets, strict=True)
        for item, is_target in zip(history, are, strict=True)
        if is_target
    ]
    counts = np.bincount(predicted, minlength=N_ITEMS)
    counted = TrainingHistories(dataset_of(histories, n_items=N_ITEMS, **kinds))
    top, cut = data.draw(st.integers(1, N_ITEMS)), data.draw(st.integers(0, N_ITEMS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prior_rows, "COUNTED_AT_ONCE", data.draw(st.sampled_from([20, 10**6])))
        patch.setattr(transitions, "POSITIONS_AT_ONCE", data.draw(st.sampled_from([10, 10**6])))
        for name, both in (("transitions", False), ("neighbours", True)):
            halves = range(cut), range(cut, N_ITEMS)
            rows = joined([part for half in halves for part in counted_rows(name, counted, counts, half, top)])
            pairs = pairs_of(histories, PRIOR_SOURCES[name].n_last, 1.0 if both else DECAY, are_targets, both=both)
            shares = np.maximum(counts, 1) / max(1, counts.sum())
            for source, found in enumerate(as_dicts(rows)):
                weights, total = pairs[source], sum(pairs[source].values())
                length = {item: math.sqrt(max(1, counts[item])) for item in range(N_ITEMS)}
                keys = {
                    item: weight / length[source] / length[item] if both else weight for item, weight in weights.items()
                }
                lifts = {item: weight / (total + SMOOTHING) / shares[item] for item, weight in weights.items()}
                values = {item: 100 * keys[item] for item in keys} if both else lifts
                least = sorted((key for key in keys.values() if key > 0), reverse=True)[:top]
                assert len(found) == len(least)
                assert sorted((keys[item] for item in found), reverse=True) == pytest.approx(least, rel=1e-5)
                assert found == pytest.approx({item: values[item] for item in found}, rel=1e-5)
                if rows.masses is not None:
                    assert rows.masses[source] == pytest.approx(SMOOTHING / (total + SMOOTHING))


def test_rows_of_ease_are_its_greatest_weights(small_dataset: Any) -> None:
    histories, validation = TrainingHistories(small_dataset), small_dataset.splits["validation"]
    weights = prior_rows.ease_weights(histories, validation)
    for item, found in enumerate(as_dicts(joined([*ease_rows(histories, validation, 5)]))):
        greatest = weights[item].abs().topk(5).indices
        assert found == {int(i): float(weights[item, i]) for i in greatest if weights[item, i] != 0}


def random_rows(seed: int, n_items: int, top: int, *, signed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    ids, values = np.full((n_items, top), NO_ITEM, np.int32), np.zeros((n_items, top), np.float32)
    for row in range(n_items):
        n = int(random.integers(0, top + 1))
        ids[row, :n] = np.sort(random.permutation(n_items)[:n])
        values[row, :n] = random.normal(size=n) if signed else random.exponential(size=n)
    return torch.from_numpy(ids), torch.from_numpy(values)


def sources_for(n_items: int, first: int, stop: int) -> dict[str, Source]:
    masses, bias = torch.linspace(0.1, 0.9, n_items), -torch.linspace(1, 5, n_items)
    return {
        name: Source(
            name, [(ids[:4], values[:4]), (ids[4:], values[4:])], range(first, stop), torch.device("cpu"),
            masses=masses if kind.is_normalized else None, bias=bias[first:stop] if kind.is_normalized else None,
        )
        for seed, (name, kind) in enumerate(PRIOR_SOURCES.items())
        for ids, values in [random_rows(seed, n_items, 6, signed=name == "ease")]
    }  # fmt: skip


def written_out(n_items: int, last: list[int]) -> list[float]:
    """The scores of all items by all sources, with the weights `ALL`."""
    scores = [0.0] * n_items
    for seed, (name, kind) in enumerate(PRIOR_SOURCES.items()):
        ids, values = random_rows(seed, n_items, 6, signed=name == "ease")
        items = [item for item in last[: kind.n_last] if item != NO_ITEM]
        factors = [
            sum(
                weight * decay**age
                for weight, decay in zip([1.0] if kind.is_log else ALL[name], kind.decays, strict=True)
            )
            for age in range(len(items))
        ]
        masses = torch.linspace(0.1, 0.9, n_items).tolist()
        norm = sum(f * masses[i] for f, i in zip(factors, items, strict=True)) if kind.is_normalized else 1.0
        for item in range(n_items):
            total = sum(
                factor / norm * float(value)
                for factor, source in zip(factors, items, strict=True)
                for target, value in zip(ids[source], values[source], strict=True)
                if int(target) == item
            )
            bias = -1 - 4 * item / (n_items - 1) if kind.is_normalized else 0.0
            scores[item] += ALL[name][0] * (math.log1p(total) + bias) if kind.is_log else total
    return scores


@pytest.mark.parametrize("group", [3, 5, 4096])
def test_scores_are_the_written_out_sums_in_any_parts_of_the_catalogue(
    group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert4rec.models.prior.GROUP", group)
    n_items, random = 23, np.random.default_rng(0)
    histories = [random.integers(0, n_items, size).tolist() for size in (1, 3, 60, 0)]
    last = torch.tensor([[*history, *[NO_ITEM] * 50][:50] for history in histories])
    expected = torch.tensor([written_out(n_items, row) for row in last.tolist()])
    for bounds in ([0, 23], [0, 7, 7, 16, 23]):
        of_pairs, start = torch.zeros(4, 5), torch.tensor([[3.0]])
        ids = torch.tensor([[0, 5, 22, 7, 5]] * 4)
        for first, stop in itertools.pairwise(bounds):
            prior = Prior(sources_for(n_items, first, stop), range(first, stop), ALL)
            assert prior.n_last == 50
            of_pairs += prior.of_pairs(last, ids)
            for begin in range(first, stop, 4):
                scores = start.repeat(4, min(4, stop - begin))
                prior.add(scores, last, begin)
                torch.testing.assert_close(
                    scores - 3, expected[:, begin : begin + scores.shape[1]], rtol=1e-4, atol=1e-4
                )
        torch.testing.assert_close(of_pairs, expected.gather(1, ids), rtol=1e-4, atol=1e-4)


def test_only_items_to_which_a_source_adds_the_same_share_a_mark() -> None:
    prior = Prior(sources_for(23, 0, 23), range(23))
    reached = {
        int(i)
        for seed, name in enumerate(PRIOR_SOURCES)
        for i in random_rows(seed, 23, 6, signed=name == "ease")[0].flatten()
    }
    marks = prior.marks().tolist()
    assert {item for item, mark in enumerate(marks) if mark == item} == reached - {NO_ITEM}
    assert all(mark < 0 for item, mark in enumerate(marks) if item not in reached)


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("n_items", [5, 70, 5000])
def test_a_plan_has_the_bytes_of_a_file_in_which_every_item_has_all_weights(n_items: int, tmp_path: Path) -> None:
    top, path = min(TOP, n_items), tmp_path / "prior.safetensors"
    ids = np.arange(top, dtype=np.int32) + np.arange(n_items, dtype=np.int32)[:, None]
    rows = Rows(np.sort(ids % n_items, axis=1), np.ones((n_items, top), np.float32), np.ones(n_items, np.float32))
    parts = {
        name: [(0, rows if kind.is_normalized else rows._replace(masses=None))] for name, kind in PRIOR_SOURCES.items()
    }
    write_prior(path, parts, np.zeros(n_items, np.float32), top)
    for items in (range(n_items), Partition(1, 2).of(n_items)):  # each item is a target equally often
        for name, source in read_prior(path, n_items, items=items).sources.items():
            tensors = [value for value in vars(source).values() if isinstance(value, torch.Tensor)]
            assert source_bytes(name, n_items, len(items)) == sum(tensor.nbytes for tensor in tensors)


def test_an_item_without_a_target_counts_as_one_with_one(tmp_path: Path) -> None:
    histories_of(tmp_path, [[0]])
    np.testing.assert_allclose(log_shares(np.array([0, 1, 7])), np.log([1 / 8, 1 / 8, 7 / 8]), rtol=1e-6)
