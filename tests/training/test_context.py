"""What a run knows before anything is trained."""

from pathlib import Path
from typing import Any

import pytest

from bert4rec.config.load import load_config
from bert4rec.report.log import read_records
from bert4rec.runtime.errors import SettingsError
from bert4rec.training.run import run
from tests.runs import Make, steps

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries about themselves
]


def test_the_settings_of_a_run_repeat_it(make: Make, whole: Path) -> None:
    run(make(**{"run.resume": str(whole), "training.n_epochs": 4}))
    again = load_config(whole / "config.toml")
    assert (again.run.resume, again.training.n_epochs) == ("", 4)
    assert "Resumed after step 21 on 1 process." in (whole / "report.md").read_text()


def test_the_other_mode_takes_the_optimizer_that_the_run_has(make: Make) -> None:
    """Left to itself, `ddp` takes Adam for the table, and `dmp` on CPU would not with a sampled loss."""
    sampled = {"training.loss": "gbce", "training.n_train_negatives": 9}
    folder = run(make(**sampled, **{"parallelism.mode": "ddp"}))
    run(make(**sampled, **{"parallelism.mode": "dmp", "run.resume": str(folder), "training.n_epochs": 4}))
    (resumed,) = read_records(folder, "resume")
    assert resumed["changed"].keys() == {"training.n_epochs", "parallelism.mode"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluation.seen_items": "keep"}, r"evaluation.seen_items = leave_out in the run, keep now: "),
        ({"model.embed_dim": 32}, r"model.embed_dim = 16 in the run, 32 now: a resumed run keeps what it began with"),
        ({"training.learning_rate": 0.5}, r"training.learning_rate = 0.001 in the run, 0.5 now"),
        (
            {"parallelism.sparse_optimizer": "sgd"},
            r'parallelism.sparse_optimizer = "adam" in the run, "sgd" now: .* --run.reset_optimizer=true',
        ),
        ({"training.optimizer": "sgd"}, r'training.optimizer = "adamw" in the run, "sgd" now'),
    ],
)
def test_what_a_run_began_with_stays(make: Make, whole: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        run(make(**{"run.resume": str(whole)}, **changes))
    assert steps(whole) == [7, 14, 21]
    assert (whole / "report.json").exists()
