"""The plain network scores as the model that was trained, and programs find what it finds."""

import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bert4rec.dataset.histories import Rows
from bert4rec.evaluation.seen_items import LeavesOut, are_left_out
from bert4rec.evaluation.top_k import excluder, top_k
from bert4rec.feed.batch import Lookup
from bert4rec.models.prior import Prior
from bert4rec.models.sequence_model import Bert4Rec, SASRec, SequenceModel
from bert4rec.runtime.errors import SettingsError
from bert4rec.serving.export import card
from bert4rec.serving.histories import ItemIds
from bert4rec.serving.network import Network
from bert4rec.serving.program import Program, require_onnx
from bert4rec.serving.recommender import Recommender
from tests.conftest import long
from tests.models.networks import MAX_LEN, N_ITEMS, model
from tests.serving.conftest import LEAVING, SETTINGS, Written, network_of, random_prior

WHOLE = [[2, 3, 4], [37], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]]


class BothWays(SASRec):
    """Sees the whole history, and asks without a mask token."""

    kind = replace(SASRec.kind, is_causal=False)


class AskingByMask(Bert4Rec):
    """Sees what comes before, and asks by a mask token."""

    kind = replace(Bert4Rec.kind, is_causal=True)


KINDS = pytest.mark.parametrize("kind", [Bert4Rec, SASRec, BothWays, AskingByMask])
SHAPES = pytest.mark.parametrize(
    ("head", "positions", "times"),
    [("tied", "rotary", "history"), ("linear", "learned", "none"), ("tied", "learned", "target"),
     long("linear", "rotary", "none")],
)  # fmt: skip


@KINDS
@SHAPES
@torch.no_grad()
def test_scores_are_those_of_the_model(kind: type[SequenceModel], head: str, positions: str, times: str) -> None:
    trained = model(kind, head=head, positions=positions, input_norm=positions == "rotary", times=times)
    ids, lengths = [item for items in WHOLE for item in items], [len(items) for items in WHOLE]
    seconds, at = np.cumsum(np.arange(len(ids)) ** 3), np.array([40, 60, 10**6])
    known = {} if times == "none" else {"times": seconds, "target_times": at}
    asked = trained.inference_batch(Rows(np.array(ids, np.int32), np.array(lengths), **known), MAX_LEN, times)
    hidden, vectors = trained.encode_queries(asked, Lookup.of(torch.arange(N_ITEMS)))
    network = network_of(trained)
    assert network.max_len == MAX_LEN - 1
    values = torch.tensor(ids), torch.tensor(lengths), torch.from_numpy(seconds)
    found = network(*values, torch.from_numpy(at))
    torch.testing.assert_close(found @ network.item_vectors.T, hidden @ vectors.T)
    earlier = network(*values, torch.from_numpy(at - 5))
    assert torch.equal(earlier, found) == (times != "target")


# Longer than a history may be, of one item, of none, and with gaps.
HISTORIES = [[*range(MAX_LEN + 5)], [37], [], [3, -1, 1, -1, -1, 9], [5, 5, 5, 7]]
K = 10
PLAIN = pytest.mark.parametrize(("kind", "positions"), [(Bert4Rec, "rotary"), long(SASRec, "learned")])


def matrix(histories: list[list[int]], *, on_the_left: bool = False) -> Tensor:
    width = max(map(len, histories))
    padded = [([-1] * (width - len(items)), items) for items in histories]
    return torch.tensor([(fill + items) if on_the_left else (items + fill) for fill, items in padded])


def inputs(*, on_the_left: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Histories, k, the times of the items, and the query times."""
    items = matrix(HISTORIES, on_the_left=on_the_left)
    times = torch.randint(0, 10**8, items.shape, generator=torch.Generator().manual_seed(1)).cumsum(1)
    return items, torch.tensor(K), times, times.amax(1) + 77


@torch.no_grad()
def expected(
    network: Network, prior: Prior | None, leaves_out_seen: LeavesOut, histories: Tensor, _: Tensor, times: Tensor,
    at: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The best items and their scores by `Network`, `Prior` and `top_k`, for one history after the other."""
    best = []
    for history, seconds, instant in zip(histories, times, at, strict=True):
        known = torch.nonzero(history >= 0)[:, 0]
        if not len(known):
            best.append((torch.full((1, K), -torch.inf), torch.full((1, K), -1)))
            continue
        recent = known[-network.max_len :]
        hidden = network(history[recent], torch.tensor([len(recent)]), seconds[recent], instant[None])
        scores = hidden @ network.item_vectors.T
        if prior:
            prior.add(scores, F.pad(history[known].flip(0), (0, prior.n_last), value=-1)[None, : prior.n_last], 0)
        left_out = history[known][torch.from_numpy(are_left_out(leaves_out_seen, history[known].numpy()))]
        exclude = excluder(torch.zeros_like(left_out), left_out)
        best.append(top_k(scores, torch.eye(N_ITEMS), K, adjust=exclude))
    scores, items = zip(*best, strict=True)
    return torch.cat(items), torch.cat(scores)


@KINDS
@SHAPES
@torch.no_grad()
def test_it_finds_what_the_network_finds(kind: type[SequenceModel], head: str, positions: str, times: str) -> None:
    network = network_of(model(kind, head=head, positions=positions, input_norm=positions == "rotary", times=times))
    for leaves_out_seen, prior in ((True, random_prior()), (False, None), (LEAVING, None)):
        program = Program(network, leaves_out_seen=leaves_out_seen, prior=prior)
        for on_the_left in (False, True):
            asked = inputs(on_the_left=on_the_left)
            items, scores = program(*asked[: len(program.inputs)])
            wanted = expected(network, prior, leaves_out_seen, *asked)
            assert torch.equal(items, wanted[0])
            torch.testing.assert_close(scores, wanted[1])


@pytest.mark.parametrize(("kind", "times"), [long(SASRec, "target"), long(Bert4Rec, "history")])
def test_files_of_a_network_that_knows_times_take_them(
    written: Callable[..., Written], kind: type[SequenceModel], times: str
) -> None:
    _, program, folder = written(kind, positions="rotary", input_norm=True, times=times)
    asked = inputs()[: len(program.inputs)]
    wanted = program(*asked)
    items, scores = torch.export.load(folder / "program.pt2").module()(*asked)
    assert torch.equal(items, wanted[0])
    torch.testing.assert_close(scores, wanted[1])
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    arrays = {name: values.numpy() for name, values in zip(program.inputs, asked, strict=True)}
    np.testing.assert_array_equal(session.run(None, arrays)[0], wanted[0].numpy())
    empty = {"items": np.empty((2, 0), np.int64), "times": np.empty((2, 0), np.int64), "k": np.array(2)}
    empty |= {"at": np.array([5, 6])} if times == "target" else {}
    assert session.run(None, empty)[0].tolist() == [[-1, -1]] * 2


@pytest.mark.long
@PLAIN
def test_a_program_in_a_file_needs_torch_alone_and_holds_no_pickle(
    written: Callable[..., Written], kind: type[SequenceModel], positions: str
) -> None:
    network, _, folder = written(kind, positions=positions)
    script = (
        "import sys, torch; "
        f"found, _ = torch.export.load('program.pt2').module()(torch.tensor({matrix(HISTORIES).tolist()}), "
        f"torch.tensor({K})); "
        "assert not {'bert4rec', 'torchrec', 'fbgemm_gpu', 'polars', 'datasets'} & {*sys.modules}; "
        "print(found.tolist())"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    assert ran.stdout == f"{expected(network, random_prior(), LEAVING, *inputs())[0].tolist()}\n"
    with zipfile.ZipFile(folder / "program.pt2") as archive:
        contents = {Path(name).name: archive.read(name) for name in archive.namelist()}
    assert contents["model.pt"] == b""  # of the inputs, in the only form that torch has for them: a pickle
    assert not any(zipfile.is_zipfile(io.BytesIO(content)) for content in contents.values())


@PLAIN
def test_files_find_the_same_for_any_histories_and_k(
    written: Callable[..., Written], kind: type[SequenceModel], positions: str
) -> None:
    network, program, folder = written(kind, positions=positions)
    by_torch = torch.export.load(folder / "program.pt2").module()
    by_onnx = onnxruntime.InferenceSession(folder / "model.onnx")

    def found(histories: Tensor, k: int) -> Tensor:
        items, scores = program(histories, torch.tensor(k))
        assert torch.equal(by_torch(histories, torch.tensor(k))[0], items)
        onnx_output = by_onnx.run(None, {"items": histories.numpy(), "k": np.array(k)})
        np.testing.assert_array_equal(onnx_output[0], items.numpy())
        np.testing.assert_allclose(onnx_output[1], scores.detach().numpy(), atol=1e-5)
        return items

    all_items = found(matrix(HISTORIES), N_ITEMS)
    assert torch.equal(all_items[:, :K], expected(network, random_prior(), LEAVING, *inputs())[0])
    for k in (1, 2, K, N_ITEMS + 1):
        assert torch.equal(found(matrix(HISTORIES), k), all_items[:, :k])
    assert found(torch.tensor([[4]]), K).shape == (1, K)
    assert found(torch.tensor([[1, 2], [3, 4]]), K).shape == (2, K)
    outside = [[-7, 3, N_ITEMS, 1, 10**9], [N_ITEMS, N_ITEMS + 1, -1, -1, -2]]
    assert torch.equal(found(torch.tensor(outside), K), found(torch.tensor([[3, 1], [-1, -1]]), K))
    for nothing in (torch.tensor(outside[1:]), torch.empty((2, 0), dtype=torch.int64)):
        assert found(nothing, 3).tolist() == [[-1, -1, -1]] * len(nothing)
    (few,) = found(torch.arange(N_ITEMS - 2)[None], N_ITEMS + 1).tolist()
    left = [*np.flatnonzero(~LEAVING[:-2]), N_ITEMS - 2, N_ITEMS - 1]
    assert (sorted(few[: len(left)]), few[len(left) :]) == (left, [-1] * (N_ITEMS - len(left)))
    assert b"program.py" not in (folder / "model.onnx").read_bytes()  # no paths of this machine


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(Bert4Rec, {"positions": "rotary"}), long(SASRec, {"positions": "rotary", "input_norm": True, "times": "target"})],
)
def test_the_examples_of_the_card_run_and_an_unknown_user_gets_popular_items(
    written: Callable[..., Written], kind: type[SequenceModel], settings: dict[str, Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    network, _, folder = written(kind, **settings)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    recent = {"recent_counts": np.arange(N_ITEMS) // 2 % 5} if network.knows_times else {}
    counts, originals = np.arange(N_ITEMS) % 9, pa.array(range(100, 100 + N_ITEMS))
    ids = ItemIds(originals, train_counts=counts, again=lambda: ~LEAVING, **recent)
    ids.write_lines(tmp_path / "items.jsonl")
    card_settings = SETTINGS | ({"fallback": ids.fallback} if recent else {})
    card_settings |= {"config": {"model": SETTINGS["config"]["model"] | {"times": network.times}}}
    text = card(card_settings, ["pt2", "onnx"], k=4, example=[100, 101], report={})
    codes = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.export, "load", cache(torch.export.load))  # slow
    example, printed = "[100, 101]", []
    for code in codes:
        assert example in code
        for history in (example, '["?", "!"]'):
            exec(code.replace(example, history), {})
            printed.append(json.loads(capsys.readouterr().out))
    known = printed[0]
    if not network.knows_times:
        model = Recommender(network, ids, prior=random_prior())
        known = [one.item for one in model.recommend([[100, 101]], 4, leave_out_seen="by_item")[0]]
    assert printed == [known, ids.of(ids.most_popular(4).tolist())] * 2


def test_without_the_packages_of_onnx_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    require_onnx()
    monkeypatch.setattr("bert4rec.serving.program.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"--format=onnx: .*pip install \"bert4rec-torchrec\[onnx\]\""):
        require_onnx()
