"""Rules over the columns of items: lists equal a walk over all scores, and what cannot be used is one line."""

from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bert4rec.evaluation.top_k import top_k
from bert4rec.models.transformer import Encoder
from bert4rec.runtime.errors import ArgumentError
from bert4rec.serving import candidates
from bert4rec.serving.histories import ItemIds
from bert4rec.serving.network import Network
from bert4rec.serving.recommender import Recommendation, Recommender
from bert4rec.serving.rules import make_rules
from bert4rec.serving.stored_items import StoredItemIds
from tests.folders import write_catalogue
from tests.serving.test_recommender import LastItem

N = 90
DRAW = np.random.default_rng(4)
STOCK = [None if i % 11 == 0 else i % 3 > 0 for i in range(N)]
KIND = [None if i % 7 == 0 else "abcde"[i % 5] for i in range(N)]
PRICE = [float(i % 20) for i in range(N)]


def model() -> Recommender:
    encoder: Encoder = LastItem(4)  # type: ignore[assignment]
    vectors = torch.from_numpy(np.round(4 * DRAW.normal(size=(N, 4))) / 4).float()  # scores tie, and are exact
    others = {"in_stock": pa.array(STOCK), "kind": pa.array(KIND), "price": pa.array(PRICE)}
    return Recommender(Network(encoder, vectors), ItemIds(pa.array(range(N)), None, np.arange(N) % 13, others))


MODEL = model()


def by_hand(history: list[int], k: int, *, where: Any, at_most: int, leave_out: bool, deny: set[int]) -> list[int]:
    """Walk over all items in the order of their scores, ties by their numbers."""
    vectors = MODEL.network.item_vectors
    scores = (vectors @ vectors[history[-1]]).tolist()
    taken: dict[str, int] = {}

    def allowed() -> Any:
        for item in sorted(range(N), key=lambda item: (-scores[item], item)):
            if not where(item) or item in deny or (leave_out and item in history):
                continue
            kind = KIND[item]
            if kind is not None and at_most:
                if taken.get(kind, 0) == at_most:
                    continue
                taken[kind] = taken.get(kind, 0) + 1
            yield item

    return list(islice(allowed(), k))


WHERES: dict[str, Any] = {
    "": lambda item: True,
    "in_stock": lambda item: STOCK[item] is True,
    "in_stock and price < 5": lambda item: STOCK[item] is True and PRICE[item] < 5,
    "kind <> 'a'": lambda item: KIND[item] not in (None, "a"),
}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, N - 1), min_size=1, max_size=5), st.integers(1, 30), st.sampled_from(sorted(WHERES)),
    st.integers(0, 3), st.booleans(), st.sets(st.integers(0, N - 1), max_size=5),
)  # fmt: skip
def test_a_list_is_that_of_a_walk_over_all_items(
    history: list[int], k: int, where: str, at_most: int, leave_out: bool, deny: set[int]
) -> None:
    rules = MODEL.rules(where=where or None, at_most=at_most or None, per="kind" if at_most else None)
    (found,) = MODEL.recommend([history], k, rules=rules, leave_out_seen=leave_out, deny=deny)
    wanted = by_hand(history, k, where=WHERES[where], at_most=at_most, leave_out=leave_out, deny=deny)
    assert [each.item for each in found] == wanted


def test_a_history_without_a_known_item_gets_popular_items_by_the_rules() -> None:
    rules = MODEL.rules(where="in_stock", at_most=1, per="kind")
    (found,) = MODEL.recommend([[]], 10, rules=rules)
    kinds = [KIND[each.item] for each in found if KIND[each.item]]
    assert len(kinds) == len({*kinds})
    assert all(STOCK[each.item] for each in found)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


@pytest.mark.parametrize(
    ("rules", "tokens"),
    [
        ({"where": "price <"}, ["price <", "in_stock"]),
        ({"where": "colour = 1"}, ["colour", "in_stock, kind, price"]),
        ({"where": "price"}, ["where = price"]),
        ({"where": "price < 0"}, ["price < 0", "no item matches"]),
        ({"where": "in_stock price"}, ["where = in_stock price: unexpected text after the condition"]),
        ({"where": "in_stock as price"}, ["unexpected text after the condition"]),
        ({"where": "in_stock) or (price < 3"}, ["in_stock) or"]),
        ({"where": "in_stock,\nprice"}, ["in_stock, price"]),
        ({"where": "in_stok"}, ["no column in_stok", "did you mean in_stock?"]),
        ({"where": "kind < 3"}, ["kind < 3"]),
        ({"at_most": 0}, ["at_most = 0", "at least 1"]),
        ({"at_most": 2, "per": ""}, ["per"]),
        ({"at_most": 2}, ["at_most = 2", "--per"]),
        ({"per": "kind"}, ["per = kind", "--at-most"]),
        ({"at_most": 1, "per": "kin"}, ["kind?"]),
        ({"at_most": 1, "per": "tags"}, ["tags"]),
    ],
)
def test_what_cannot_be_used_is_one_line(rules: dict[str, Any], tokens: list[str]) -> None:
    table = MODEL.ids.columns.append_column("tags", pa.array([["a"]] * N))
    with pytest.raises(ArgumentError) as caught:
        make_rules(table, **rules)
    assert "\n" not in str(caught.value)
    assert all(token in str(caught.value) for token in tokens)
    assert str(caught.value).count("in_stock, kind, price") <= 1


@pytest.mark.parametrize("at_most", [1, 2])
def test_a_value_that_is_full_stays_full_in_later_searches(at_most: int) -> None:
    vectors = MODEL.network.item_vectors
    scores = (vectors @ vectors[3]).tolist()
    order = sorted(range(N), key=lambda item: (-scores[item], item))
    kinds = [""] * N
    for place, item in enumerate(order):
        kinds[item] = "abcdef"[place // 15]  # the best fifteen, then the next fifteen, …
    rules = make_rules(pa.table({"kind": kinds}), at_most=at_most, per="kind")
    (found,) = MODEL.recommend([[3]], 6, rules=rules, leave_out_seen=False)
    wanted = [order[place] for place in range(N) if place % 15 < at_most]
    assert [each.item for each in found] == wanted[:6]


def test_a_run_and_its_package_have_the_same_columns_without_vectors(tmp_path: Path) -> None:
    day = datetime(2026, 1, 31, tzinfo=UTC)
    others = {
        "released": pa.array([day.date(), None, day.date()]),
        "id": pa.array(["x", None, "z"]),  # the name of a key of the package's lines
        "added": pa.array([day.replace(tzinfo=None), None, day.replace(tzinfo=None)]),
        "seen": pa.array([day, day, None]),
        "code": pa.array(["2026-01-31", "x", None]),
        "price": pa.array([1.5, float("nan"), None]),
        "tax": pa.array([Decimal("0.25"), None, Decimal("1.50")]),
        "stock": pa.array([True, False, None]),
        "tags": pa.array([["a"], [], None]),
        "image": pa.array([[0.5], [1.5], None]),
        "photo": pa.array([b"a", b"b", None]),
    }
    run = StoredItemIds(write_catalogue(tmp_path, original=[8, 7, 9], train_count=[2, 3, 1], **others))
    run.write_lines(tmp_path / "items.jsonl")
    package = ItemIds.read_lines(tmp_path / "items.jsonl", are_numbers=True)
    assert package.columns.to_pydict() == run.columns.to_pydict()
    assert run.columns["item"].to_pylist() == [8, 7, 9]
    assert run.columns.column_names == ["item", "train_count", *[*others][:-2]]
    for columns in (run.columns, package.columns):
        for where in ("released = '2026-01-31'", "added >= '2026-01-31'", "seen < '2026-02'", "price > 1", "tax < 1"):
            allowed = make_rules(columns, where=where).allowed
            assert allowed is not None
            assert allowed[0]
            assert allowed.sum() == (2 if columns[where.split()[0]].null_count < 2 and "tax" not in where else 1)


MANY = 20_000  # items, more than are scored at once


@pytest.fixture(scope="module")
def large() -> Recommender:
    """A model with every tenth vector twice, so that scores tie."""
    encoder: Encoder = LastItem(8)  # type: ignore[assignment]
    vectors = torch.from_numpy(np.random.default_rng(3).normal(size=(MANY, 8))).float()
    vectors[5::10] = vectors[4::10]
    others = {"kind": pa.array([i % 300 for i in range(MANY)]), "price": pa.array([i % 20 for i in range(MANY)])}
    return Recommender(Network(encoder, vectors), ItemIds(pa.array(range(MANY)), None, None, others))


def first_allowed(found: list[Recommendation], k: int, *, is_shown: Any, at_most: int = MANY) -> list[Recommendation]:
    """The first `k` of a list of all items that are shown, with at most so many of a kind."""
    taken: dict[int, int] = {}
    kept = []
    for one in filter(lambda one: is_shown(one.item), found):
        taken[one.item % 300] = taken.get(one.item % 300, 0) + 1
        kept += [one] if taken[one.item % 300] <= at_most else []
    return kept[:k]


def test_what_is_left_out_changes_no_score_and_no_order(large: Recommender) -> None:
    history, best = [[7, 4]], 400
    (whole,) = large.recommend(history, MANY)
    denied = {one.item for one in whole[:MANY:3]}
    (found,) = large.recommend(history, best, deny=denied)
    assert found == first_allowed(whole, best, is_shown=lambda item: item not in denied)
    rules = large.rules(where="price < 9", at_most=1, per="kind")
    (found,) = large.recommend(history, best, rules=rules, deny=denied)
    wanted = first_allowed(whole, best, is_shown=lambda item: item % 20 < 9 and item not in denied, at_most=1)
    assert found == wanted
    few = [one.item for one in whole[10 : MANY : MANY // 50]]
    (found,) = large.recommend(history, best, allow=few)
    assert [one.item for one in found] == few
    (nearest,) = large.similar([4], MANY)
    unit = torch.nn.functional.normalize(large.network.item_vectors, dim=1)
    scores, indices = (values[0].tolist() for values in top_k(unit[[4]], unit, MANY))
    pairs = zip(indices, scores, strict=True)
    assert [(one.item, one.score) for one in nearest] == [(item, score) for item, score in pairs if item != 4]
    (found,) = large.similar([4], best, rules=rules)
    assert found == first_allowed(nearest, best, is_shown=lambda item: item % 20 < 9, at_most=1)


def test_vectors_are_not_copied_and_few_searches_are_enough(
    large: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[tuple[int, int]] = []

    def noted(hidden: torch.Tensor, vectors: torch.Tensor, k: int, **options: Any) -> Any:
        searches.append((vectors.data_ptr(), k))
        return top_k(hidden, vectors, k, **options)

    monkeypatch.setattr(candidates, "top_k", noted)
    rules = large.rules(where="price < 9")
    large.recommend([[7]], deny=[1, 2])
    large.recommend([[7]], rules=rules)
    large.similar([4], rules=rules)
    assert searches == [(large.network.item_vectors.data_ptr(), 10)] * 3
    kinds = ["a" if i % 30 else "rest" for i in range(N)]  # nearly all items have one
    searches.clear()
    lists = MODEL.recommend([[3], [5, 4], [7]], 3, rules=make_rules(pa.table({"kind": kinds}), at_most=1, per="kind"))
    assert all(len({kinds[each.item] for each in one}) == len(one) for one in lists)
    assert len(searches) <= 1 + 3
