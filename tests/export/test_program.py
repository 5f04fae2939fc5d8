"""Programs find what `Network` and `top_k` find."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.evaluation.top_k import top_k
from bert4rec.export.program import Program, require_onnx, save_onnx, save_pt2
from bert4rec.inference.network import Network
from bert4rec.models.bert4rec import Bert4Rec
from bert4rec.models.sasrec import SASRec
from bert4rec.models.sequence_model import SequenceModel
from bert4rec.runtime.errors import SettingsError
from tests.inference.test_network import network_of
from tests.models.networks import MAX_LEN, N_ITEMS, model

# Longer than a history may be, of one item, of none, and with gaps.
HISTORIES = [[*range(MAX_LEN + 5)], [37], [], [3, -1, 1, -1, -1, 9], [5, 5, 5, 7]]
K = 10
POSITIONS: dict[type[SequenceModel], str] = {Bert4Rec: "rotary", SASRec: "learned"}
KINDS = pytest.mark.parametrize("kind", [Bert4Rec, SASRec])


def matrix(histories: list[list[int]], *, on_the_left: bool = False) -> Tensor:
    width = max(map(len, histories))
    padded = [([-1] * (width - len(items)), items) for items in histories]
    return torch.tensor([(fill + items) if on_the_left else (items + fill) for fill, items in padded])


@torch.no_grad()
def expected(network: Network, *, leaves_out_seen: bool) -> tuple[Tensor, Tensor]:
    found = []
    for history in HISTORIES:
        known = torch.tensor([item for item in history if item >= 0], dtype=torch.int64)
        if not len(known):
            found.append((torch.full((1, K), -torch.inf), torch.full((1, K), -1)))
            continue
        recent = known[-network.max_len :]

        def exclude(scores: Tensor, first: int, known: Tensor = known) -> None:
            if leaves_out_seen:
                scores[0, known] = -torch.inf

        hidden = network(recent + FIRST_ITEM_ID, torch.tensor([len(recent)]))
        found.append(top_k(hidden, network.item_vectors, K, exclude=exclude))
    scores, items = zip(*found, strict=True)
    return torch.cat(items), torch.cat(scores)


@KINDS
@pytest.mark.parametrize("head", ["tied", "linear"])
@pytest.mark.parametrize("output_bias", [True, False])
@pytest.mark.parametrize("leaves_out_seen", [True, False])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@torch.no_grad()
def test_it_finds_what_the_network_finds(
    kind: type[SequenceModel], head: str, output_bias: bool, leaves_out_seen: bool, positions: str
) -> None:
    network = network_of(model(kind, head=head, output_bias=output_bias, positions=positions))
    network.rows[:FIRST_ITEM_ID] = torch.nan  # of padding and of the mask token, which nobody reads
    program = Program(network, k=K, leaves_out_seen=leaves_out_seen)
    wanted = expected(network, leaves_out_seen=leaves_out_seen)
    for on_the_left in (False, True):
        items, scores = program(matrix(HISTORIES, on_the_left=on_the_left))
        assert torch.equal(items, wanted[0])
        torch.testing.assert_close(scores, wanted[1])


@torch.no_grad()
def test_where_too_few_are_left_nothing_stands_in_their_place() -> None:
    program = Program(network_of(model(Bert4Rec)), k=N_ITEMS + 1, leaves_out_seen=True)
    items, scores = program(torch.arange(N_ITEMS - 2)[None])
    assert items.shape == (1, N_ITEMS)
    assert {*items[0, :2].tolist()} == {N_ITEMS - 2, N_ITEMS - 1}
    assert items[0, 2:].tolist() == [-1] * (N_ITEMS - 2)
    assert torch.isinf(scores[0, 2:]).all()


@pytest.mark.parametrize("kind", [Bert4Rec, pytest.param(SASRec, marks=pytest.mark.long)])
def test_a_program_in_a_file_needs_torch_alone_and_holds_no_pickle(kind: type[SequenceModel], tmp_path: Path) -> None:
    network = network_of(model(kind, positions=POSITIONS[kind]))
    save_pt2(tmp_path / "program.pt2", Program(network, k=K, leaves_out_seen=True))
    for batch in (HISTORIES, [[4]], [[1, 2], [3, 4]]):
        np.save(tmp_path / "histories.npy", matrix(batch).numpy())
        script = (
            "import sys, numpy, torch; "
            "items, scores = torch.export.load('program.pt2').module()(torch.from_numpy(numpy.load('histories.npy'))); "
            "assert not {'bert4rec', 'torchrec', 'fbgemm_gpu', 'polars', 'datasets'} & {*sys.modules}; "
            "print(items.tolist())"
        )
        if batch is HISTORIES:
            ran = subprocess.run(
                [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
            )
            assert ran.stdout == f"{expected(network, leaves_out_seen=True)[0].tolist()}\n"
        else:
            items, _ = torch.export.load(tmp_path / "program.pt2").module()(matrix(batch))
            assert torch.equal(items, Program(network, k=K, leaves_out_seen=True)(matrix(batch))[0])
    with zipfile.ZipFile(tmp_path / "program.pt2") as archive:
        contents = {Path(name).name: archive.read(name) for name in archive.namelist()}
    assert contents["model.pt"] == b""  # of the inputs, in the only form that torch has for them: a pickle
    assert not any(zipfile.is_zipfile(io.BytesIO(content)) for content in contents.values())


@pytest.mark.parametrize("kind", [Bert4Rec, pytest.param(SASRec, marks=pytest.mark.long)])
def test_onnxruntime_finds_the_same(
    kind: type[SequenceModel], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    network = network_of(model(kind, positions=POSITIONS[kind]))
    save_onnx(tmp_path / "model.onnx", Program(network, k=K, leaves_out_seen=True))
    assert capfd.readouterr() == ("", "")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    items, scores = session.run(None, {"items": matrix(HISTORIES).numpy()})
    wanted = expected(network, leaves_out_seen=True)
    np.testing.assert_array_equal(items, wanted[0].numpy())
    np.testing.assert_allclose(scores, wanted[1].numpy(), atol=1e-5)
    assert session.run(None, {"items": np.array([[4]])})[0].shape == (1, K)


def test_without_the_packages_of_onnx_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_onnx()
    monkeypatch.setattr("bert4rec.export.program.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="the packages onnx and onnxscript are not installed; type `pip install"):
        require_onnx()
