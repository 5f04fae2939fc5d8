"""examples/search.py: searches side by side, killed, with trials that fail; real trainings, in real processes."""

import importlib
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bert4rec.config.load import load_config, parse_command_line
from tests.conftest import SMALL
from tests.fixture_types import Capture, Patch

optuna = pytest.importorskip("optuna", reason="optuna is not installed: pip install -e .[dev]")

from optuna.trial import TrialState  # noqa: E402

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def options(small_folder: Path, tmp_path: Path) -> list[str]:
    """Of a search over the small dataset, with one epoch a trial, in a folder of this test."""
    settings = SMALL | {"data.dataset_dir": small_folder, "training.n_epochs": 1}
    return [f"--folder={tmp_path / 'search'}", "--config=config.toml", *(f"--{k}={v}" for k, v in settings.items())]


@pytest.fixture
def script(monkeypatch: Patch) -> ModuleType:
    """The script, in this process."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("search")


def start(options: list[str]) -> "subprocess.Popen[str]":
    words = [sys.executable, str(EXAMPLES / "search.py"), *options]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(search: "subprocess.Popen[str]", status: int = 0) -> str:
    """What a search has printed in the end, and that it has ended so."""
    out, err = search.communicate()
    assert search.returncode == status, out + err
    return out + err


def wait_until(is_so: Callable[[], object], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


def trials_of(folder: Path) -> list[Any]:
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "study.journal"))
    return optuna.load_study(study_name="search", storage=optuna.storages.JournalStorage(backend)).trials


def report_of(folder: Path, number: int) -> dict[str, Any]:
    return json.loads((folder / f"trial-{number:03d}" / "report.json").read_text())


@pytest.mark.long
def test_two_searches_side_by_side_share_the_trials(options: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "search"
    texts = [said(search) for search in [start(["--trials=5", *options]) for _ in range(2)]]
    trials, names = trials_of(folder), [f"trial-{n:03d}" for n in range(5)]
    assert [(trial.number, trial.state) for trial in trials] == [(n, TrialState.COMPLETE) for n in range(5)]
    ends = [int(number) for text in texts for number in re.findall(r"^trial (\d+): NDCG@10", text, re.MULTILINE)]
    assert sorted(ends) == [0, 1, 2, 3, 4]  # each by one of them, once
    assert len({str(trial.params) for trial in trials}) == 5
    assert sorted(path.name for path in folder.glob("trial-*")) == names

    values = [report_of(folder, n)["validation"]["full"]["NDCG@10"] for n in range(5)]
    assert [trial.value for trial in trials] == values
    best = max(range(5), key=lambda n: values[n])
    result, other = (text[text.index("\n5 trials finished, 0 stopped early, 0 failed\n") :] for text in texts)
    assert result == other
    assert (folder / "search.png").read_bytes().startswith(b"\x89PNG")

    program, name, *words = shlex.split(result.splitlines()[-1])
    assert (program, name) == ("bert4rec", "train")
    printed, trained = load_config(*parse_command_line(words)), load_config(folder / names[best] / "config.toml")
    assert printed.preprocessing == trained.preprocessing
    for typed, decided in ((printed.model, trained.model), (printed.training, trained.training)):
        left = {name for name, value in typed if value == "auto"}  # to the training, as in the trial
        assert typed == decided.model_copy(update=dict.fromkeys(left, "auto"))
        assert left.isdisjoint(name.rpartition(".")[2] for name in trials[best].params)
    assert (printed.run.name, printed.run.dir, printed.run.resume) == ("search-best", "runs", "")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_killed_search_goes_on_where_it_was(options: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "search"
    first = folder / "trial-000"
    words = ["--trials=2", *options, "--training.n_epochs=30", "--training.patience=0", "--model.embed_dim=16"]
    words += ["--training.eval_every_n_epochs=1"]
    killed = start(words)
    wait_until(lambda: len(list(first.glob("checkpoints/step-*"))) > 0)
    killed.kill()
    killed.communicate()
    stopped, resumed = start(words), first / "metrics.jsonl"
    wait_until(lambda: resumed.exists() and re.search(r'"resume".*\n(.*\n)*.*"validation"', resumed.read_text()))
    stopped.terminate()
    assert said(stopped, status=130).endswith("\nstopped, all is saved; the same command goes on\n")
    assert not (first / "report.json").exists()

    text = said(start(words))
    assert "trial 0, begun before: " in text
    trials = trials_of(folder)
    assert [(trial.number, trial.state) for trial in trials] == [(n, TrialState.COMPLETE) for n in (0, 1)]
    assert sorted(path.name for path in folder.glob("trial-*")) == ["trial-000", "trial-001"]
    for trial, n_parts in zip(trials, (2, 0), strict=True):
        report = report_of(folder, trial.number)
        assert trial.value == report["validation"]["full"]["NDCG@10"]
        assert (report["training"]["epochs"], len(report["training"]["resumed"])) == (30, n_parts)
        assert sorted(trial.intermediate_values) == list(range(1, 31))
    assert "\n2 trials finished, 0 stopped early, 0 failed\n" in said(start(words))  # there is nothing left to do
    assert trials_of(folder) == trials


@pytest.fixture
def opened(script: ModuleType, options: list[str]) -> Callable[..., Any]:
    """`opened("--trials=2")`: a search in this process, as two of them may stand side by side."""

    def make(*more: str) -> Any:
        return script.open_search(*script.make_parser().parse_known_args([*options, *more]))

    return make


def test_whoever_has_the_lock_of_a_trial_runs_it(script: ModuleType, opened: Callable[..., Any]) -> None:
    one, other = opened("--trials=2"), opened("--trials=2")
    first, lock = script.take_trial(one)
    settings = script.suggested(one, first)
    second, second_lock = script.take_trial(other)
    assert (first.number, second.number) == (0, 1)
    assert script.take_trial(one) is None
    assert script.take_trial(other) is None
    lock.close()  # as the end of a process does
    again, lock = script.take_trial(other)
    assert again.number == 0
    assert script.suggested(other, again) == settings
    other.study.tell(again, 0.25)
    second_lock.close()
    assert [(trial.number, trial.value, trial.state) for trial in one.trials()] == [
        (0, 0.25, TrialState.COMPLETE), (1, None, TrialState.RUNNING),
    ]  # fmt: skip


def test_validations_are_followed_until_one_is_worse_than_others(
    script: ModuleType, opened: Callable[..., Any], tmp_path: Path
) -> None:
    def write(ndcgs: tuple[float, ...], end: int | None = None) -> None:
        rows = [{"kind": "train", "step": 1, "loss": 2.0}] + [
            {"kind": "validation", "step": epoch, "epoch": float(epoch), "full": {"NDCG@10": ndcg}}
            for epoch, ndcg in enumerate(ndcgs, 2)
        ]
        (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows)[:end])

    search = opened("--training.n_epochs=5")
    for _ in range(5):
        earlier = search.study.ask()
        earlier.report(0.5, 4)
        search.study.tell(earlier, 0.5)
    watcher = script.Watcher(search, search.study.ask(), tmp_path)
    watcher.line("there is no file yet")
    write((0.125, 0.75, 0.25), -20)  # the last line is torn
    watcher.line("epoch 3")
    watcher.line("epoch 3")
    assert search.trials()[5].intermediate_values == {2: 0.125, 3: 0.75}
    write((0.125, 0.75, 0.25))
    watcher.line("epoch 4: the best so far, 0.75, is better than the median")
    write((0.125, 0.375, 0.25))
    with pytest.raises(optuna.TrialPruned):
        script.Watcher(search, search.study.ask(), tmp_path).line("epoch 4")
    assert search.trials()[6].intermediate_values == {2: 0.125, 3: 0.375, 4: 0.25}


@pytest.mark.parametrize(
    ("kind", "n_items", "losses", "most"),
    [("sasrec", 8, {"softmax", "gbce"}, 7), ("bert4rec", 200_000, {"sampled_softmax", "gbce"}, 1024)],
)
def test_every_point_of_the_space_can_be_trained(
    script: ModuleType, kind: str, n_items: int, losses: set[str], most: int
) -> None:
    study = optuna.create_study()
    names, found = set(), set()
    for _ in range(100):
        trial = study.ask()
        derived = script.space(trial, load_config(None, {"model.kind": kind}), n_items)
        assert not trial.params.keys() & derived.keys()
        config = load_config(None, {"model.kind": kind, **trial.params, **derived})
        assert config.model.ffn_dim == 4 * config.model.embed_dim
        assert ("training.gbce_calibration" in trial.params) == (config.training.loss == "gbce")
        negatives = trial.params.get("training.n_train_negatives")
        assert (negatives is None) == (config.training.loss == "softmax")
        assert negatives is None or negatives <= most
        names, found = names | trial.params.keys(), found | {config.training.loss}
    assert found == losses
    assert ("training.mask_prob" in names) == (kind == "bert4rec")


def test_what_was_typed_is_not_searched(script: ModuleType, opened: Callable[..., Any]) -> None:
    search = opened("--training.loss=gbce", "--training.n_train_negatives=7")
    trial, lock = script.take_trial(search)
    settings = script.suggested(search, trial)
    lock.close()
    assert settings.keys().isdisjoint(["training.loss", "training.n_train_negatives", "model.embed_dim"])
    assert "training.gbce_calibration" in settings  # which belongs to the loss that was typed
    config = load_config(*parse_command_line(search.words(settings)))
    assert (config.training.loss, config.training.n_train_negatives, config.model.embed_dim) == ("gbce", 7, 16)
    assert config.training.learning_rate == settings["training.learning_rate"]
    assert config.model.ffn_dim == SMALL["model.ffn_dim"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--run.name=x", "--run.name=x: "), ("--training.n_epoch=3", "--training.n_epochs?"),
        ("--model.kind=matrix_factorization --training.loss=mse", "NDCG@10"),
        ("--data.dataset_dir=nowhere", "nowhere: "), ("--trial=3", "--trial"),
    ],
)  # fmt: skip
def test_what_no_trial_could_do_is_refused_before_the_first(
    script: ModuleType, options: list[str], words: str, named: str, capsys: Capture, monkeypatch: Patch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["search.py", *options, *words.split()])
    assert script.main() == 2
    error = capsys.readouterr().err
    assert (error.startswith("error: "), error.count("\n"), named in error) == (True, 1, True), error
    assert not list(tmp_path.glob("search/trial-*"))


def test_trials_that_cannot_be_compared_are_no_search(
    script: ModuleType, opened: Callable[..., Any], tmp_path: Path, monkeypatch: Patch
) -> None:
    search = opened("--trials=3")
    assert len(opened("--trials=9", "--checkpoint.keep=1").trials()) == 0
    with pytest.raises(script.SettingsError, match=r"training\.n_epochs"):
        opened("--training.n_epochs=3")
    trial, lock = script.take_trial(search)
    trial.suggest_categorical("model.n_heads", [1, 2, 8])  # those of another space
    with pytest.raises(script.SettingsError):
        script.suggested(search, trial)
    lock.close()
    assert [one.state for one in search.trials()] == [TrialState.FAIL]
    monkeypatch.setattr(script, "try_lock", lambda file, wait=False: True)  # as bert4rec.runtime.files has it there
    with pytest.raises(script.SettingsError, match="locks"):
        opened()
