"""Evaluation of a model and its baselines on the held-out users of a dataset: ranks, lists and their metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import nn

from bert4rec.config.kinds import POPULARITY, RECENT_POPULARITY
from bert4rec.dataset.format import EVALUATED, LEFT_OUT, RATINGS, TEST, VALIDATION
from bert4rec.dataset.held_out import EvaluationSplit, HeldOut
from bert4rec.dataset.histories import TrainingPairs
from bert4rec.dataset.reader import Dataset
from bert4rec.evaluation import BEST_POSSIBLE
from bert4rec.evaluation.damage import without_damage
from bert4rec.evaluation.intervals import (
    COMPARED_AT,
    Ranking,
    about_intervals,
    strongest_baseline,
    untied_comparison,
)
from bert4rec.evaluation.metrics import MISSED, Lists
from bert4rec.evaluation.prior import PriorFit, PriorScorer, ZeroScorer
from bert4rec.evaluation.ranker import USERS_PER_PASS, Metrics, Ranker, repeated_targets, to_metrics
from bert4rec.evaluation.ratings import mean_errors, n_rating_batches, rating_errors
from bert4rec.evaluation.scorers import (
    EncodedScorer,
    KnownItems,
    KnownItemsScorer,
    ModelScorer,
    OrderlessScorer,
    Scorer,
)
from bert4rec.evaluation.seen_items import LeavesOut
from bert4rec.evaluation.slices import TargetFacts, slices, write_ranks
from bert4rec.feed.pairs import TEST_PAIRS, TRAINING_PAIRS, VALIDATION_PAIRS, PairExamples
from bert4rec.models.baselines import RECENT_SHARE, BaselineFactory, PopularityScorer, in_order, recent_counts
from bert4rec.models.prior import Prior
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.transitions import TrainingHistories
from bert4rec.runtime.arrays import Bools, Float64s, Int32s, Int64s, Integers
from bert4rec.runtime.collectives import Partition, gather_or_raise, on_rank_zero
from bert4rec.runtime.processes import Processes
from bert4rec.sharding.parallelize import unwrap

# On the test split.
POPULARITY_BASELINE, BASELINES = "popularity_baseline", "baselines"

# Of the figures of a prior.
MODEL_ALONE, PRIOR_METRICS = "model", (f"HR@{COMPARED_AT}", f"NDCG@{COMPARED_AT}")

N_USERS = 10  # of the examples

BatchCallback: TypeAlias = Callable[[], None]
"""Called between two batches of an evaluation, on all processes; it may raise."""


@dataclass(frozen=True)
class Example:
    """A `user` (dense id), its `history` and `target` (item ids), the target's `rank`, and the best `items` [k].

    `scores` [k] are the scores of the items, best first; k is smaller if fewer items are left.
    """

    user: int
    history: Int32s
    target: int
    rank: int
    items: Int32s
    scores: Float64s


@dataclass(frozen=True)
class Fallback:
    """The fallback for a user without a history: the `kind` of popularity that is better on the validation split.

    `ndcg` is the NDCG@10 of both kinds. `recent_counts` [n_items] are None if the kind is popularity.
    """

    ndcg: Mapping[str, float]
    recent_counts: Int64s | None

    @property
    def figures(self) -> dict[str, Any]:
        """Return the report's entry: the kind, and the metric of both kinds."""
        kind = POPULARITY if self.recent_counts is None else RECENT_POPULARITY
        return {"kind": kind, "metric": f"NDCG@{COMPARED_AT}", "validation": dict(self.ndcg)}


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Ranks the held-out targets of `dataset` by `protocols` on all processes of `world`, with the cut-offs `ks`.

    - `batch_size`: users per process and batch. The model reads the last `max_len` items of each and computes with
      `precision`.
    - `baselines`: the kinds without training, in addition to popularity, that are ranked on the test split; `counting`
      makes their scorers. `left_out` is a sentence that says why other baselines are not ranked.
    - `features`: the item features of the model without which its test is repeated; `features_not_tested` is a sentence
      that says why it is not.
    - `without_order`: the names of the rankings that are repeated with histories in random order, TEST or the kind of a
      baseline, and their kinds.
    - `leaves_out_seen`: which seen items the filter leaves out.
    - `pairs`: the parts of the pairs, if the loss learns ratings.
    - `known_items`: the items of the model's catalogue, if it differs from the dataset's.
    - `prior`: what is added to the model's scores; validation chooses its weights (`PriorFit`), with `prior_is_auto`
      none if it does not pay.
    - `prior_tested_up_to`: with up to so many scores, the test is repeated by the model and by each source alone.
    - `n_listed`: how many items of each test user's list of the model are kept.

    Every process makes the same calls.
    """

    dataset: Dataset
    world: Processes
    protocols: Sequence[str]
    ks: Sequence[int]
    batch_size: int
    max_len: int
    precision: str
    baselines: Sequence[str]
    counting: BaselineFactory
    leaves_out_seen: LeavesOut = True
    left_out: str = ""
    features: Sequence[str] = ()
    features_not_tested: str = ""
    without_order: Mapping[str, str] = field(default_factory=dict)
    pairs: Mapping[str, PairExamples] = field(default_factory=dict)
    known_items: KnownItems | None = None
    n_listed: int = 0
    prior: Prior | None = None
    prior_is_auto: bool = True
    prior_tested_up_to: int = 0

    def held_out(self) -> dict[str, Bools]:
        """Return for each split that is not empty whether its users [N] have seen their target before."""
        splits = [self.dataset.splits[name] for name in EVALUATED if len(self.dataset.splits[name])]
        for split in splits:
            split.load()
        parts = gather_or_raise(lambda: {split.name: repeated_targets(split, self._partition) for split in splits})
        return {split.name: np.concatenate([part[split.name] for part in parts]) for split in splits}

    def validation_metrics(self, model: nn.Module, between: BatchCallback) -> Metrics:
        """Return the validation metrics over the full catalogue, or of ratings; {} without validation data."""
        if self.pairs:
            held_out = self.pairs[VALIDATION_PAIRS]
            return {RATINGS: self._rating_errors(model, held_out, between)} if len(held_out) else {}
        split, model_scorer = self.dataset.splits[VALIDATION], self._model_scorer(unwrap(model))
        scorer = self._fit_prior(model_scorer, split, between) if self.prior else model_scorer
        return to_metrics(self._ranker(scorer, between).rank(split, ["full"]), self.ks)

    def ranks(
        self, model: nn.Module | Scorer, held_out: Mapping[str, Bools], between: BatchCallback
    ) -> dict[str, Ranking]:
        """Return the rankings by their names in the report.

        They are those of the model on each held-out split and, on the test split, of popularity, the baselines and, if
        the dataset has it, the best possible order.
        """
        scorer = self._scorer(model)
        ranks = {}
        for split in held_out:
            n_kept = self.n_listed if split == TEST else 0
            ranks[split] = self._rank(scorer, split, between, self._missed(split), n_kept=n_kept)
        if TEST in ranks:
            ranks[TEST] = self._with_orderless(TEST, ranks[TEST], scorer, between, self._missed(TEST))
            for kind, name in self._names.items():
                baseline = self.counting.scorer(kind, between)
                ranking = self._rank(baseline, TEST, between)
                ranks[name] = self._with_orderless(kind, ranking, baseline, between)
            if oracle := self.dataset.oracle_ranks():
                ranks[BEST_POSSIBLE] = Ranking({name: oracle[name] for name in self.protocols})
        return ranks

    def baselines_on(self, split: EvaluationSplit) -> dict[str, float]:
        """Return NDCG@10 of popularity and of the baselines, by kind, on the targets of `split`; {} without any."""
        if not len(split):
            return {}
        rankers = {kind: self._ranker(self.counting.scorer(kind, lambda: None)) for kind in self._names}
        metrics = {kind: to_metrics(ranker.rank(split, ["full"]), [COMPARED_AT]) for kind, ranker in rankers.items()}
        return {kind: found["full"][f"NDCG@{COMPARED_AT}"] for kind, found in metrics.items()}

    def fallback(self, between: BatchCallback) -> Fallback | None:
        """Return which popularity ranks the validation targets better in the full catalogue; ties go to popularity.

        Both have the order that `recommend` shows. None if that was not measured: without times or validation users, or
        if recent popularity is not among the baselines.
        """
        split, popularity = self.dataset.splits[VALIDATION], self.dataset.popularity
        if RECENT_POPULARITY not in self.baselines or not self.dataset.histories.has_times or not len(split):
            return None
        counts, ndcg = recent_counts(TrainingHistories(self.dataset, between), RECENT_SHARE), {}
        for kind, scores in ((POPULARITY, popularity), (RECENT_POPULARITY, in_order(counts, popularity))):
            ranker = self._ranker(PopularityScorer(scores, self.counting.partition), between)
            metrics = to_metrics(ranker.rank(split, ["full"]), [COMPARED_AT])
            ndcg[kind] = metrics["full"][f"NDCG@{COMPARED_AT}"]
        return Fallback(ndcg, counts if ndcg[RECENT_POPULARITY] > ndcg[POPULARITY] else None)

    def examples(self, model: nn.Module | Scorer, ranks: Mapping[str, Ranking]) -> list[Example]:
        """Return some users of the test split with their best items; [] without ranks in the full catalogue."""
        test_ranks = ranks[TEST].ranks if TEST in ranks else {}
        if "full" not in test_ranks:
            return []
        return examples(self._ranker(self._scorer(model)), self.dataset.splits[TEST], test_ranks["full"])

    def ratings(self, model: nn.Module | Scorer, between: BatchCallback) -> dict[str, float]:
        """Return the errors on the test pairs of the model and of mean ratings; {} without test pairs."""
        if not isinstance(model, nn.Module) or not self.pairs or not len(self.pairs[TEST_PAIRS]):
            return {}
        errors = self._rating_errors(model, self.pairs[TEST_PAIRS], between)
        n_trained = len(self.pairs[TRAINING_PAIRS])
        mean_rmse = on_rank_zero(lambda: mean_errors(TrainingPairs(self.dataset.histories), self.pairs, self.dataset))
        return errors | {"trained_pairs": n_trained} | mean_rmse

    def feature_differences(
        self, model: nn.Module | Scorer, ranks: Mapping[str, Ranking], between: BatchCallback
    ) -> dict[str, dict[str, Any]]:
        """Return for each of the `features` how much NDCG@10 the test loses without it; {} without a test.

        The keys are `difference` (positive: the feature helps), its 95 % `interval` and `p`, by `paired_difference`.
        """
        if not self.features or TEST not in ranks or not isinstance(model, nn.Module):
            return {}
        encoder = unwrap(model).item_table.features
        without, protocols = {}, [self._main_protocol]
        for name in self.features:
            with encoder.reader.without(name):
                without[name] = self._rank(self._scorer(model), TEST, between, self._missed(TEST), protocols)
        return on_rank_zero(
            lambda: {name: ranks[TEST].difference_from(ranking, protocols[0]) for name, ranking in without.items()}
        )

    def prior_figures(
        self, model: nn.Module | Scorer, ranks: Mapping[str, Ranking], between: BatchCallback
    ) -> dict[str, Any]:
        """Return the `weights` of the prior by source, {} for one that is left out, and what it gives; {} without one.

        If that is measured, there are also HR@10 and NDCG@10 on the test of the `model` alone and of each of the
        `sources` alone, and the `difference` in NDCG@10 of all together from the model alone, by `paired_difference`.
        """
        if not self.prior or not isinstance(model, nn.Module):
            return {}
        figures, protocol = {"weights": dict(self.prior.weights)}, self._main_protocol
        if not self._n_prior_rankings or TEST not in ranks or not (ranks[TEST].ranks[protocol] != LEFT_OUT).any():
            return figures
        scorers = {MODEL_ALONE: self._with_known_items(self._model_scorer(unwrap(model)))}
        for name in self.prior.weights:
            nothing = self._with_known_items(ZeroScorer(self.dataset.n_items, self.prior.partition, self.world.device))
            scorers[name] = PriorScorer(nothing, self.prior.only(name), self.known_items)
        missed = self._missed(TEST)
        alone = {name: self._rank(scorer, TEST, between, missed, [protocol]) for name, scorer in scorers.items()}

        def measured() -> dict[str, Any]:
            difference = ranks[TEST].difference_from(alone[MODEL_ALONE], protocol)
            metrics = {name: ranking.metrics([COMPARED_AT])[protocol] for name, ranking in alone.items()}
            sources = {name: {key: values[key] for key in PRIOR_METRICS} for name, values in metrics.items()}
            return {MODEL_ALONE: sources.pop(MODEL_ALONE), "sources": sources, "difference": difference}

        return figures | on_rank_zero(measured)

    def n_batches(self, held_out: Mapping[str, Bools]) -> int:
        """Return the number of calls of `between` in `ranks`, `feature_differences`, `prior_figures` and `ratings`."""
        # All scorers have as many batches; this one counts nothing.
        ranker = self._ranker(PopularityScorer(self.dataset.popularity, self.counting.partition))
        kinds = list(self._names) if TEST in held_out else []
        ranked = [*held_out, *(TEST for _ in kinds)]
        n_ranked = sum(ranker.n_batches(len(self.dataset.splits[split]), self.protocols) for split in ranked)
        n_rated = n_rating_batches(self.pairs[TEST_PAIRS], self._partition) if self.pairs else 0
        n_without = ranker.n_batches(len(self.dataset.splits[TEST]), [self._main_protocol]) if TEST in held_out else 0
        n_counted = sum(map(self.counting.n_parts, kinds))
        n_repeated = len(self.features) + len(self.without_order) + self._n_prior_rankings
        return n_ranked + n_rated + n_counted + n_repeated * n_without

    def results(self, ranks: Mapping[str, Ranking], held_out: Mapping[str, Bools]) -> dict[str, Any]:
        """Return the report's `intervals`, `slices` and metrics of all `ranks`, on all processes.

        The results of the baselines are grouped in one entry.
        """
        return on_rank_zero(lambda: self._results(ranks, held_out))

    def write_ranks(self, folder: Path, ranks: Mapping[str, Ranking], held_out: Mapping[str, Bools]) -> None:
        """Write the model's ranks of each held-out split as files in `folder`. Raises `OSError`."""
        model_ranks = {split: ranks[split].ranks for split in held_out}
        facts = {split: TargetFacts.of(self.dataset, split, repeated) for split, repeated in held_out.items()}
        write_ranks(folder, self.dataset, model_ranks, facts)

    def _results(self, ranks: Mapping[str, Ranking], held_out: Mapping[str, Bools]) -> dict[str, Any]:
        results = self._nested({name: ranking.metrics(self.ks) for name, ranking in ranks.items()})
        if ranks:
            intervals = self._nested({name: ranking.intervals(self.ks) for name, ranking in ranks.items()})
            baselines = {kind: ranks[name] for kind, name in self._names.items() if name in ranks}
            if TEST in ranks and (comparison := strongest_baseline(ranks[TEST], baselines)):
                results["strongest_baseline"] = comparison
                is_compared = np.ones(len(self.dataset.splits[TEST]), bool)
                if untied := self._untied(ranks[TEST], baselines):
                    results["untied"], is_compared = untied, ~np.asarray(self._test.are_tied)
                if without := without_damage(self.dataset, ranks[TEST], baselines, is_compared):
                    results["without"] = without
            results["intervals"] = {**about_intervals(), **intervals}
        if order := self._losses_without_order(ranks):
            results["order"] = order
        if TEST in ranks and "full" in ranks[TEST].ranks:
            facts = TargetFacts.of(self.dataset, TEST, held_out[TEST])
            if (copies := self._test.copies) is not None:
                facts, results["answers_in_input"] = facts._replace(copies=copies), copies.counts
            ranks_by_kind = {kind: ranks[name].ranks["full"] for kind, name in self._names.items() if name in ranks}
            results["slices"] = {TEST: slices(facts, ranks[TEST].ranks["full"], self.dataset.popularity, ranks_by_kind)}
        return results

    def _with_orderless(
        self, name: str, ranking: Ranking, scorer: Scorer, between: BatchCallback, missed: Bools | None = None
    ) -> Ranking:
        """Return the `ranking` of the test by `scorer` with the one without order, if `name` is in `without_order`."""
        if name not in self.without_order:
            return ranking
        orderless = self._rank(OrderlessScorer(scorer), TEST, between, missed, [self._main_protocol])
        return replace(ranking, orderless=orderless)

    def _losses_without_order(self, ranks: Mapping[str, Ranking]) -> dict[str, dict[str, Any]]:
        """Return how much NDCG@10 each kind that was repeated loses without order, as `feature_differences` does."""
        protocol = self._main_protocol
        return {
            self.without_order[name]: ranking.difference_from(ranking.orderless, protocol)
            for name, ranking in ranks.items()
            if ranking.orderless and (ranking.ranks[protocol] != LEFT_OUT).any()
        }

    def _untied(self, model: Ranking, baselines: Mapping[str, Ranking]) -> dict[str, Any]:
        """Return the comparison without users whose test target only the file orders; {} if they are few or none."""
        is_tied = self._test.are_tied
        if is_tied is None or self.dataset.metadata["preprocessing"].get("ties", "file") != "file":
            return {}
        return untied_comparison(model, baselines, is_tied)

    @property
    def again(self) -> Bools | None:
        """Return which items [n_items] stay in lists although they are seen; None if all or none do."""
        return None if isinstance(self.leaves_out_seen, bool) else ~self.leaves_out_seen

    @property
    def _test(self) -> EvaluationSplit | HeldOut:
        """Return the test split, on rank zero."""
        return self.dataset.splits[TEST].everything

    @property
    def _main_protocol(self) -> str:
        return "full" if "full" in self.protocols else self.protocols[0]

    @property
    def _names(self) -> dict[str, str]:
        """Return the kinds without training that are ranked on the test split, and their names in the report."""
        return {POPULARITY: POPULARITY_BASELINE} | {kind: kind for kind in self.baselines}

    def _nested(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Return `figures` with those of the baselines moved into one entry."""
        baselines = {kind: figures[kind] for kind in self.baselines if kind in figures}
        rest = {name: value for name, value in figures.items() if name not in baselines}
        return rest | ({BASELINES: baselines} if baselines else {})

    def _scorer(self, model: nn.Module | Scorer) -> Scorer:
        """Return a scorer with the model's current weights."""
        if not isinstance(model, nn.Module):
            return model
        scorer = self._with_known_items(self._model_scorer(unwrap(model)))
        return PriorScorer(scorer, self.prior, self.known_items) if self.prior and self.prior.weights else scorer

    def _with_known_items(self, scorer: Scorer) -> Scorer:
        return KnownItemsScorer(scorer, self.known_items) if self.known_items else scorer

    @property
    def _n_prior_rankings(self) -> int:
        """Return how often the test is repeated for the prior: by the model and by each source alone; 0 if too often.

        A prior that is left out has no such rankings.
        """
        n = 1 + len(self.prior.weights) if self.prior and self.prior.weights else 0
        return n if n * len(self.dataset.splits[TEST]) * self.dataset.n_items <= self.prior_tested_up_to else 0

    def _model_scorer(self, model: RankingModel) -> ModelScorer:
        return ModelScorer(model, device=self.world.device, max_len=self.max_len, precision=self.precision)

    def _fit_prior(self, scorer: ModelScorer, split: EvaluationSplit, between: BatchCallback) -> Scorer:
        """Choose the weights of the prior for a model, and return the scorer of both together."""
        encoded: Scorer = scorer
        if len(split) <= USERS_PER_PASS:  # else their vectors take too much memory, and choosing has few of the users
            encoded = EncodedScorer(scorer, split, batch_size=self.batch_size, between=between)
        self._prior_fit.fit(encoded, self._ranker(encoded, between))
        assert self.prior is not None, "there is a prior to fit"
        return PriorScorer(encoded, self.prior) if self.prior.weights else encoded

    @cached_property
    def _prior_fit(self) -> PriorFit:
        assert self.prior is not None, "there is a prior to fit"
        return PriorFit(
            self.prior, self.dataset.splits[VALIDATION], batch_size=self.batch_size,
            leaves_out_seen=self.leaves_out_seen, is_auto=self.prior_is_auto,
        )  # fmt: skip

    def _missed(self, split: str) -> Bools | None:
        """Return for each row [N] of a split whether the model cannot rank the target; None if it knows all items."""
        return self.known_items.unknown(self.dataset.splits[split]).missed if self.known_items else None

    def _rating_errors(self, model: nn.Module, pairs: PairExamples, between: BatchCallback) -> dict[str, float]:
        return rating_errors(unwrap(model), pairs, self._partition, self.world.device, between)

    @property
    def _partition(self) -> Partition:
        return Partition(self.world.rank, self.world.world_size)

    def _rank(
        self, scorer: Scorer, split: str, between: BatchCallback, missed: Bools | None = None,
        protocols: Sequence[str] = (), *, n_kept: int = 0,
    ) -> Ranking:  # fmt: skip
        rows, lists, protocols = self.dataset.splits[split], None, protocols or self.protocols
        if "full" in protocols:
            popularity = self.dataset.popularity
            lists = Lists(len(rows), self.ks, popularity, scorer.partition, missed=missed, n_kept=n_kept)
        ranks = self._ranker(scorer, between).rank(rows, protocols, lists)
        if missed is not None:
            for values in ranks.values():
                values[missed & (values != LEFT_OUT)] = MISSED
        return Ranking(ranks, lists, users=rows.users_of_several)

    def _ranker(self, scorer: Scorer, between: BatchCallback = lambda: None) -> Ranker:
        return Ranker(
            scorer, batch_size=self.batch_size, device=self.world.device, leaves_out_seen=self.leaves_out_seen,
            between=between,
        )  # fmt: skip


def evenly_ranked_rows(ranks: Integers, n: int = N_USERS) -> Int64s:
    """Return the rows of `n` users: the middle one of each n-th part, from the best rank to the worst.

    Hits and misses thus have the same proportion as among all users.

    >>> evenly_ranked_rows(np.array([7, 1, 4, 2, 9, 3]), 3)
    array([3, 2, 4])
    """
    order = np.lexsort((ranks, ranks == MISSED))  # stable
    n = min(n, len(ranks))
    return order[(2 * np.arange(n) + 1) * len(ranks) // (2 * n)]


def examples(ranker: Ranker, split: EvaluationSplit, ranks: Integers, *, k: int = 10) -> list[Example]:
    """Return some users of `split`, evenly chosen by the `ranks` of their targets, and their `k` best items.

    Ties go to the lower id. Every process makes the same calls.
    """
    indices = evenly_ranked_rows(ranks)
    rows = split.read(indices)
    assert rows.targets is not None, "an evaluation split has targets"
    best = ranker.best(split, indices, k)
    scores, ids = best.scores.double().cpu().numpy(), best.indices.cpu().numpy().astype(np.int32)
    histories = np.split(rows.items, rows.lengths.cumsum()[:-1])
    return [
        Example(user, history, target, rank, items[np.isfinite(item_scores)], item_scores[np.isfinite(item_scores)])
        for user, history, target, rank, items, item_scores in zip(
            split.users_at(indices).tolist(), histories, rows.targets.tolist(), ranks[indices].tolist(), ids, scores,
            strict=True,
        )
    ]  # fmt: skip
