"""What a model makes of the users that a dataset holds out: their ranks, and the metrics of these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import nn

from bert4rec.config.abilities import POPULARITY
from bert4rec.dataset.reader import Dataset
from bert4rec.dataset.schema import TEST, VALIDATION
from bert4rec.evaluation.ranker import HeldOut, Metrics, Ranker, Ranks, to_metrics, with_unseen
from bert4rec.evaluation.scorers import ModelScorer, Scorer
from bert4rec.models.untrained.kinds import Counting
from bert4rec.runtime.collectives import on_rank_zero
from bert4rec.runtime.processes import Processes
from bert4rec.sharding.parallelize import unwrap

EVALUATED = (VALIDATION, TEST)
# On the test split.
POPULARITY_BASELINE, BASELINES, BEST_POSSIBLE = "popularity_baseline", "baselines", "best_possible"

Between: TypeAlias = Callable[[], None]
"""Called between two batches of an evaluation, on all processes; it may raise."""


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Ranks by `protocols` what `dataset` holds out, on all processes of `world`; metrics at the cut-offs `ks`.

    `batch_size` counts the users of a process and batch; the model sees the last `max_len` items of each, and computes
    with `precision`. `baselines` are the kinds without training, beside popularity, that are ranked on the test split,
    by what `counting` tells. Every process makes the same calls.
    """

    dataset: Dataset
    world: Processes
    protocols: Sequence[str]
    ks: Sequence[int]
    batch_size: int
    max_len: int
    precision: str
    baselines: Sequence[str]
    counting: Counting

    def held_out(self) -> dict[str, HeldOut]:
        """Of each split that holds somebody out, what is known of its users."""
        splits = [self.dataset.splits[name] for name in EVALUATED if len(self.dataset.splits[name])]
        return on_rank_zero(lambda: {split.name: HeldOut.of(split) for split in splits})

    def validation_metrics(self, model: nn.Module, between: Between) -> Metrics:
        """Over the full catalogue, of the model as it is; {} where there is nobody to validate on."""
        return to_metrics(self._rank(self._scorer(model), VALIDATION, ["full"], between), self.ks)

    def ranks(self, model: nn.Module | Scorer, held_out: Mapping[str, HeldOut], between: Between) -> dict[str, Ranks]:
        """By the name that the report has for them: of the model on each split that holds somebody out, of popularity,
        the baselines and, where the dataset knows it, of the best possible on the test split.
        """
        scorer = self._scorer(model)
        ranks = {split: self._rank(scorer, split, self.protocols, between) for split in held_out}
        if TEST in ranks:
            for kind in (POPULARITY, *self.baselines):
                baseline = self.counting.scorer(kind, between)
                name = POPULARITY_BASELINE if kind == POPULARITY else kind
                ranks[name] = self._rank(baseline, TEST, self.protocols, between)
            if oracle := self.dataset.oracle_ranks():
                ranks[BEST_POSSIBLE] = {name: oracle[name] for name in self.protocols}
        return ranks

    def n_batches(self, model: nn.Module | Scorer, held_out: Mapping[str, HeldOut]) -> int:
        """How often `between` is called in `ranks`."""
        ranker = self._ranker(self._scorer(model))
        kinds = [POPULARITY, *self.baselines] if TEST in held_out else []
        ranked = [*held_out, *(TEST for _ in kinds)]
        n_ranked = sum(ranker.n_batches(len(self.dataset.splits[split]), self.protocols) for split in ranked)
        return n_ranked + sum(map(self.counting.n_parts, kinds))

    def metrics(self, ranks: Mapping[str, Ranks], held_out: Mapping[str, HeldOut]) -> dict[str, Any]:
        """Of all `ranks`, as the report has them: by the same names, those of the baselines together."""
        splits = {name: name if name in EVALUATED else TEST for name in ranks}
        metrics = {
            name: to_metrics(with_unseen(of_name, held_out[splits[name]].repeated), self.ks)
            for name, of_name in ranks.items()
        }
        baselines = {kind: metrics.pop(kind) for kind in self.baselines if kind in metrics}
        return metrics | ({BASELINES: baselines} if baselines else {})

    def _scorer(self, model: nn.Module | Scorer) -> Scorer:
        """The model as it is now."""
        if not isinstance(model, nn.Module):
            return model
        return ModelScorer(unwrap(model), device=self.world.device, max_len=self.max_len, precision=self.precision)

    def _rank(self, scorer: Scorer, split: str, protocols: Sequence[str], between: Between) -> Ranks:
        return self._ranker(scorer, between).rank(self.dataset.splits[split], protocols)

    def _ranker(self, scorer: Scorer, between: Between = lambda: None) -> Ranker:
        return Ranker(scorer, batch_size=self.batch_size, device=self.world.device, between=between)
