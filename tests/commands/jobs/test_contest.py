"""What is typed after `benchmark`, as trainings with all their settings."""

from pathlib import Path

import pytest

from bert4rec.commands.jobs.contest import Contest, chosen_splits, make_contest
from bert4rec.config.abilities import UNTRAINED
from bert4rec.config.load import load_config, parse_command_line
from bert4rec.runtime.errors import SettingsError


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text('[model]\nkind = "sasrec"\nembed_dim = 16\n')
    Path("short.toml").write_text("[model]\nmax_len = 20\n")


def contest(
    *names: str, options: tuple[str, ...] = (), seeds: str | None = None, output: Path | None = None
) -> Contest:
    file, overrides = parse_command_line(options)
    return make_contest(names, file, overrides, seeds=seeds, output=output)


def test_a_training_for_each_contestant_and_seed() -> None:
    asked = contest("untrained", "bert4rec", "small.toml", seeds="3,5", options=("--training.n_epochs=2",))
    jobs = [*asked.jobs("leave_one_out"), *asked.jobs("time")]
    names = [*UNTRAINED, "bert4rec", "bert4rec", "small", "small"]
    assert [job.contestant for job in jobs] == 2 * names
    assert [job.seed for job in jobs] == 2 * [None, None, None, None, 3, 5, 3, 5]
    assert str(jobs[-1]) == "small, time, seed 5"
    assert jobs[-1].settings == [
        "--config=small.toml", "--training.n_epochs=2", "--preprocessing.split=time",
        "--data.dataset_dir=data/synthetic-time", "--training.seed=5", "--run.dir=runs/benchmark-synthetic",
        "--run.name=small-time-seed5",
    ]  # fmt: skip
    assert jobs[2].settings == [
        "--training.n_epochs=2", "--model.kind=markov", "--preprocessing.split=leave_one_out",
        "--data.dataset_dir=data/synthetic", "--run.dir=runs/benchmark-synthetic", "--run.name=markov-leave_one_out",
    ]  # fmt: skip
    for job in jobs:
        assert job.config == load_config(*parse_command_line(job.settings))
    assert [jobs[-1].config.model.kind, jobs[-1].config.model.embed_dim] == ["sasrec", 16]
    assert {job.config.run.dir for job in contest("markov", output=Path("x")).jobs("time")} == {"x"}


def test_each_contestant_takes_part_once() -> None:
    assert [one.name for one in contest("markov", "untrained", "markov").contestants] == [
        "markov", "popularity", "recent_popularity", "transition_graph",
    ]  # fmt: skip


def test_settings_of_one_contestant() -> None:
    """Behind its kind, and before those that all share."""
    neural = "matrix_factorization:form=neural,mlp_layers=[8,4],training.n_epochs=9"
    asked = contest(neural, "markov", "matrix_factorization", options=("--training.n_epochs=2",))
    first, _, last = asked.jobs("time")
    assert (str(first), first.name) == (
        f"{neural}, time, seed 1", "matrix_factorization-form-neural-mlp_layers-8-4-training.n_epochs-9-time-seed1"
    )  # fmt: skip
    assert first.settings[:4] == [
        "--model.kind=matrix_factorization", "--model.form=neural", "--model.mlp_layers=[8,4]",
        "--training.n_epochs=9",
    ]  # fmt: skip
    assert first.config == load_config(*parse_command_line(first.settings))
    assert (first.config.model.form, first.config.model.mlp_layers) == ("neural", [8, 4])
    assert [job.config.training.n_epochs for job in (first, last)] == [9, 2]


def test_contestants_of_one_kind_have_names() -> None:
    asked = contest("deep=sasrec:n_layers=3", "sasrec", "small=sasrec:embed_dim=8", "wide one=small.toml")
    assert [job.contestant for job in asked.jobs("time")] == ["deep", "sasrec", "small", "wide one"]
    assert [job.name for job in asked.jobs("time")][::3] == ["deep-time-seed1", "wide-one-time-seed1"]
    assert [job.config.model.n_layers for job in asked.jobs("time")][:2] == [3, 2]


def test_the_splits() -> None:
    assert chosen_splits(None) == ("leave_one_out", "time")
    assert chosen_splits("time") == ("time",)
    with pytest.raises(SettingsError, match="--splits=time,last: no split last; there are leave_one_out, time"):
        chosen_splits("time,last")


@pytest.mark.parametrize(
    ("names", "options", "seeds", "problem"),
    [
        (["markow"], [], None, "markow: neither a kind of model nor a settings file; did you mean markov?"),
        (["x.toml"], [], None, "x.toml: neither a kind of model nor a settings file; kinds: bert4rec, "),
        (["markov"], [], "1,b", "--seeds=1,b: must be whole numbers with commas between them, like 1,2,3"),
        (["markov"], ["--run.name=x"], None, "--run.name=x: a benchmark sets run.name itself; instead: --output"),
        (["markov"], ["--training.seed=1"], None, "--training.seed=1: a benchmark sets training.seed itself; "),
        (["markov"], ["--training.n_epoch=1"], None, "--training.n_epoch: no such option; did you mean "),
        (
            ["markov", "short.toml"], [], None,
            "short and markov need different datasets: model.max_len = 20 and auto; choose one for all: --model.max_l",
        ),
        (["markow:decay=1"], [], None, "markow:decay=1: neither a kind of model nor a settings file; did you mean m"),
        (["sasrec:n_layer=3"], [], None, "--model.n_layer: no such option; did you mean --model.n_layers"),
        (["sasrec:n_layers"], [], None, "--model.n_layers: "),
        (["sasrec:run.name=x"], [], None, "--run.name=x: a benchmark sets run.name itself; instead: --output"),
        (
            ["small.toml", "a/small.toml"], [], None,
            "a/small.toml: another contestant is called small, too; give it a name: NAME=a/small.toml",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(names: list[str], options: list[str], seeds: str | None, problem: str) -> None:
    Path("a").mkdir()
    Path("a/small.toml").write_text("")
    with pytest.raises(SettingsError) as caught:
        contest(*names, options=tuple(options), seeds=seeds)
    assert str(caught.value).startswith(problem)
