"""Weights as safetensors, as the library that made the format reads them."""

from pathlib import Path

import torch
from safetensors import safe_open

from bert4rec.checkpoint.stored_tensors import MODEL
from bert4rec.export.weights import write_safetensors
from bert4rec.inference.source import find_source


def test_the_library_reads_every_tensor_of_the_model_and_nothing_else(made: Path, tmp_path: Path) -> None:
    stored = find_source(made).tensors()
    names = {name: name.removeprefix(MODEL) for name in stored if name.startswith(MODEL)}
    write_safetensors(tmp_path / "model.safetensors", stored, names)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert {*file.keys()} == {*names.values()}
        assert all(torch.equal(file.get_tensor(written), stored.read(name)) for name, written in names.items())
