"""The kinds of baselines without training, by model.kind: each a scorer for the same ranking as any model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from bert4rec.config.abilities import POPULARITY
from bert4rec.dataset.reader import Dataset
from bert4rec.models.untrained.histories import TrainingHistories
from bert4rec.models.untrained.popularity import PopularityScorer, in_order, n_passes, recent_counts
from bert4rec.models.untrained.transition_scorer import TransitionScorer
from bert4rec.models.untrained.transitions import Transitions
from bert4rec.runtime.collectives import Partition

UntrainedScorer: TypeAlias = PopularityScorer | TransitionScorer


@dataclass(frozen=True, kw_only=True)
class Counting:
    """Hold the dataset and the settings of [model] for these kinds."""

    dataset: Dataset
    partition: Partition
    recent_share: float
    n_last_items: int
    decay: float
    smoothing: float

    def histories(self, between: Callable[[], None] = lambda: None) -> TrainingHistories:
        """Return what is counted, of which each part is read after a call of `between`."""
        return TrainingHistories(self.dataset, between)

    def n_parts(self, kind: str) -> int:
        """Return how often `between` is called while the scorer of `kind` is made."""
        histories = self.histories()
        passes = {POPULARITY: 0, "recent_popularity": n_passes(histories)}.get(kind, 1)
        return passes * histories.n_parts

    def scorer(self, kind: str, between: Callable[[], None]) -> UntrainedScorer:
        """Return the scorer of `kind`, when all is counted; `between` may raise."""
        return SCORERS[kind](self, between)


def _popularity(counting: Counting, between: Callable[[], None]) -> PopularityScorer:
    return PopularityScorer(counting.dataset.popularity, counting.partition)


def _recent_popularity(counting: Counting, between: Callable[[], None]) -> PopularityScorer:
    """Return recent popularity; ties are broken by overall popularity."""
    recent = recent_counts(counting.histories(between), counting.recent_share)
    return PopularityScorer(in_order(recent, counting.dataset.popularity), counting.partition)


def _markov(counting: Counting, between: Callable[[], None]) -> TransitionScorer:
    return _of_transitions(counting, between, n_last_items=1)


def _transition_graph(counting: Counting, between: Callable[[], None]) -> TransitionScorer:
    return _of_transitions(counting, between, n_last_items=counting.n_last_items)


def _of_transitions(counting: Counting, between: Callable[[], None], n_last_items: int) -> TransitionScorer:
    settings = {"decay": counting.decay}
    transitions = Transitions.count(counting.histories(between), reach=n_last_items, **settings)
    return TransitionScorer(
        transitions, counting.dataset.popularity, counting.partition, n_last_items=n_last_items,
        smoothing=counting.smoothing, **settings,
    )  # fmt: skip


SCORERS: dict[str, Callable[[Counting, Callable[[], None]], UntrainedScorer]] = {
    POPULARITY: _popularity,
    "recent_popularity": _recent_popularity,
    "markov": _markov,
    "transition_graph": _transition_graph,
}
