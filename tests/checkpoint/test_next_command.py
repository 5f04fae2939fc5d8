"""The command that goes on with a run, for every launcher; end_to_end/ pastes and runs it."""

from pathlib import Path

import pytest

from bert4rec.checkpoint.run_settings import how_to_continue, on_processes, train_command
from tests.fixture_types import Patch

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "2"}
SLURM = {**TORCHRUN, "TORCHX_JOB_ID": "slurm://torchx/7", "GROUP_WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "8"}


@pytest.fixture(autouse=True)
def without_launcher(monkeypatch: Patch) -> None:
    for name in SLURM:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        ({}, "bert4rec train"),
        (TORCHRUN, "torchrun --standalone --nproc_per_node=2 -m bert4rec train"),
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "3"},
         "(on every host) torchrun --nnodes=3 --nproc_per_node=2 … -m bert4rec train"),
        ({**TORCHRUN, "TORCHX_JOB_ID": "local_cwd://torchx/train-abc"},
         "torchx run -s local_cwd dist.ddp -j 1x2 -m bert4rec -- train"),
        (SLURM, "torchx run -s slurm dist.ddp -j 4x8 -m bert4rec -- train"),
    ],
)  # fmt: skip
def test_the_launcher_is_that_of_this_process(monkeypatch: Patch, environment: dict[str, str], command: str) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert train_command("--resume=runs/x") == f"{command} --resume=runs/x"


def test_a_run_with_a_checkpoint_is_resumed_and_another_one_starts_again(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    assert how_to_continue(run).endswith(f": bert4rec train '--config={run}/config.toml'")
    (run / "checkpoints" / "step-000000004").mkdir(parents=True)
    assert how_to_continue(run).endswith(f": bert4rec train '--resume={run}'")
    assert how_to_continue().endswith(" --resume=auto")  # which run it was is not known
    assert on_processes(1, "--resume=x") == "bert4rec train --resume=x"
    assert on_processes(4, "--resume=x") == "torchrun --standalone --nproc_per_node=4 -m bert4rec train --resume=x"
