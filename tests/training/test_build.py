"""What of the settings goes where."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bert4rec.config.load import load_config
from bert4rec.config.resolve import Facts, resolve
from bert4rec.dataset.reader import Dataset, Sizes, open_dataset
from bert4rec.runtime.processes import Processes
from bert4rec.sharding.footprint import Job
from bert4rec.training import build
from bert4rec.training.build import choose_baselines, job, sampler
from tests.fixture_types import Patch, Settings

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
    dataset, others = open_dataset(small_folder), ["recent_popularity", "markov", "transition_graph"]
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
