"""Recommendations by hand: the network gives each item of the catalogue a known score."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from bert4rec.inference.item_ids import ItemIds
from bert4rec.inference.network import Network
from bert4rec.inference.recommender import Recommendation, Recommender
from bert4rec.models.transformer import Encoder
from bert4rec.runtime.errors import DataError, SettingsError
from tests.inference.test_network import network_of
from tests.models.networks import model


class LastItem(nn.Module):
    """Stands where an encoder stands: the hidden state is the vector of the last item."""

    is_causal = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed_dim, self.max_len = width, 4

    def forward(self, vectors: Tensor, lengths: Tensor, positions: Tensor, *times: Tensor | None) -> Tensor:
        return vectors[positions]


# Who has taken an item takes one with a near vector: (1, 0), (0.9, 0.1), (0, 1), (0.1, 0.8).
VECTORS = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.8]])
TITLES = ["Alien", "Aliens", "Amélie", ""]


def by_hand(leaves_out_seen: bool = True) -> Recommender:
    encoder: Encoder = LastItem(2)  # type: ignore[assignment]
    network = Network(encoder, torch.cat([torch.zeros(2, 2), VECTORS]))
    ids = ItemIds(pa.array(["a", "b", "c", "d"]), pa.array(TITLES))
    return Recommender(network, ids, dataset=Path("data"), leaves_out_seen=leaves_out_seen)


def items(found: list[list[Recommendation]]) -> list[list[str]]:
    return [[one.item for one in row] for row in found]


def test_the_best_ones_with_titles_and_scores() -> None:
    ((first, second),) = by_hand().recommend([["c", "a"]], 2)
    assert first == Recommendation("b", "Aliens", pytest.approx(0.9))
    assert second == Recommendation("d", "", pytest.approx(0.1))


def test_seen_items_are_left_out_or_kept() -> None:
    assert items(by_hand().recommend([["a"]], 9)) == [["b", "d", "c"]]
    assert items(by_hand().recommend([["a"]], 9, leave_out_seen=False)) == [["a", "b", "d", "c"]]
    assert items(by_hand(leaves_out_seen=False).recommend([["a"]], 1)) == [["a"]]


def test_less_than_one_item_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^k = 0: must be at least 1$"):
        by_hand().recommend([["a"]], 0)
    with pytest.raises(SettingsError, match=r"^k = -1: must be at least 1$"):
        by_hand().similar(["a"], -1)


def test_what_is_no_id_is_skipped_like_an_unknown_item(capsys: pytest.CaptureFixture[str]) -> None:
    found = by_hand().recommend([[{"id": 7}, "a", ["b"]]], 1, deny=["z", "d"])
    assert items(found) == [["b"]]
    assert capsys.readouterr().out.splitlines() == [
        "warning: 1 of 2 items to allow or deny skipped: the model knows no z",
        "warning: 2 of 3 items skipped: the model knows no {'id': 7}, ['b']",
    ]


def test_allowed_and_denied_items() -> None:
    recommender = by_hand()
    assert items(recommender.recommend([["a"], ["c"]], 9, deny=["b", "nothing"])) == [["d", "c"], ["d", "a"]]
    assert items(recommender.recommend([["a"]], 9, allow=["c", "a", "b"], deny=["b"])) == [["c"]]
    assert items(recommender.recommend([["a"]], 9, allow=[])) == [[]]


def test_unknown_items_are_skipped_with_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    recommender = by_hand()
    found = recommender.recommend([["a", "x"], ["y"], [], ["c"]], 1)
    assert items(found) == [["b"], [], [], ["d"]]
    assert capsys.readouterr().out.splitlines() == [
        "warning: 2 of 4 items skipped: the model knows no x, y",
        "warning: 2 of 4 histories without an item that the model knows: nothing is recommended; export the model "
        "again, and it knows the most popular items",
    ]
    assert recommender.recommend([], 1) == []


def test_a_history_without_a_known_item_gets_the_most_popular_items(capsys: pytest.CaptureFixture[str]) -> None:
    recommender = by_hand()
    recommender.ids.train_counts = np.array([3, 5, 9, 5])
    found = recommender.recommend([["y"], ["c"], []], 3)
    assert items(found) == [["c", "b", "d"], ["d", "b", "a"], ["c", "b", "d"]]
    assert found[0][0] == Recommendation("c", "Amélie", 9.0)
    assert capsys.readouterr().out.splitlines() == [
        "warning: 1 of 2 items skipped: the model knows no y",
        "warning: 2 of 3 histories without an item that the model knows: the most popular items are recommended",
    ]
    assert items(recommender.recommend([[]], 9, deny=["c"])) == [["b", "d", "a"]]
    assert items(recommender.recommend([[]], 9, allow=["a", "c"])) == [["c", "a"]]


def test_the_result_does_not_depend_on_who_is_asked_with_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Recommender(network_of(model()), ItemIds(pa.array(range(100, 138))), dataset=Path("data"))
    histories = [[100 + (3 * row + place) % 38 for place in range(row % 5 + 1)] for row in range(9)]
    together = trained.recommend(histories, 5)
    monkeypatch.setattr("bert4rec.inference.recommender.BATCH", 2)
    for other in (trained.recommend(histories, 5), [trained.recommend([history], 5)[0] for history in histories]):
        assert items(other) == items(together)


def test_only_the_last_items_count_but_all_are_seen() -> None:
    recommender = by_hand()
    assert recommender.network.max_len == 3
    assert items(recommender.recommend([["b", "c", "c", "c", "a"]], 9)) == [["d"]]


def test_similar_items_are_those_of_the_largest_cosine() -> None:
    first, second = by_hand().similar(["a", "c"], 2)
    assert items([first, second]) == [["b", "d"], ["d", "b"]]
    assert first[0].score == pytest.approx(0.9 / (0.81 + 0.01) ** 0.5)
    with pytest.raises(DataError, match=r"^z: the model knows no such item"):
        by_hand().similar(["a", "z"])


def test_a_lone_item_has_no_similar_one() -> None:
    encoder: Encoder = LastItem(2)  # type: ignore[assignment]
    network = Network(encoder, torch.ones(3, 2))
    assert Recommender(network, ItemIds(pa.array(["a"])), dataset=Path("data")).similar(["a"]) == [[]]


def test_states_of_histories() -> None:
    states = by_hand().encode([["a"], [], ["x", "d"]])
    assert states.tolist() == [[1.0, 0.0], [0.0, 0.0], [pytest.approx(0.1), pytest.approx(0.8)]]
