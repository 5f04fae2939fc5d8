"""The real scripts as a person starts them: one process, torchrun, torchx; and what they say to bad input."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import tomli

from bert4rec.__main__ import main
from bert4rec.config.load import load_config
from tests.conftest import SMALL, long
from tests.fixture_types import Capture, Settings
from tests.launch import ALONE, TORCHRUN, TORCHX, settings_file, start


@pytest.fixture(scope="module")
def runs(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """The report of a run by launcher and mode, started when first asked for."""
    parent, known = tmp_path_factory.mktemp("runs"), {}

    def get(launcher: list[str], mode: str) -> dict[str, Any]:
        key = (tuple(launcher), mode)
        if key not in known:
            name = f"run{len(known)}"
            places = {"data.dataset_dir": str(small_folder), "run.dir": str(parent), "run.name": name}
            how = {"training.eval_every_n_epochs": 1, "model.dropout": 0.0, "parallelism.sparse_optimizer": "adagrad"}
            how |= {"run.trackers": ["tensorboard"]}
            rate = {"training.per_device_train_batch_size": 32 if launcher is ALONE else 16}
            file = settings_file(load_config(None, SMALL | places | how | rate), parent)
            done = start([*launcher, file, f"--mode={mode}"])
            assert done.returncode == 0, done.stderr[-3000:]
            assert launcher is not ALONE or done.stderr == ""  # whatever the libraries think
            known[key] = json.loads((parent / name / "report.json").read_text()) | {
                "folder": parent / name,
                "output": done.stdout + done.stderr,
            }
        return known[key]

    return get


@pytest.mark.parametrize(
    ("launcher", "mode"), [long(ALONE, "dmp"), (TORCHRUN, "dmp"), long(TORCHRUN, "ddp"), long(TORCHX, "dmp")]
)
def test_a_run_leaves_its_folder(runs: Callable[..., dict[str, Any]], launcher: list[str], mode: str) -> None:
    report = runs(launcher, mode)
    folder = report["folder"]
    assert (report["mode"], report["world_size"]) == (mode, 1 if launcher is ALONE else 2)
    assert len(report["training"]["peak_memory_bytes"]) == report["world_size"]
    for split in ("validation", "test", "popularity_baseline", "best_possible"):
        for metrics in report[split].values():
            assert metrics["users"] == (20 if split == "validation" else 60)
            assert 0 <= metrics["HR@1"] <= metrics["HR@5"] <= metrics["HR@10"] <= 1
    assert tomli.loads((folder / "config.toml").read_text())["parallelism"]["mode"] == mode
    plan = (folder / "plan.txt").read_text()
    assert plan.startswith(f"plan: {mode} on {report['world_size']} x cpu")
    for rank in range(report["world_size"]):
        weights, state = (report["sharding"][key][rank] for key in ("weights", "optimizer_state"))
        assert f"\n  {rank}: {weights} of weights and {state} of optimizer state" in plan
    assert report["output"].count(f"plan: {mode} on ") == 1  # only the first process speaks
    kinds = [json.loads(line)["kind"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [kind for kind, _ in itertools.groupby(kinds)] == ["train", "validation"] * 2
    assert list(folder.glob("events.out.tfevents.*"))
    picture = matplotlib.image.imread(folder / "learning_curve.png")
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 50
    assert f"{report['test']['full']['HR@10']:.4f}" in (folder / "report.md").read_text()


@pytest.mark.long
def test_both_modes_and_all_launchers_report_the_same(runs: Callable[..., dict[str, Any]]) -> None:
    """The same global batch and optimizer: the losses agree, and the metrics but for a rank or two."""
    losses, metrics = [], []
    for launcher, mode in [(ALONE, "dmp"), (TORCHRUN, "ddp"), (TORCHX, "dmp")]:
        report = runs(launcher, mode)
        records = [json.loads(line) for line in (report["folder"] / "metrics.jsonl").read_text().splitlines()]
        losses.append([record["loss"] for record in records if record["kind"] == "train"])
        metrics.append([report["test"][protocol]["MRR"] for protocol in ("full", "popular", "uniform")])
        assert report["popularity_baseline"] == runs(ALONE, "dmp")["popularity_baseline"]
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, atol=1e-4)
    np.testing.assert_allclose(metrics[1:], [metrics[0]] * 2, atol=1e-2)


@pytest.mark.long
def test_settings_that_cost_are_warned_of_once(small_config: Settings, tmp_path: Path) -> None:
    few = {"training.loss": "gbce", "training.n_train_negatives": 2}
    config = small_config(**{"training.precision": "bf16", "training.max_minutes": 1e-9, **few})
    done = start([*TORCHRUN, settings_file(config, tmp_path)])
    assert done.returncode == 0, done.stderr[-3000:]
    printed = done.stdout + done.stderr
    for warning in ("warning: 2 negatives", "warning: training.precision"):
        assert printed.count(warning) == 1, printed


@pytest.mark.usefixtures("alone")
def test_a_finished_run_is_never_overwritten(runs: Callable[..., dict[str, Any]]) -> None:
    first = runs(TORCHRUN, "dmp")["folder"]
    assert main(["train", f"--config={first / 'config.toml'}", "--training.n_epochs=1"]) == 0
    second = first.with_name(first.name + "-2")
    assert json.loads((second / "report.json").read_text())["training"]["epochs"] == 1
    assert json.loads((first / "report.json").read_text())["training"]["epochs"] == 2


FAILING = {
    "does not fit": ({"model.embed_dim": 4_000_000, "model.n_heads": 1}, 2, "host memory"),
    "no folder": ({"run.dir": "/dev/null/runs"}, 2, "error: run.dir: "),
    "diverges": (
        {"training.learning_rate": 1e30, "training.optimizer": "sgd", "training.max_grad_norm": 0.0}, 1,
        "bert4rec train --config=",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("changes", "status", "said"), FAILING.values(), ids=FAILING)
def test_a_training_that_fails_says_why(
    small_config: Settings, tmp_path: Path, capsys: Capture, changes: dict[str, Any], status: int, said: str
) -> None:
    assert main(["train", settings_file(small_config(**changes), tmp_path)]) == status
    err = capsys.readouterr().err
    assert (err.startswith("error: "), said in err) == (True, True)
    assert status == 1 or (err.count("\n"), (tmp_path / "runs").exists()) == (1, False)
