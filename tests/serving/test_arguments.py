"""What a call of a model is given: one value where a list belongs, a frame, a number that is not whole; warnings."""

import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from bert4rec import DataWarning, TimedHistory
from bert4rec.runtime.errors import ArgumentError, DataError, UserError
from bert4rec.serving.recommender import Recommender
from tests.checks import one_line
from tests.serving.test_recommender import by_hand, items

Call = Callable[[Recommender], Any]
FRAME = pl.DataFrame({"user": [1], "item": ["a"]})


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda model: model.recommend(["a", "c"]), "model.recommend([['a', 'c']])"),
        (lambda model: model.recommend("a"), "model.recommend([['a']])"),
        (lambda model: model.recommend(b"a"), "model.recommend([[b'a']])"),
        (lambda model: model.recommend(7), "model.recommend([[7]])"),
        (lambda model: model.recommend([7, 8]), "model.recommend([[7, 8]])"),
        (lambda model: model.recommend(np.array([7, 8])), "model.recommend([[7, 8]])"),
        (lambda model: model.recommend([["a"], "c"]), "type ['c']"),
        (lambda model: model.recommend(TimedHistory(["a"], [1])), "model.recommend([TimedHistory(items, times)])"),
        (lambda model: model.recommend([TimedHistory("a", [1])]), "type TimedHistory(['a'], [time])"),
        (lambda model: model.recommend(FRAME), "group_by"),
        (lambda model: model.recommend(FRAME.to_arrow()), "group_by"),
        (lambda model: model.recommend({"u": ["a"]}), "not a dict"),
        (lambda model: model.recommend(None), "not a NoneType"),
        (lambda model: model.recommend([None]), "a history is a NoneType"),
        (lambda model: model.recommend([{"a", "b"}]), "a history is a set"),
        (lambda model: model.encode("a"), "model.encode([['a']])"),
        (lambda model: model.encode(["a", "c"]), "model.encode([['a', 'c']])"),
        (lambda model: model.similar("a"), "model.similar(['a'])"),
        (lambda model: model.similar(7), "model.similar([7])"),
        (lambda model: model.knows("a"), "model.knows(['a'])"),
        (lambda model: model.recommend([["a"]], allow="b"), "type allow=['b']"),
        (lambda model: model.recommend([["a"]], allow=""), "type allow=['']"),
        (lambda model: model.recommend([["a"]], deny=np.int64(5)), "type deny=[5]"),
        (lambda model: model.recommend([["a"]], deny=FRAME), "not a DataFrame"),
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


@pytest.mark.parametrize("k", [2.0, "2", True, None, 1.5, np.float64(2), 0, -3, np.int64(0)])
def test_a_number_that_is_not_whole_is_refused(k: Any) -> None:
    for call in (by_hand().recommend, by_hand().similar):
        with one_line("k = ", error=ArgumentError):
            call([["a"]] if call.__name__ == "recommend" else ["a"], k)


@pytest.mark.parametrize("call", [
    lambda model: model.recommend([["a"]], leave_out_seen="keep"),
    lambda model: model.recommend([["a"]], rules="price < 5"),
    lambda model: model.similar(["a"], rules="price < 5"),
    lambda model: model.rules(at_most="1", per="title"),
    lambda model: model.rules(at_most=1, per=5),
    lambda model: model.rules(where=5),
])  # fmt: skip
def test_choices_and_rules_of_another_type_are_one_line(call: Call) -> None:
    with one_line("", error=ArgumentError):
        call(by_hand())


def test_lists_of_every_kind_and_whole_numbers_of_every_kind_are_taken() -> None:
    model = by_hand()
    expected = items(model.recommend([["c", "a"]], 2))
    for history in (("c", "a"), np.array(["c", "a"]), pl.Series(["c", "a"])):
        assert items(model.recommend([history], 2)) == expected
    assert items(model.recommend(np.array([["c", "a"]]), 2)) == expected
    assert items(model.recommend(pl.Series([["c", "a"]]), 2)) == expected
    for k in (np.int64(2), torch.tensor(2)):
        assert items(model.recommend([["c", "a"]], k)) == expected
    for allowed in ({"b"}, ("b",), pl.Series(["b"]), np.array(["b"]), {"b": 1}.keys()):
        assert items(model.recommend([["a"]], allow=allowed)) == [["b"]]


def test_a_model_says_which_items_it_knows() -> None:
    assert by_hand().knows(["a", "x", "d"]).tolist() == [True, False, True]
    assert by_hand().knows([]).tolist() == []


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
        (lambda model: model.recommend([["x"], ["a"]]), ["1 of 3 items", "1 of 2 histories"]),
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
    wanted = ["1 of 2 items" if figure == "1 of 3 items" else figure for figure in figures]
    assert [str(one.message).startswith(figure) for one, figure in zip(caught, wanted, strict=True)] == [True] * len(
        wanted
    )
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
    assert {one.user for one in model.users_for("b", 9, histories=parts, leave_out_seen=False)} == {"u", "v", "s", "t"}
    with one_line("z: the model does not know this item", error=DataError):
        model.users_for("z", histories=parts)
