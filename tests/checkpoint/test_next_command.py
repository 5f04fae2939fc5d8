"""Commands for every launcher, to the letter; that they work when they are pasted is tested in end_to_end/."""

from pathlib import Path

import pytest

from bert4rec.checkpoint.next_command import (
    free_the_disk,
    how_to_continue,
    on_processes,
    train_command,
    without,
)

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "2"}
TORCHX = {**TORCHRUN, "TORCHX_JOB_ID": "local_cwd://torchx/train-abc"}
ON_MANY = {**TORCHRUN, "GROUP_WORLD_SIZE": "3"}
SLURM = {**TORCHX, "TORCHX_JOB_ID": "slurm://torchx/7", "GROUP_WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "8"}
SCRIPT, MODULE, COMMAND = ["train.py"], ["/x/bert4rec/__main__.py", "train"], ["/x/bin/bert4rec", "train"]
LAUNCHED: dict[str, tuple[list[str], dict[str, str]]] = {
    "python train.py": (SCRIPT, {}),
    "torchrun --standalone --nproc_per_node=2 train.py": (SCRIPT, TORCHRUN),
    "(on every host) torchrun --nnodes=3 --nproc_per_node=2 … train.py": (SCRIPT, ON_MANY),
    "torchx run -s local_cwd dist.ddp -j 1x2 --script train.py --": (SCRIPT, TORCHX),
    "torchx run -s slurm dist.ddp -j 4x8 --script train.py --": (SCRIPT, SLURM),
    "bert4rec train": (COMMAND, {}),
    "python -m bert4rec train": (MODULE, {}),
    "torchrun --standalone --nproc_per_node=2 -m bert4rec train": (MODULE, TORCHRUN),
    "(on every host) torchrun --nnodes=3 --nproc_per_node=2 … -m bert4rec train": (MODULE, ON_MANY),
    "torchx run -s local_cwd dist.ddp -j 1x2 -m bert4rec -- train": (MODULE, TORCHX),
}


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody had launched this process."""
    for name in ("TORCHX_JOB_ID", *TORCHRUN):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("command", LAUNCHED)
def test_the_launcher_is_that_of_this_process(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    argv, environment = LAUNCHED[command]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", [*argv, "--mode=ddp"])
    assert train_command("--resume=runs/x") == f"{command} --resume=runs/x"
    assert how_to_continue() == f"continue with: {command} --mode=ddp --resume=auto"
    monkeypatch.setattr("sys.argv", [*argv, "--data.path=https://host/log.csv?sig=5ec2e7"])
    assert how_to_continue() == f"continue with: {command} --data.path=https://host/log.csv --resume=auto"


def typed(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", *words])


def test_a_run_with_a_checkpoint_is_named_and_needs_no_other_option(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed(monkeypatch, "--config=a b.toml", "--training.n_epochs", "4")
    run = tmp_path / "my run"
    assert how_to_continue(run) == "start again with: python train.py '--config=a b.toml' --training.n_epochs 4"
    (run / "checkpoints" / "step-000000004").mkdir(parents=True)
    assert how_to_continue(run) == f"continue with: python train.py '--resume={run}'"
    assert free_the_disk(run) == f"free the disk, then continue with: python train.py '--resume={run}'"


def test_a_run_that_is_not_known_here_is_found_by_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "--mode=ddp")
    assert how_to_continue() == "continue with: python train.py --mode=ddp --resume=auto"
    typed(monkeypatch, "--resume", "runs/x", "--mode=ddp")
    assert how_to_continue() == "continue with: python train.py --resume runs/x --mode=ddp"


@pytest.mark.parametrize("argv", [["/usr/bin/pytest", "-x"], ["/x/bin/bert4rec", "report", "runs/x"]])
def test_what_another_program_was_told_is_not_repeated(monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> None:
    monkeypatch.setattr("sys.argv", argv)
    assert how_to_continue() == "continue with: bert4rec train --resume=auto"
    assert how_to_continue(Path("runs/x")) == "start again with: bert4rec train --config=runs/x/config.toml"


def test_options_are_left_out_by_what_they_set() -> None:
    words = ["--mode", "ddp", "--run.resume=auto", "--config=a", "--training.n_epochs=3", "--checkpoint.keep=1"]
    assert without(words, "--resume", "--config", "--parallelism.mode=dmp") == [
        "--training.n_epochs=3", "--checkpoint.keep=1",
    ]  # fmt: skip


def test_a_number_of_processes() -> None:
    assert on_processes(1, "--resume=x") == "bert4rec train --resume=x"
    assert on_processes(4, "--resume=x") == "torchrun --standalone --nproc_per_node=4 -m bert4rec train --resume=x"
