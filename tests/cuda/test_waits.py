"""The host waits for a GPU at few places, and all of them are listed here."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.cuda.waits import WARM_STEPS, places, waits

pytestmark = pytest.mark.cuda

# Place → the most waits in one step, report, save or evaluation. A new place here is a decision: say in the commit why
# it cannot be avoided. Where the host waits inside TorchRec, the place has the function of TorchRec too.
STEP: dict[str, int] = {}
# TorchRec's exchange of ids, in a stream of its own, which waits for the batch and not for the step before.
EXCHANGE = {
    "models/tables.py:IdExchange._start > KJTAllToAllSplitsAwaitable.__init__": 2,  # numbers of ids, to the device
    "models/tables.py:IdExchange._start > KJTAllToAllSplitsAwaitable.__init__.<locals>.<listcomp>": 4,
    "models/tables.py:IdExchange._start > _cuda_to_cpu_safe": 4,  # ids for each process
    "models/tables.py:_Open.send > _cuda_to_cpu_safe": 4,  # ids from each process
    "models/tables.py:_Open.send > _get_recat": 1,
    "models/tables.py:IdExchange._receive > _cuda_to_cpu_safe": 2,
    "models/tables.py:IdExchange.look_up > _cuda_to_cpu_safe": 6,  # the first one of an epoch
    "models/tables.py:IdExchange.look_up > _get_recat": 1,
}
GROUPS = {"runtime/collectives.py:Partition.counts": 2}  # of the gradients between the groups: one there, one back
REPORT = {"training/trainer.py:Meter.read_loss": 1}
SAVE = {"checkpoint/store.py:Copies.of": 1, "sharding/optimizer.py:are_finite": 1}
# For each pass over all users, here a single one; no wait for a batch, a tile or a group of users. `Twins.among` waits
# once for each lookup of 65,536 items, so that tiles without items that tie with targets take no time.
EVALUATION = {
    "evaluation/ranker.py:Ranker._encode": 1,
    "evaluation/ranker.py:Ranker._stream": 2,
    "evaluation/tiles.py:Twins.among": 1,
    "evaluation/ranker.py:Ranker.rank": 1,
}
BESIDE = "checkpoint/store.py:_write_shards"  # by a thread of its own, at any time
SAMPLED = {"training.loss": "sampled_softmax", "training.n_train_negatives": 64}
SOFTMAX = {"training.loss": "softmax"}
STEPS = {"training.n_epochs": 3, "training.eval_every_n_epochs": 1}
# In a validation with a prior, some of these once for each batch or part of the users.
WITH_PRIOR = EVALUATION.keys() | {
    "evaluation/scorers.py:EncodedScorer.__init__",
    "evaluation/scorers.py:EncodedScorer.encode",
    "evaluation/scorers.py:ModelScorer.score_pairs",
    "evaluation/prior.py:_ids_of",
    "evaluation/prior.py:last_of",
    "evaluation/prior.py:PriorFit._lists",
    "evaluation/prior.py:PriorFit._features",
    "evaluation/prior.py:PriorFit._source_scores",
    "evaluation/prior.py:PriorScorer.encode",
    "models/prior.py:Source.add",
    "models/prior.py:Source.reached",  # once a run
}
BETWEEN = {  # where the processes share its lists and scores
    "evaluation/top_k.py:TopK.merge_share", "runtime/collectives.py:Partition.exchange",
    "runtime/collectives.py:Partition.counts",
}  # fmt: skip
AUTO = {"model.prior": "auto"}


@pytest.mark.parametrize(
    ("n", "changes", "budget"),
    [
        (1, SOFTMAX, STEP),
        (1, SAMPLED | {"model.kind": "sasrec"}, STEP),
        (2, SOFTMAX, STEP | EXCHANGE),
        (2, SAMPLED | {"training.average_age": 0.1}, STEP | EXCHANGE),
        (2, SOFTMAX | {"parallelism.mode": "ddp"}, STEP),
        (4, SAMPLED | {"parallelism.sharding_group_size": 2}, STEP | EXCHANGE | GROUPS),
        (1, SOFTMAX | AUTO, STEP),
        (2, SAMPLED | AUTO, STEP | EXCHANGE),
    ],
)
def test_nothing_waits_for_a_gpu_but_these_places(
    train_together: Callable[..., list[dict[str, Any]]], n: int, changes: dict[str, Any], budget: dict[str, int]
) -> None:
    batch = {
        "training.per_device_train_batch_size": 48 // n,
        "evaluation.per_device_eval_batch_size": 8,
        "model.prior": "none",
    }
    for rank, seen in enumerate(train_together(n, counts_waits=True, **STEPS | batch | changes)):
        for part, first, allowed in (
            ("step", WARM_STEPS, budget), ("report", 0, REPORT), ("save", 0, SAVE), ("evaluation", 0, EVALUATION),
        ):  # fmt: skip
            counted = places(seen["waits"][part], first)
            # In an evaluation, each batch of users and each lookup of items exchanges ids.
            ignored = {BESIDE} | (EXCHANGE.keys() if part == "evaluation" else set())
            found = {place: n_waits for place, n_waits in counted.items() if place not in ignored}
            if part == "evaluation" and changes.get("model.prior") == "auto":
                assert found.keys() == WITH_PRIOR | (BETWEEN if n > 1 else set()), f"rank {rank}: other places wait"
                continue
            assert found == allowed, f"rank {rank}: the waits of a {part} are not those of the budget"


def test_a_wait_is_found_and_its_place() -> None:
    with waits() as found:
        values = torch.ones(4, device="cuda")
        values.masked_fill_(values > 2, 0)
        values.sum()
        assert not found
        values.nonzero()
        values.tolist()
        torch.cuda.current_stream().synchronize()
    assert sum(found.values()) == 3
