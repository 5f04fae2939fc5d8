"""Recommend items for histories, by original id."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bert4rec.config.kinds import KINDS, POPULARITY, RECENT_POPULARITY
from bert4rec.dataset.format import NO_ITEM
from bert4rec.dataset.hidden import HiddenEvents
from bert4rec.evaluation.batches import chunks
from bert4rec.evaluation.seen_items import BY_ITEM, LeavesOut, SeenRule, are_left_out
from bert4rec.evaluation.top_k import TileScorer, log_shares
from bert4rec.models.prior import Prior, last_items
from bert4rec.runtime.arrays import Bools
from bert4rec.runtime.console import warn
from bert4rec.runtime.errors import ArgumentError, DataError, pluralize
from bert4rec.serving.arguments import (
    UnknownItems,
    checked_histories,
    checked_item,
    checked_items,
    checked_k,
    checked_rules,
    checked_seen,
)
from bert4rec.serving.candidates import CandidateSet, Queries
from bert4rec.serving.counted import Counted
from bert4rec.serving.histories import Histories, History, ItemIds, KnownHistory, items_of
from bert4rec.serving.network import ItemVectors, Network
from bert4rec.serving.rules import Rules, is_within, make_rules

if TYPE_CHECKING:
    from bert4rec.serving.nearest import NearestItems
    from bert4rec.serving.users import UserHistories

BATCH = 256  # histories per forward pass
NO_RULES = Rules()
POPULAR = {POPULARITY: "most popular", RECENT_POPULARITY: "recently most popular"}
NAME_DATASET = 'name that dataset with --dataset=FOLDER, in Python with dataset="FOLDER"'


class Recommendation(NamedTuple):
    """The original id of an item, its title ("" if unknown), and its score (higher is better)."""

    item: Any
    title: str
    score: float


class Recommendations(list[Recommendation]):
    """The recommendations for a history, the best first.

    `fallback`: "", or if the history has no item that the model knows, "popularity" (of all training positions) or
    "recent_popularity" (of the newest tenth), whichever was better on the validation users. The score of an item is
    then the natural logarithm of its share of these positions (`ItemIds.log_shares`).
    """

    def __init__(self, found: Iterable[Recommendation] = (), *, fallback: str = "") -> None:
        super().__init__(found)
        self.fallback = fallback

    @property
    def is_fallback(self) -> bool:
        """Return whether these are popular items, since the history has no item that the model knows."""
        return bool(self.fallback)


class UserScore(NamedTuple):
    """The original id of a user, and the natural logarithm of the share that the model gives to an item."""

    user: Any
    score: float


class Items(NamedTuple):
    """The original ids of a model's items, their titles ("" if unknown), and their vectors [V, d]."""

    ids: list[Any]
    titles: list[str]
    vectors: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Recommender:
    """Recommend with a trained `network`, which scores the items `ids`; `dataset` is the folder of its users.

    Without it, `no_users` says why.

    The `prior`, if there is one, is added to the scores of the network; it reads whole histories, the network their
    end. Scores depend only on the histories, so any user can be scored. With `leaves_out_seen`, items of a history are
    not recommended for it, with "by_item" only those that people take again, unless a call overrides this. `hidden`
    events are left out of histories. With `nearest`, near items alone are searched, unless a call has rules or leaves
    out items. `settings` are those of the training, by table. `ItemVectors` only support similar items, and `Counted`
    has no vectors; other calls raise `DataError`. It never changes, so that threads can share it.
    """

    network: Network | ItemVectors | Counted
    ids: ItemIds
    _: KW_ONLY
    dataset: Path | None = None
    leaves_out_seen: SeenRule = True
    is_package: bool = False
    no_users: str = "the model has no dataset"
    hidden: HiddenEvents | None = None
    prior: Prior | None = None
    nearest: "NearestItems | None" = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def recommend(
        self, histories: Sequence[History], k: int = 10, *, leave_out_seen: SeenRule | None = None,
        allow: Collection[Any] | None = None, deny: Collection[Any] = (), rules: Rules = NO_RULES,
    ) -> list[Recommendations]:  # fmt: skip
        """Return the `k` best items for each history, the best first.

        A history without a known item gets popular items and the kind of popularity as `fallback`, with a warning; a
        model that counts popularity itself scores it as any other. `knows` says beforehand which items are known.
        `leave_out_seen`, True, False or "by_item", overrides `leaves_out_seen`. With `allow`, only these items are
        recommended; items of `deny` never are. Items that the model does not know are skipped. `rules`, which `rules`
        makes, leave out items and limit how many of a kind a list has. Whatever is skipped, and empty lists, give one
        `DataWarning` each. Raises `ArgumentError`, a `ValueError`, for a value that cannot be used, such as k = 0, or
        one history or one item where a list is expected; and `DataError` for "by_item" if it is not known which items
        come again.
        """
        (recommendations,) = self.recommend_in_parts(
            [histories], k, leave_out_seen=leave_out_seen, allow=allow, deny=deny, rules=rules
        )
        if n_empty := sum(not found for found in recommendations):
            leaves_out = self.leaves_out_seen if leave_out_seen is None else leave_out_seen
            advice = "; leave_out_seen=False recommends seen items, too" if leaves_out else ""
            warn(
                f"{n_empty:,} of {pluralize(len(recommendations), 'history')} without a recommendation: no item that "
                f"may be recommended is left{advice}"
            )
        return recommendations

    def knows(self, items: Sequence[Any]) -> Bools:
        """Return for each of `items` whether the model knows it, as an array of NumPy."""
        return self.ids.indices(checked_items("items", items, "model.knows({})")) != NO_ITEM

    def rules(self, *, where: str | None = None, at_most: int | None = None, per: str | None = None) -> Rules:
        """Return rules for `recommend` and `similar`: `where` is true, in SQL, and `at_most` items `per` value.

        The columns are item, title, train_count and those of data.items_path but vectors, with dates as text:
        where="in_stock and price < 20", at_most=2, per="category". Raises `ArgumentError` for a condition or a column
        that cannot be used.
        """
        if where is None and at_most is None and per is None:
            return NO_RULES
        return make_rules(self.ids.columns, where=where, at_most=at_most, per=per)

    def recommend_in_parts(
        self, parts: Iterable[Sequence[History]], k: int = 10, *, leave_out_seen: SeenRule | None = None,
        allow: Collection[Any] | None = None, deny: Collection[Any] = (), rules: Rules = NO_RULES,
    ) -> Iterator[list[Recommendations]]:  # fmt: skip
        """Yield the recommendations for each part, like `recommend`, and warn at the end, not of empty lists."""
        k, rules, network = checked_k(k), checked_rules(rules), self.require_histories()
        leaves_out = self._left_out(checked_seen(leave_out_seen, default=self.leaves_out_seen))
        hidden_items, unknown = self._hidden(allow, deny, rules), UnknownItems()
        popular = cache(partial(self._most_popular, k, hidden_items, rules))
        is_whole = hidden_items is None and rules.groups is None
        shown = (self.nearest if is_whole else None) or CandidateSet.of(
            self._scored, hidden_items, rules, prior=self.prior
        )
        n_histories = n_empty = 0

        def is_scored(history: KnownHistory) -> bool:
            return len(history) > 0 or (isinstance(network, Counted) and network.is_alike)

        for part in parts:
            known = self._known(checked_histories(part, "recommend"), unknown)
            n_histories, n_empty = n_histories + len(known), n_empty + sum(not is_scored(history) for history in known)
            found: list[Recommendations] = []
            for rows in chunks(len(known), BATCH):
                if some := [history for history in known[rows] if is_scored(history)]:
                    found += self._named(*shown.best(self._queries(some, leaves_out), k))
            results = iter(found)
            yield [next(results) if is_scored(history) else popular() for history in known]
        unknown.warn()
        if n_empty:
            warn(
                f"{n_empty:,} of {pluralize(n_histories, 'history')} {'has' if n_empty == 1 else 'have'} no item that "
                f"the model knows: the {POPULAR[self.ids.fallback]} items are recommended"
            )

    def similar(self, items: Sequence[Any], k: int = 10, *, rules: Rules = NO_RULES) -> list[Recommendations]:
        """Return the `k` items nearest to each of `items` by cosine similarity, by the rules, without the item itself.

        Only vectors are compared, without the prior. A model that only counts returns the items with the highest scores
        after the item alone. Raises `ArgumentError` for an item that the model does not know, and `DataError` if the
        model counts popularity alone.
        """
        k, items = checked_k(k), checked_items("items", items, "model.similar({})")
        rules = checked_rules(rules)
        indices = self.ids.indices(items)
        if unknown := [item for item, index in zip(items, indices, strict=True) if index == NO_ITEM]:
            raise _unknown_item(unknown[0])
        hidden, alone = self._hidden(None, (), rules), [*indices[:, None]]
        if isinstance(self.network, Counted):
            self.network.require_likeness()
            shown = CandidateSet.of(self.network, hidden, rules)
            queries = self.network.encode([KnownHistory(item, item) for item in alone])
        else:
            rows = torch.from_numpy(indices)
            shown = CandidateSet.of(self._vectors, hidden, rules, norms=self._norms)
            queries = self._vectors[rows] / self._norms[rows]
        return self._named(*shown.best(Queries(queries, alone), k))

    def users_for(
        self, item: Any, k: int = 100, *, histories: Iterable[Histories] | None = None,
        leave_out_seen: SeenRule = True,
    ) -> list[UserScore]:  # fmt: skip
        """Return the `k` users whom the model gives `item` with the largest share, the best first.

        The score is log softmax: the logarithm of the share of `item` in what the model expects a user to take next,
        over all items. Shares of a user sum to 1, so that they are comparable among users, whatever their activity.
        Ties go to the first. `leave_out_seen`: users who have the item are left out, with "by_item" unless people take
        it again. The users are those of `histories`, in parts of pairs of a user and a history, by default those of the
        dataset; a user without an item that the model knows is left out. Raises `ArgumentError` for an unknown item,
        and `DataError` without users and for a model that only counts.
        """
        k, network = checked_k(k), self._require_network()
        (index,) = self.ids.indices([checked_item(item, "model.users_for(item)")]).tolist()
        if index == NO_ITEM:
            raise _unknown_item(item)
        left_out = are_left_out(self._left_out(checked_seen(leave_out_seen, default=True)), np.array([index]))[0]
        best, unknown = list[UserScore](), UnknownItems()
        shown = CandidateSet.of(network.item_vectors, None, NO_RULES, prior=self.prior)
        if histories is None:
            histories = self.users(with_times=self.reads_times, with_events=bool(network.kinds)).all()
        for part in histories:
            checked = checked_histories([history for _, history in part], "users_for")
            known = zip((user for user, _ in part), self._known(checked, unknown), strict=True)
            rows = [(user, row) for user, row in known if len(row) and not (left_out and index in row.seen)]
            for where in chunks(len(rows), BATCH):
                queries = self._queries([row for _, row in rows[where]], False)
                shares = log_shares(queries.hidden, network.item_vectors, index, adjust=shown.adjuster(queries))
                best += map(UserScore, (user for user, _ in rows[where]), shares.tolist())
                best = sorted(best, key=lambda one: -one.score)[:k]  # stable
        unknown.warn()
        return best

    def users(self, *, with_times: bool, with_events: bool, at: float | None = None) -> "UserHistories":
        """Return the reader of the histories of the dataset's users. Raises `DataError` if there is no dataset."""
        from bert4rec.serving.users import UserHistories  # imports Arrow

        if self.dataset is None:
            raise DataError(f"{self.no_users}; {NAME_DATASET}, or give histories")
        return UserHistories(self.dataset, self.ids, with_times=with_times, with_events=with_events, at=at)

    @property
    def reads_times(self) -> bool:
        """Return whether recommendations depend on the times of the items."""
        return self.require_histories().knows_times or self.hidden is not None

    @torch.no_grad()
    def encode(self, histories: Sequence[History]) -> Tensor:
        """Return the hidden states [B, d] after the histories; zeros for a history without a known item.

        Their products with vectors of items are the scores of the network alone, without the prior.
        """
        network, histories = self._require_network(), checked_histories(histories, "encode")
        width = network.embed_dim
        states = torch.zeros(len(histories), width)
        unknown = UnknownItems()
        known = self._known(histories, unknown)
        unknown.warn()
        rows = [row for row, history in enumerate(known) if len(history)]
        for batch in chunks(len(rows), BATCH):
            states[rows[batch]] = network.encode([known[row] for row in rows[batch]])[:, :width]
        return states

    def require_histories(self) -> Network | Counted:
        """Return the network. Raises `DataError` if the model cannot score histories."""
        if isinstance(self.network, ItemVectors):
            kinds = " or ".join(name for name, kind in KINDS.items() if kind.is_transformer)
            raise DataError(
                "this model is a matrix factorisation, which cannot score histories: it can be evaluated and finds "
                f"similar items, but does not recommend; train a model with model.kind = {kinds}"
            )
        return self.network

    def _require_network(self) -> Network:
        network = self.require_histories()
        if isinstance(network, Counted):
            raise _without_vectors(network)
        return network

    @property
    def items(self) -> Items:
        """Return all items, without their biases."""
        indices = range(len(self.ids))
        return Items(self.ids.of(indices), self.ids.titles_of(indices), self._vectors)

    @property
    def _scored(self) -> Tensor | TileScorer:
        return self.network if isinstance(self.network, Counted) else self.network.item_vectors

    @property
    def _vectors(self) -> Tensor:
        if isinstance(self.network, Counted):
            raise _without_vectors(self.network)
        return self.network.item_vectors[:, : self.network.embed_dim]

    @cached_property
    def _norms(self) -> Tensor:
        """Return the lengths [V, 1] of the vectors, as `torch.nn.functional.normalize` divides by them."""
        return self._vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)

    def _left_out(self, rule: SeenRule) -> LeavesOut:
        """Return which seen items are left out by the `rule`."""
        return ~self.ids.comes_again if rule == BY_ITEM else rule

    def _queries(self, histories: Sequence[KnownHistory], leaves_out: LeavesOut) -> Queries:
        """Return the queries for histories of at least one known item."""
        last = None
        if self.prior is not None:
            items, lengths = [history.items for history in histories], np.array([*map(len, histories)])
            last = torch.from_numpy(last_items(np.concatenate(items), lengths, self.prior.n_last))
        seen = [history.seen[are_left_out(leaves_out, history.seen)] for history in histories]
        return Queries(self.require_histories().encode(histories), seen, last)

    def _known(self, histories: Sequence[History], unknown: "UnknownItems") -> list[KnownHistory]:
        """Return the known items of each history, and count the other items in `unknown`."""
        network, known_histories = self.require_histories(), []
        self.ids.look_up(item for history in histories for item in items_of(history))
        for history in histories:
            known, indices = KnownHistory.of(
                history, self.ids, with_times=network.knows_times, kinds=network.kinds, hidden=self.hidden
            )
            unknown.count(items_of(history), indices)
            known_histories.append(known)
        return known_histories

    def _most_popular(self, k: int, hidden: Tensor | None, rules: Rules) -> Recommendations:
        """Return the `k` most popular items that are not hidden, by the rules."""
        is_hidden = None if hidden is None else hidden.numpy()
        indices = self.ids.most_popular(k if rules.groups is None else len(self.ids), is_hidden)
        if rules.groups is not None:
            indices = indices[is_within(rules.groups[indices][None], rules.at_most)[0]][:k]
        numbers, scores = indices.tolist(), self.ids.log_shares(indices).tolist()
        found = map(Recommendation, self.ids.of(numbers), self.ids.titles_of(numbers), scores)
        return Recommendations(found, fallback=self.ids.fallback)

    def _hidden(self, allow: Collection[Any] | None, deny: Collection[Any], rules: Rules) -> Tensor | None:
        """Return which items [V] are never recommended; None if all items may be."""
        denied = checked_items("deny", deny, "deny={}")
        allowed = None if allow is None else checked_items("allow", allow, "allow={}")
        always = None if self.ids.forgotten is None else torch.from_numpy(self.ids.forgotten)
        if rules.allowed is not None:
            excluded = ~torch.from_numpy(rules.allowed)
            always = excluded if always is None else always | excluded
        if allowed is None and not denied:
            return always
        hidden, unknown = torch.full((len(self.ids),), allowed is not None), UnknownItems("to allow or deny")
        for items, value in ((allowed or [], False), (denied, True)):
            indices = self.ids.indices(items)
            unknown.count(items, indices)
            hidden[torch.from_numpy(indices[indices != NO_ITEM])] = value
        unknown.warn()
        return hidden if always is None else hidden | always

    def _named(self, scores: Tensor, indices: Tensor) -> list[Recommendations]:
        flat = indices.flatten().tolist()
        named = list(map(Recommendation, self.ids.of(flat), self.ids.titles_of(flat), scores.flatten().tolist()))
        k = scores.shape[1]
        rows = (named[row * k : (row + 1) * k] for row in range(len(scores)))
        return [Recommendations(one for one in row if one.score > -torch.inf) for row in rows]


def _without_vectors(model: Counted) -> DataError:
    return DataError(f"{model.about} has no vectors, and no shares of an item; name the run of a trained model")


def _unknown_item(item: Any) -> ArgumentError:
    return ArgumentError(f"{item}: the model does not know this item; expected: an id as in the interactions")
