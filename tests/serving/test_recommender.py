"""Recommendations by hand, by a network that gives each item a known score; and what a call is given."""

import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from bert4rec import DataWarning, TimedHistory
from bert4rec.dataset.format import NO_ITEM
from bert4rec.evaluation.seen_items import SeenRule
from bert4rec.models.transformer import Encoder
from bert4rec.runtime.errors import ArgumentError, DataError, UserError
from bert4rec.serving.histories import ItemIds
from bert4rec.serving.network import Network
from bert4rec.serving.recommender import Recommendation, Recommender
from bert4rec.serving.stored_items import StoredItemIds
from tests.checks import one_line
from tests.folders import write_catalogue
from tests.models.networks import model
from tests.serving.conftest import network_of


class LastItem(nn.Module):
    """Stands where an encoder stands: the hidden state is the vector of the last item."""

    is_causal = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed_dim, self.max_len = width, 4

    def add_events(self, vectors: Tensor, events: None) -> Tensor:
        return vectors

    def forward(self, vectors: Tensor, lengths: Tensor, positions: Tensor, *times: Tensor | None) -> Tensor:
        return vectors[positions]


# Who has taken an item takes one with a near vector: (1, 0), (0.9, 0.1), (0, 1), (0.1, 0.8).
VECTORS = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.8]])
TITLES = ["Alien", "Aliens", "Amélie", ""]


def by_hand(leaves_out_seen: SeenRule = True) -> Recommender:
    """A model of four items; people take b and c again."""
    encoder: Encoder = LastItem(2)  # type: ignore[assignment]
    network = Network(encoder, VECTORS)
    again = {"again": lambda: np.array([False, True, True, False])}
    ids = ItemIds(pa.array(["a", "b", "c", "d"]), pa.array(TITLES), np.array([3, 5, 9, 5]), **again)
    return Recommender(network, ids, dataset=Path("data"), leaves_out_seen=leaves_out_seen)


def items(found: list[list[Recommendation]]) -> list[list[str]]:
    return [[one.item for one in row] for row in found]


def test_the_best_ones_with_titles_and_scores_seen_items_left_out_or_kept() -> None:
    ((first, second),) = by_hand().recommend([["c", "a"]], 2)
    assert first == Recommendation("b", "Aliens", pytest.approx(0.9))
    assert second == Recommendation("d", "", pytest.approx(0.1))
    assert items(by_hand().recommend([["a"]], 9)) == [["b", "d", "c"]]
    assert items(by_hand().recommend([["a"]], 9, leave_out_seen=False)) == [["a", "b", "d", "c"]]
    assert items(by_hand(leaves_out_seen=False).recommend([["a"]], 1)) == [["a"]]
    assert items(by_hand("by_item").recommend([["b", "a"]], 9)) == [["b", "d", "c"]]
    assert items(by_hand().recommend([["b", "a"]], 9, leave_out_seen="by_item")) == [["b", "d", "c"]]
    # The network reads the last three items alone, but all are seen.
    assert items(by_hand().recommend([["b", "c", "c", "c", "a"]], 9)) == [["d"]]


def test_what_is_no_id_is_skipped_like_an_unknown_item(capsys: pytest.CaptureFixture[str]) -> None:
    found = by_hand().recommend([[None, "a", 7.5]], 1, deny=["z", "d"])
    assert items(found) == [["b"]]
    first, second = capsys.readouterr().out.splitlines()
    assert (first.startswith("warning: 1 of 2 items"), first.endswith(" z")) == (True, True)
    assert (second.startswith("warning: 2 of 3 items"), second.endswith(" None, 7.5")) == (True, True)


def test_allowed_and_denied_items() -> None:
    recommender = by_hand()
    assert items(recommender.recommend([["a"], ["c"]], 9, deny=["b", "nothing"])) == [["d", "c"], ["d", "a"]]
    assert items(recommender.recommend([["a"]], 9, allow=["c", "a", "b"], deny=["b"])) == [["c"]]
    assert items(recommender.recommend([["a"]], 9, allow=[])) == [[]]


def test_a_history_without_a_known_item_gets_the_most_popular_items(capsys: pytest.CaptureFixture[str]) -> None:
    recommender = by_hand()
    found = recommender.recommend([["y", "a"], ["y"], ["c", "x"], []], 3)
    assert items(found) == [["b", "d", "c"], ["c", "b", "d"], ["d", "b", "a"], ["c", "b", "d"]]
    assert found[1][0] == Recommendation("c", "Amélie", pytest.approx(np.log(9 / 22)))
    assert [one.is_fallback for one in found] == [False, True, False, True]
    assert [one.fallback for one in found] == ["", "popularity"] * 2
    unknown, empty = capsys.readouterr().out.splitlines()
    assert (unknown.startswith("warning: 3 of 5 items"), unknown.endswith(" y, x")) == (True, True)
    assert empty.startswith("warning: 2 of 4 histories")
    assert items(recommender.recommend([[]], 9, deny=["c"])) == [["b", "d", "a"]]
    assert items(recommender.recommend([[]], 9, allow=["a", "c"])) == [["c", "a"]]
    assert recommender.recommend([], 1) == []


def test_or_the_recently_most_popular_ones_then_the_others_by_all_training_positions() -> None:
    counts = {"train_counts": np.array([3, 5, 9, 5]), "recent_counts": np.array([2, 2, 0, 0])}
    recommender = replace(by_hand(), ids=ItemIds(pa.array(["a", "b", "c", "d"]), **counts))
    (found,) = recommender.recommend([["y"]], 4)
    assert (items([found]), found.fallback) == ([["b", "a", "c", "d"]], "recent_popularity")
    assert np.exp([one.score for one in found]) == pytest.approx(np.array([2 + 5 / 22, 2 + 3 / 22, 9 / 22, 5 / 22]) / 5)
    assert items(recommender.recommend([[]], 2, deny=["b"])) == [["a", "c"]]


def test_the_result_does_not_depend_on_who_is_asked_with_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Recommender(network_of(model()), ItemIds(pa.array(range(100, 138))), dataset=Path("data"))
    histories = [[100 + (3 * row + place) % 38 for place in range(row % 5 + 1)] for row in range(9)]
    together = trained.recommend(histories, 5)
    monkeypatch.setattr("bert4rec.serving.recommender.BATCH", 2)
    for other in (trained.recommend(histories, 5), [trained.recommend([history], 5)[0] for history in histories]):
        assert items(other) == items(together)


def test_similar_items_are_those_of_the_largest_cosine() -> None:
    first, second = by_hand().similar(["a", "c"], 2)
    assert items([first, second]) == [["b", "d"], ["d", "b"]]
    assert first[0].score == pytest.approx(0.9 / (0.81 + 0.01) ** 0.5)
    with pytest.raises(DataError, match=r"^z: "):
        by_hand().similar(["a", "z"])
    network = Network(LastItem(2), torch.ones(1, 2))  # type: ignore[arg-type]
    assert Recommender(network, ItemIds(pa.array(["a"]))).similar(["a"]) == [[]]


def test_a_recommender_never_changes() -> None:
    recommender = by_hand()
    before = {name: id(getattr(recommender, name)) for name in vars(recommender)}
    recommender.recommend([["a"], []], 2, deny=["b"])
    recommender.similar(["a"], rules=recommender.rules(where="train_count < 9"))
    assert {name: id(getattr(recommender, name)) for name in before} == before


def test_states_of_histories() -> None:
    states = by_hand().encode([["a"], [], ["x", "d"]])
    assert states.tolist() == [[1.0, 0.0], [0.0, 0.0], [pytest.approx(0.1), pytest.approx(0.8)]]


def test_ids_that_are_numbers_may_be_given_as_text_and_text_stays_text() -> None:
    ids = ItemIds(pa.array([7, 1, 30]))
    assert ids.indices([30, "7", "x", None, 2, 1.0]).tolist() == [2, 0, NO_ITEM, NO_ITEM, NO_ITEM, 1]
    assert ids.indices([1.7, "1.7", float("inf"), float("nan"), [7]]).tolist() == [NO_ITEM] * 5
    assert (ids.of([2, 0]), ids.titles_of([2, 0])) == ([30, 7], ["", ""])
    ids = ItemIds(pa.array(["7", "SKU-1"], pa.large_string()), pa.array(["Seven", ""]))
    assert ids.indices([7, "SKU-1", "sku-1"]).tolist() == [0, 1, NO_ITEM]


def test_a_table_of_items_is_read_by_id_with_text_longer_than_32_bits_can_count(tmp_path: Path) -> None:
    """Offsets of 32 bits end at 2 GiB of text, as 62 million ids of 36 characters have."""
    ids = StoredItemIds(write_catalogue(tmp_path, original=["b", "a"], title=[None, "B"], train_count=[1, 1]))
    assert [column.type for column in (ids.originals, ids.titles)] == [pa.large_string()] * 2  # type: ignore[union-attr]
    ids.write_lines(tmp_path / "items.jsonl")
    for found in (ids, ItemIds.read_lines(tmp_path / "items.jsonl", are_numbers=False)):
        assert (found.of([0, 1]), found.titles_of([0, 1])) == (["b", "a"], ["", "B"])
    with pytest.raises(DataError, match=r"nowhere: "):
        StoredItemIds(Path("nowhere"))


def test_the_most_popular_items_have_most_training_positions(tmp_path: Path) -> None:
    ids = StoredItemIds(write_catalogue(tmp_path, original=[*"bacd"], count=[9] * 4, train_count=[3, 3, 1, 8]))
    ids.write_lines(tmp_path / "items.jsonl")
    for known in (ids, ItemIds.read_lines(tmp_path / "items.jsonl", are_numbers=False)):
        assert known.of(known.most_popular(2).tolist()) == ["d", "b"]
        assert known.of(known.most_popular(9, np.array([False, False, True, True])).tolist()) == ["b", "a"]
        assert known.most_popular(3, np.ones(4, bool)).tolist() == []


Call = Callable[[Recommender], Any]
FRAME = pl.DataFrame({"user": [1], "item": ["a"]})


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda model: model.recommend(["a", "c"]), "model.recommend([['a', 'c']])"),
        (lambda model: model.recommend("a"), "model.recommend([['a']])"),
        (lambda model: model.recommend(np.array([7, 8])), "model.recommend([[7, 8]])"),
        (lambda model: model.recommend([["a"], "c"]), "type ['c']"),
        (lambda model: model.recommend(TimedHistory(["a"], [1])), "model.recommend([TimedHistory(items, times)])"),
        (lambda model: model.recommend([TimedHistory("a", [1])]), "type TimedHistory(['a'], [time])"),
        (lambda model: model.recommend(FRAME), "group_by"),
        (lambda model: model.recommend({"u": ["a"]}), "not a dict"),
        (lambda model: model.recommend([{"a", "b"}]), "a history is a set"),
        (lambda model: model.similar("a"), "model.similar(['a'])"),
        (lambda model: model.recommend([["a"]], allow="b"), "type allow=['b']"),
        (lambda model: model.recommend([["a"]], deny=np.int64(5)), "type deny=[5]"),
        (lambda model: model.recommend([["a"]], deny=[["b"]]), "expected an id"),
        (lambda model: model.recommend([[["a"]]]), "expected an id"),
        (lambda model: model.users_for(["a"]), "type model.users_for(item)"),
    ],
)
def test_one_value_where_a_list_belongs_is_refused_with_the_right_call(call: Call, advice: str) -> None:
    with pytest.raises(DataError) as caught:
        call(by_hand())
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call", [
    *(lambda model, k=k: model.recommend([["a"]], k) for k in (2.0, "2", True, None, np.float64(2), 0, np.int64(0))),
    lambda model: model.similar(["a"], -1),
    lambda model: model.recommend([["a"]], leave_out_seen="keep"),
    lambda model: model.users_for("a", leave_out_seen="by item"),
    lambda model: model.recommend([["a"]], rules="price < 5"),
    lambda model: model.similar(["a"], rules="price < 5"),
    lambda model: model.rules(at_most="1", per="title"),
    lambda model: model.rules(at_most=1, per=5),
    lambda model: model.rules(where=5),
])  # fmt: skip
def test_values_of_another_type_are_one_line(call: Call) -> None:
    with one_line("", error=ArgumentError):
        call(by_hand())


def test_lists_of_every_kind_and_whole_numbers_of_every_kind_are_taken() -> None:
    model = by_hand()
    expected = items(model.recommend([["c", "a"]], 2))
    for history in (("c", "a"), np.array(["c", "a"]), pl.Series(["c", "a"])):
        assert items(model.recommend([history], 2)) == expected
    assert items(model.recommend(np.array([["c", "a"]]), 2)) == expected
    assert items(model.recommend(pl.Series([["c", "a"]]), 2)) == expected
    assert model.knows(np.array(["a", "x", "d"])).tolist() == [True, False, True]
    for k in (np.int64(2), torch.tensor(2)):
        assert items(model.recommend([["c", "a"]], k)) == expected
    for allowed in ({"b"}, ("b",), pl.Series(["b"]), np.array(["b"]), {"b": 1}.keys()):
        assert items(model.recommend([["a"]], allow=allowed)) == [["b"]]


@pytest.fixture
def plain_python() -> Any:
    """No log goes to the terminal."""
    package = logging.getLogger("bert4rec")
    handlers, package.handlers = package.handlers, [logging.NullHandler()]
    yield
    package.handlers = handlers


@pytest.mark.usefixtures("plain_python")
@pytest.mark.parametrize(
    ("call", "figures"),
    [
        (lambda model: model.recommend([["x", "a"], ["a", "y"]]), ["2 of 4 items"]),
        (lambda model: model.recommend([["x"], ["a"]]), ["1 of 2 items", "1 of 2 histories"]),
        (lambda model: model.recommend([["a", "b", "c", "d"], ["a"]]), ["1 of 2 histories"]),
        (lambda model: model.recommend([["a"]], deny=["z"]), ["1 of 1 item "]),
        (lambda model: model.encode([["x", "a"]]), ["1 of 2 items"]),
        (lambda model: model.recommend([["a"]]), []),
    ],
)
def test_what_is_skipped_is_warned_of_once_a_call_at_the_line_of_the_call(call: Call, figures: list[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(by_hand())
    assert all(str(one.message).startswith(figure) for one, figure in zip(caught, figures, strict=True))
    assert {(one.category, one.filename) for one in caught} <= {(DataWarning, __file__)}
    assert not issubclass(DataWarning, UserError)


def test_the_log_has_the_warning_if_it_goes_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_hand().recommend([["x"]])
    assert capsys.readouterr().out.count("warning: ") == 2


def test_the_users_for_an_item_are_those_who_give_it_the_largest_share() -> None:
    model = by_hand()
    parts = [[("u", ["a"]), ("v", ["c"]), ("w", ["x"])], [("t", ["b", "c", "d"]), ("s", ["c"])]]
    found = model.users_for("b", 9, histories=parts)
    vectors = model.network.item_vectors
    shares = {user: torch.log_softmax(vectors[last] @ vectors.T, 0)[1].item() for user, last in (("u", 0), ("v", 2))}
    assert [one.user for one in found] == ["u", "v", "s"]  # t has it, w is unknown
    assert [one.score for one in found] == pytest.approx([shares["u"], shares["v"], shares["v"]])
    assert model.users_for("b", 1, histories=parts) == found[:1]
    for leave_out_seen in (False, "by_item"):  # people take b again
        users = model.users_for("b", 9, histories=parts, leave_out_seen=leave_out_seen)
        assert {one.user for one in users} == {"u", "v", "s", "t"}
    with one_line("z: the model does not know this item", error=DataError):
        model.users_for("z", histories=parts)
