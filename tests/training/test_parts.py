"""The parts of a training: what is built of the settings; decisions, loss and speed, state; what is left unchanged."""

import logging
import math
import os
import random
import signal
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist

from bert4rec.checkpoint import contents, store
from bert4rec.config.load import load_config
from bert4rec.config.resolve import Facts, resolve
from bert4rec.dataset.reader import Dataset, Sizes, open_dataset
from bert4rec.models.sequence_model import Bert4Rec
from bert4rec.runtime import collectives
from bert4rec.runtime.collectives import Decision, StepSync
from bert4rec.runtime.console import quiet_libraries
from bert4rec.runtime.errors import DivergenceError
from bert4rec.runtime.processes import Processes, preserve_global_state, process_group, seed_everything, this_process
from bert4rec.runtime.signals import Interruption
from bert4rec.sharding.footprint import Job
from bert4rec.training import build
from bert4rec.training.build import choose_baselines, job, sampler
from bert4rec.training.run import run
from bert4rec.training.state import State, Stopwatch
from bert4rec.training.trainer import WARM_STEPS, Meter
from tests.conftest import leave_group
from tests.fixture_types import Patch, Settings
from tests.runs import Make

WORLD = Processes(rank=1, local_rank=1, world_size=6, local_world_size=3, device=torch.device("cpu"))


def test_a_job_to_the_last_field() -> None:
    changes = {
        "model.embed_dim": 8, "model.n_layers": 3, "model.max_len": 20,
        "training.loss": "gbce", "training.n_train_negatives": 7, "training.negatives_shared_by": 2,
        "training.optimizer": "sgd", "training.average_age": 0.1, "model.positions": "rotary",
        "model.input_norm": True, "model.times": "history",
        "training.per_device_train_batch_size": 5, "training.mask_prob": 0.3, "parallelism.sharding_type": "table_wise",
    }  # fmt: skip
    config = resolve(load_config(None, changes), "cpu", Facts(98))
    expected = Job(
        kind="bert4rec",
        model={
            "n_items": 98, "embed_dim": 8, "n_heads": 2, "n_layers": 3, "ffn_dim": 256, "max_len": 20, "dropout": 0.1,
            "positions": "rotary", "input_norm": True, "times": "history", "head": "tied",
        },
        mode="dmp", device_type="cpu", world_size=6, local_world_size=3, sparse_optimizer="rowwise_adagrad",
        optimizer="sgd", batch_size=5, mask_prob=0.3, loss="gbce", n_train_negatives=7, negatives_shared_by=2,
        sharding_type="table_wise", compute_kernel="fused", averages=True,
    )  # fmt: skip
    assert job(config, Sizes(items=98), device_type="cpu", world_size=6, local_world_size=3) == expected


@pytest.mark.parametrize(("power", "are_unlike"), [(0.0, True), (1.0, False)])
def test_negatives(small_config: Settings, small_dataset: Dataset, power: float, are_unlike: bool) -> None:
    n_items = small_dataset.n_items
    assert sampler(small_config(**{"training.loss": "softmax"}), small_dataset, WORLD) is None
    sampled = {"training.loss": "gbce", "training.n_train_negatives": n_items, "training.negatives_power": power}
    ids = sampler(small_config(**sampled), small_dataset, WORLD).draw(0).ids
    assert len(ids) == n_items
    assert (sorted(ids.tolist()) == list(range(n_items))) == are_unlike


@pytest.mark.parametrize(("shared_by", "groups"), [("all", [0, 0, 0, 0]), (1, [0, 1, 2, 3]), (2, [0, 0, 1, 1])])
def test_processes_share_a_draw(
    small_config: Settings, small_dataset: Dataset, shared_by: int | str, groups: list[int]
) -> None:
    def draws(rank: int, shared_by: int | str) -> list[tuple[int, ...]]:
        changes = {"training.loss": "gbce", "training.n_train_negatives": 20, "training.negatives_shared_by": shared_by}
        drawing = sampler(small_config(**changes), small_dataset, replace(WORLD, rank=rank, world_size=4))
        return [tuple(drawing.draw(step).ids.tolist()) for step in range(3)]

    rank_draws = [draws(rank, shared_by) for rank in range(4)]
    assert [rank_draws.index(drawn) for drawn in rank_draws] == [groups.index(group) for group in groups]
    assert rank_draws[0] == draws(0, "all")
    assert len({drawn for steps in rank_draws for drawn in steps}) == 3 * len(set(groups))


def test_all_baselines_unless_chosen_or_slow(small_config: Settings, small_folder: Path, monkeypatch: Patch) -> None:
    dataset, others = open_dataset(small_folder), ["recent_popularity", "markov", "transition_graph", "ease"]
    chosen = {"evaluation.baselines": ["transition_graph", "popularity", "markov"]}
    cases = [
        ({}, others), (chosen, ["markov", "transition_graph"]), ({"evaluation.baselines": []}, []),
        ({"model.kind": "markov"}, []),
    ]  # fmt: skip
    for changes, expected in cases:
        assert choose_baselines(small_config(**changes), dataset) == (expected, "")
    assert "popularity" not in vars(dataset)  # each process would hold the counts for the whole training
    n_positions = dataset.metadata["train_positions"]
    assert n_positions == dataset.popularity.sum()
    limits = {"ALL_BASELINES_UP_TO": n_positions, "ALL_BASELINES_UP_TO_SCORES": 60 * dataset.n_items}
    for name, limit in limits.items():
        monkeypatch.setattr(build, name, limit)
        assert choose_baselines(small_config(), dataset) == (others, "")
        monkeypatch.setattr(build, name, limit - 1)
        none, why = choose_baselines(small_config(), dataset)
        assert (none, "evaluation.baselines" in why) == ([], True)
        assert choose_baselines(small_config(**chosen), dataset)[0] == ["markov", "transition_graph"]
        monkeypatch.undo()


def test_the_windows_of_the_training_are_built_once(small_dataset: Dataset, small_config: Settings) -> None:
    config = small_config()
    windows = build.training_windows(config, small_dataset)
    assert build.training_windows(config, small_dataset) is windows
    assert small_dataset.windows(max_len=2, step=1) is not windows


def decided(few: int) -> Decision:
    """Return the decision after the ranks have started it one after another; more than `few` gather in rounds."""
    with patch.object(collectives, "DIRECT_PROCESSES", few):
        rank, consensus = dist.get_rank(), StepSync(Interruption())
        for turn in range(dist.get_world_size()):
            if turn == rank:
                consensus.start(rank, count=5 - rank, report=rank == 0, out_of_time=rank == 1)
            dist.barrier()  # a rank that waited for the other ranks would not get here
        return consensus.wait()


def signalled_in_an_evaluation() -> tuple[list[int], Decision]:
    """Return the signals at three pauses, and the decision; two ranks get a signal before the second pause."""
    interruption = Interruption()
    consensus = StepSync(interruption)
    first = consensus.interrupted()
    interruption.number = (0, signal.SIGTERM, signal.SIGINT)[dist.get_rank()]
    return [first, consensus.interrupted(), consensus.interrupted()], consensus.wait()


@pytest.mark.usefixtures("group_of_one")
def test_a_decision_answers_one_question_and_a_signal_the_next_one() -> None:
    interruption = Interruption()
    consensus = StepSync(interruption)
    consensus.start(1, count=4, report=True, save=True)
    interruption.number = signal.SIGTERM  # too late for this question
    assert consensus.wait() == Decision(positions=1, report=True, save=True, counts=(4,))
    assert consensus.wait() == Decision()  # to no question
    assert not interruption._answered.is_set()
    consensus.start(out_of_time=True)
    assert interruption._answered.is_set()  # at once: the step that follows may take longer than the patience
    assert consensus.wait() == Decision(out_of_time=True, interrupted=signal.SIGTERM)


@pytest.mark.parametrize("few", [32, 1], ids=["each to each", "in rounds"])
def test_what_one_process_says_holds_for_all_and_none_waits_to_say_it(pools: Any, few: int) -> None:
    decision = Decision(positions=0 + 1 + 2, report=True, out_of_time=True, counts=(5, 4, 3))
    assert pools(3).run(decided, few) == [decision] * 3


def test_in_an_evaluation_signals_come_with_the_next_batch_and_the_first_of_several_counts(pools: Any) -> None:
    expected = ([0, 0, signal.SIGINT], Decision())
    assert pools(3).run(signalled_in_an_evaluation) == [expected] * 3


def test_the_meter(group_of_one: None) -> None:
    """The loss is the mean over the positions since it was last read; the first steps do not count for the speed."""
    meter = Meter(torch.device("cpu"))
    for loss, n_positions in ((6.0, 2), (3.0, 4)):
        meter.add(torch.tensor(loss, requires_grad=True), n_positions, 1, 0.1)
    assert (meter.unread_positions, meter.read_loss(), meter.unread_positions) == (6, 1.5, 0)
    for _ in range(WARM_STEPS - 2):
        meter.add(torch.tensor(7.0), 2, 1000, 100.0)
    assert (meter.read_loss(), meter.rate) == (3.5, 0)
    for loss, n_sequences, seconds in ((math.nan, 16, 0.5), (math.inf, 8, 1.0)):
        meter.add(torch.tensor(loss), 1, n_sequences, seconds)
        with pytest.raises(DivergenceError, match=f"{loss}"):
            meter.read_loss()
    assert meter.rate == 16


def test_the_best_is_remembered_and_the_others_are_counted() -> None:
    state, without_patience = State(step=10), State(best_ndcg=1.0)
    for step, ndcg in ((10, 0.1), (20, 0.3), (30, 0.3), (40, 0.2)):  # as good as the best is not better
        state.step = step
        state.note_validation(ndcg, step / 10, patience=3)
    assert (state.best_step, state.best_epoch, state.best_ndcg, state.n_worse) == (20, 2.0, 0.3, 2)
    assert state.stopped_by == ""
    state.note_validation(0.0, 5.0, patience=3)
    assert state.stopped_by == "patience"
    for _ in range(50):
        without_patience.note_validation(0.5, 1.0, patience=0)
    assert (without_patience.n_worse, without_patience.stopped_by) == (50, "")
    assert replace(state, seconds=9.0).without_timers() == state.without_timers()


@pytest.mark.parametrize(
    ("steps", "best", "every", "last"),
    [
        (200, 2, 2, 12), (200, 10, 2, 20), (200, 30, 2, 50), (200, 60, 2, 100), (200, 60, 10, 110),
        (20, 10, 2, 100), (20, 95, 5, 160),  # not in the first 2,000 steps
    ],
)  # fmt: skip
def test_by_itself_it_stops_after_five_and_two_fifths_of_all(steps: int, best: int, every: int, last: int) -> None:
    state = State()
    for epoch in range(every, 1000, every):
        state.step = steps * epoch
        state.note_validation(epoch if epoch <= best else 0.0, epoch, patience="auto")
        if state.stopped_by:
            break
    assert (epoch, state.best_epoch, state.stopped_by) == (last, best, "patience")


def test_of_parts_within_one_another_the_innermost_counts(monkeypatch: Patch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    seconds = {"training": 7.0}  # of an earlier part of the run
    watch = Stopwatch(seconds)
    now[0] += 50  # belongs to nothing
    with watch.of("training"):
        now[0] += 1
        with watch.of("saving"):
            now[0] += 2
        now[0] += 4
        with suppress(ZeroDivisionError), watch.of("validation"):
            now[0] += 8
            now[0] /= 0
        now[0] += 16
    now[0] += 50
    watch.add("start", 3.0)
    assert seconds == {"training": 7 + 1 + 4 + 16, "saving": 2, "validation": 8, "start": 3}


def slowly(*arguments: Any, **options: Any) -> None:
    time.sleep(0.2)
    store.save(*arguments, **options)


@pytest.mark.usefixtures("alone")
def test_a_loss_that_is_not_finite_ends_the_run(make: Make, monkeypatch: Patch, tmp_path: Path) -> None:
    original, calls = Bert4Rec.forward, 0

    def sometimes(self: Bert4Rec, *args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return original(self, *args) * (float("nan") if calls % 9 == 5 else 1.0)

    monkeypatch.setattr(Bert4Rec, "forward", sometimes)
    early, late = tmp_path / "runs" / "early", tmp_path / "runs" / "late"
    rates = "--training.learning_rate=0.0001 --parallelism.sparse_learning_rate=0.0001"
    with pytest.raises(DivergenceError, match=f"--config={early}/config.toml {rates}$"):
        run(make(**{"training.n_epochs": 1, "training.learning_rate": 0.001, "run.name": "early"}))
    leave_group()
    calls = -4
    monkeypatch.setattr(contents, "save", slowly)  # the best weights are still being written when the loss is nan
    with pytest.raises(DivergenceError, match=f"--run.init_from={late}$"):
        run(make(**{"training.n_epochs": 2, "run.name": "late"}))
    assert (late / "checkpoints" / "best").is_dir()


def snapshot() -> list[Any]:
    loggers = [logging.getLogger(name) for name in (None, "torch", "torchrec")]
    return [
        random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist(), torch.get_num_threads(),
        torch.backends.mkldnn.enabled, torch.get_float32_matmul_precision(), dist.is_initialized(),
        torch.are_deterministic_algorithms_enabled(), list(warnings.filters),
        {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        [(logger.level, list(logger.handlers)) for logger in loggers],
    ]  # fmt: skip


def turn_everything() -> None:
    """Change the global states that a training and its libraries change."""
    seed_everything(7, 0)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    torch.set_float32_matmul_precision("high")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    logging.getLogger().addHandler(logging.StreamHandler())


def test_all_is_as_before_after_an_end_and_after_a_failure(alone: None) -> None:
    torch.set_num_threads(1)
    before = snapshot()
    with quiet_libraries(), preserve_global_state():
        turn_everything()
        warnings.warn("of a library", FutureWarning, stacklevel=1)
        assert logging.getLogger("torchrec").level == logging.ERROR
    assert snapshot() == before
    group = process_group(this_process("cpu"), deterministic=True)
    with suppress(ZeroDivisionError), quiet_libraries(), preserve_global_state(), group:
        turn_everything()
        _ = 1 / 0
    assert snapshot() == before


def test_a_group_that_was_there_stays(group_of_one: None) -> None:
    with preserve_global_state():
        pass
    assert dist.is_initialized()
