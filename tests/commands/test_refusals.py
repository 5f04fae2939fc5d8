"""What no command can do is one line, which names the option or the file, and status 2."""

import json
from pathlib import Path

import pytest

from bert4rec.__main__ import main
from tests.fixture_types import Capture, Patch

ASKED = "plan --world-size=4 --device=cuda --items=1000"
CPU = "plan --world-size=2 --device=cpu"


@pytest.mark.parametrize(
    "words",
    [
        "check", "check a b", "check --fast", "prepare --config=none.toml", "train --training.n_epoch=3",
        "train --config=none.toml", "train --data.dataset_dir=nowhere", "train --parallelism.device=cuda",
        "evaluate nowhere", "evaluate RUN --evaluation.kss=3", "evaluate RUN --model.embed_dim=32",
        "evaluate RUN --config=x.toml", "evaluate RUN --parallelism.device=cuda", "export RUN --format=vector",
        "export RUN --format=pt2,pickle", "export RUN --top=0", "recommend RUN --items=1 --top=0",
        "recommend RUN --items=1 --allow=nowhere", "recommend RUN", "recommend RUN --items=1 --data.user_column=x",
        "recommend RUN --histories=x.csv --model.times=none", "recommend RUN --histories=x.csv --data.user_colum=x",
        "recommend RUN --items=1 --tops=3", "recommend RUN --items=1 --where=",
        "recommend RUN --items=1 --where=train_counts", "recommend RUN --items=1 --at-most=2",
        "recommend RUN --items=1 --at-most=0", "recommend RUN --items=1 --per=item",
        "recommend RUN --items=1 --at-most=1 --per=", "similar RUN 1 --where=item", "similar RUN 999",
        "similar RUN 1 --top=0", "plan --world-size=2 --device=tpu", "plan --world-size=0 --device=cpu",
        "plan --world-size=two --device=cpu", "plan --world-size=12 --device=cuda", f"{CPU} --memory-gb=8",
        f"{CPU} --data.dataset_dir=nowhere", f"{CPU} --items=9 --parallelism.compute_kernel=fused_uvm",
        f"{ASKED} --items", f"{ASKED} --items=-3", f"{ASKED} --memory-gb=much", f"{ASKED} --memory-gb=nan",
        f"{ASKED} --host-memory-gb=-1", f"{ASKED} --mode both", f"{ASKED} --local-world 2",
        f"{ASKED} --config=none.toml", f"{ASKED} extra", f"{ASKED} --model.kind=markov", f"{ASKED} --features=many",
        f"{ASKED} --features=5,-1", "describe nowhere", "describe nowhere --html=nowhere/x.html",
    ],
)  # fmt: skip
def test_one_line_for_what_cannot_be(made: Path, monkeypatch: Patch, capsys: Capture, words: str) -> None:
    """It names an option that was typed, or its value."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    capsys.readouterr()
    assert main([str(made) if word == "RUN" else word for word in words.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.startswith("error: ")) == ("", 1, True)
    typed = [part for word in words.split()[-2:] for part in word.removeprefix("--").split("=") if len(part) > 2]
    assert words.startswith("check") or words == "recommend RUN" or any(part in err for part in typed), err


def test_the_last_lines_of_torchrun_say_what_is_wrong(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    assert main(["train", "--mode=dpm"]) == 2
    message = json.loads(file.read_text())["message"]  # as torchrun reads it
    assert message["message"] == capsys.readouterr().err.strip()
    assert int(message["extraInfo"]["timestamp"]) > 0
