"""The kinds without training: each counts what its name says."""

from typing import get_args

import numpy as np
import torch

from bert4rec.config.abilities import UNTRAINED
from bert4rec.config.tables import COUNTING, Evaluation, Model
from bert4rec.models.kinds import KINDS
from bert4rec.models.untrained.kinds import SCORERS, Counting
from bert4rec.runtime.collectives import Partition
from tests.models.untrained.test_transition_scorer import rows_of
from tests.models.untrained.windows import dataset_of


def test_every_kind_is_known_everywhere() -> None:
    assert [*SCORERS] == [*UNTRAINED]
    assert {*get_args(Model.model_fields["kind"].annotation)} >= {*KINDS, *UNTRAINED}
    _, listed = get_args(Evaluation.model_fields["baselines"].annotation)
    assert list(get_args(*get_args(listed))) == [*UNTRAINED]
    assert Model().counting.keys() == COUNTING


def test_what_each_kind_finds_best() -> None:
    """After 0, 0 comes most often of all, 3 most often of late, 1 directly, and 2 counts all that is near."""
    histories = [[0, 0, 0, 0, 2, 2, 3], [0, 1, 2, 2, 3], [0, 1, 2, 2, 3]]
    counting = Counting(
        dataset=dataset_of(histories, n_items=5), partition=Partition(), recent_share=0.1, n_last_items=4, decay=0.9,
        smoothing=0.1,
    )  # fmt: skip
    calls: list[str] = []
    found = {}
    for kind in UNTRAINED:
        scorer = counting.scorer(kind, lambda kind=kind: calls.append(kind))
        users, _ = scorer.encode(rows_of([4, 0]), torch.tensor([[2]]))
        scores = scorer.scores(users, scorer.items(torch.arange(2, 7)))[0]
        scores[0] = 0 if kind not in ("popularity", "recent_popularity") else scores[0]
        found[kind] = int(scores.argmax())
    assert found == {"popularity": 0, "recent_popularity": 3, "markov": 1, "transition_graph": 2}
    assert [calls.count(kind) for kind in UNTRAINED] == [counting.n_parts(kind) for kind in UNTRAINED] == [0, 1, 1, 1]


def test_of_equally_recent_items_the_more_popular_one_is_first() -> None:
    counting = Counting(
        dataset=dataset_of([[0, 0, 1], [2], [0, 2, 2, 1]], n_items=4), partition=Partition(), recent_share=0.1,
        n_last_items=1, decay=1.0, smoothing=1.0,
    )  # fmt: skip
    scorer = counting.scorer("recent_popularity", lambda: None)
    np.testing.assert_array_equal(scorer.items(torch.arange(2, 6)), [1, 3, 2, 0])
