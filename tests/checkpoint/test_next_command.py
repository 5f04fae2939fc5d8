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
LAUNCHED = {
    "python train.py --resume=runs/x": {},
    "torchrun --standalone --nproc_per_node=2 train.py --resume=runs/x": TORCHRUN,
    "(on every host) torchrun --nnodes=3 --nproc_per_node=2 … train.py --resume=runs/x": {
        **TORCHRUN, "GROUP_WORLD_SIZE": "3",
    },
    "torchx run -s local_cwd dist.ddp -j 1x2 --script train.py -- --resume=runs/x": {
        **TORCHRUN, "TORCHX_JOB_ID": "local_cwd://torchx/train-abc",
    },
    "torchx run -s slurm dist.ddp -j 4x8 --script train.py -- --resume=runs/x": {
        **TORCHRUN, "TORCHX_JOB_ID": "slurm://torchx/7", "GROUP_WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "8",
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody had launched this process."""
    for name in ("TORCHX_JOB_ID", *TORCHRUN):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("command", LAUNCHED)
def test_the_launcher_is_that_of_this_process(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    for name, value in LAUNCHED[command].items():
        monkeypatch.setenv(name, value)
    assert train_command("--resume=runs/x") == command


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


def test_what_another_program_was_told_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/pytest", "-x"])
    assert how_to_continue() == "continue with: python train.py --resume=auto"


def test_options_are_left_out_by_what_they_set() -> None:
    words = ["--mode", "ddp", "--run.resume=auto", "--config=a", "--training.n_epochs=3", "--checkpoint.keep=1"]
    assert without(words, "--resume", "--config", "--parallelism.mode=dmp") == [
        "--training.n_epochs=3", "--checkpoint.keep=1",
    ]  # fmt: skip


def test_a_number_of_processes() -> None:
    assert on_processes(1, "--resume=x") == "python train.py --resume=x"
    assert on_processes(4, "--resume=x") == ("torchx run -s local_cwd dist.ddp -j 1x4 --script train.py -- --resume=x")
