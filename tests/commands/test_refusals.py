"""What no command can do is one line, which names the option or the file, and status 2."""

import json
from pathlib import Path

import pytest

from bert4rec.__main__ import main
from tests.fixture_types import Capture, Patch

ASKED = "plan --world-size=4 --device=cuda --items=1000"
CPU = "plan --world-size=2 --device=cpu"


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        ("check", ["--help"]),
        ("check a b", ["--help"]),
        ("check --fast", ["--help"]),
        ("prepare --config=none.toml", ["error: none.toml: "]),
        ("train --training.n_epoch=3", ["--training.n_epoch:", "--training.n_epochs?"]),
        ("train --config=none.toml", ["error: none.toml: "]),
        ("train --data.dataset_dir=nowhere", ["nowhere: "]),
        ("train --parallelism.device=cuda", ['parallelism.device = "cuda": ']),
        ("evaluate nowhere", ["nowhere: "]),
        ("evaluate RUN --evaluation.kss=3", ["--evaluation.kss:", "--evaluation.ks?"]),
        ("evaluate RUN --model.embed_dim=32", ["--model.embed_dim=32: "]),
        ("evaluate RUN --config=x.toml", ["--config"]),
        ("evaluate RUN --parallelism.device=cuda", ['parallelism.device = "cuda": ']),
        ("export RUN --format=vector", ["error: --format=vector: ", " vectors"]),
        ("export RUN --format=pt2,pickle", ["error: --format=pt2,pickle: ", "safetensors, vectors, pt2, onnx"]),
        ("export RUN --top=0", ["error: --top=0: "]),
        ("recommend RUN --items=1 --top=0", ["--top=0: "]),
        ("recommend RUN --items=1 --allow=nowhere", ["nowhere: "]),
        ("recommend RUN", ["required"]),
        ("recommend RUN --items=1 --data.user_column=x", ["--data.user_column=x: "]),
        ("recommend RUN --histories=x.csv --model.times=none", ["--model.times=none: "]),
        ("recommend RUN --histories=x.csv --data.user_colum=x", ["data.user_colum"]),
        ("recommend RUN --items=1 --tops=3", ["--top?"]),
        ("recommend RUN --items=1 --where=", ["--where="]),
        ("recommend RUN --items=1 --where=train_counts", ["--where=train_counts: ", "did you mean train_count?"]),
        ("recommend RUN --items=1 --at-most=2", ["--at-most=2: ", "--per"]),
        ("recommend RUN --items=1 --at-most=0", ["--at-most=0: "]),
        ("recommend RUN --items=1 --per=item", ["--per=item: ", "--at-most"]),
        ("recommend RUN --items=1 --at-most=1 --per=", ["--per="]),
        ("similar RUN 1 --where=item", ["--where=item: "]),
        ("similar RUN 999", ["999: "]),
        ("similar RUN 1 --top=0", ["--top=0: "]),
        ("plan --world-size=2 --device=tpu", ["--device", "tpu", "cuda", "cpu"]),
        ("plan --world-size=0 --device=cpu", ["--world-size=0"]),
        ("plan --world-size=two --device=cpu", ["--world-size=two"]),
        ("plan --world-size=12 --device=cuda", ["--world-size=12", " 8 ", "--local-world-size"]),
        (f"{CPU} --memory-gb=8", ["--memory-gb", "--host-memory-gb"]),
        (f"{CPU} --data.dataset_dir=nowhere", ["nowhere: ", "--items=N"]),
        (f"{CPU} --items=9 --parallelism.compute_kernel=fused_uvm", ["compute_kernel=fused_uvm", '"fused"']),
        (f"{ASKED} --items", ["--items"]),
        (f"{ASKED} --items=-3", ["--items=-3"]),
        (f"{ASKED} --memory-gb=much", ["--memory-gb=much"]),
        (f"{ASKED} --memory-gb=nan", ["--memory-gb=nan"]),
        (f"{ASKED} --host-memory-gb=-1", ["--host-memory-gb=-1"]),
        (f"{ASKED} --mode both", ["--mode=both", "dmp", "ddp"]),
        (f"{ASKED} --local-world 2", ["--local-world:", "--local-world-size"]),
        (f"{ASKED} --config=none.toml", ["none.toml"]),
        (f"{ASKED} extra", ["extra: "]),
        (f"{ASKED} --model.kind=markov", ["markov"]),
    ],
)
def test_one_line_for_what_cannot_be(
    made: Path, monkeypatch: Patch, capsys: Capture, words: str, tokens: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    capsys.readouterr()
    assert main([str(made) if word == "RUN" else word for word in words.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert [token for token in tokens if token not in err] == []
    assert words.split()[0] != "check" or err.endswith("--help\n")


def test_the_last_lines_of_torchrun_say_what_is_wrong(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    assert main(["train", "--mode=dpm"]) == 2
    message = json.loads(file.read_text())["message"]  # as torchrun reads it
    assert message["message"] == capsys.readouterr().err.strip()
    assert int(message["extraInfo"]["timestamp"]) > 0
