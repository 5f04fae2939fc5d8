"""Programs in files, each written once."""

from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bert4rec.models.prior import PRIOR_SOURCES, Prior, Source
from bert4rec.models.sequence_model import Bert4Rec, SequenceModel
from bert4rec.models.tables import saved_name
from bert4rec.serving.network import Network, make_network
from bert4rec.serving.program import Program, save_onnx, save_pt2
from tests.models.networks import HEADS, MAX_LEN, N_ITEMS, WIDTH, model

SETTINGS: dict[str, Any] = {
    "config": {"model": {"kind": "sasrec", "max_len": 50, "embed_dim": 64}}, "n_items": 1234, "item_ids": "text",
    "leaves_out_seen": False, "source": "table",
}  # fmt: skip


LEAVING = np.arange(N_ITEMS) % 3 > 0  # of three items one may come again


class Written(NamedTuple):
    """A network, its program with `random_prior` that leaves out seen items by `LEAVING`, the folder of both files."""

    network: Network
    program: Program
    folder: Path


def random_prior() -> Prior:
    """A prior of all sources, with at most nine weights an item."""
    draw, sources = torch.Generator().manual_seed(9), {}
    for name, kind in PRIOR_SOURCES.items():
        ids = torch.randint(N_ITEMS, (N_ITEMS, 9), generator=draw).sort(1).values
        ids[F.pad(ids.diff(dim=1) == 0, (1, 0))] = -1
        values, masses, bias = (torch.rand(size, generator=draw) for size in (ids.shape, (N_ITEMS,), (N_ITEMS,)))
        more = {"masses": masses, "bias": bias} if kind.is_normalized else {}
        sources[name] = Source(name, [(ids, values)], range(N_ITEMS), torch.device("cpu"), **more)
    return Prior(
        sources, range(N_ITEMS), {name: [0.5, -0.3][: len(kind.decays)] for name, kind in PRIOR_SOURCES.items()}
    )


def network_of(trained: SequenceModel) -> Network:
    tensors = {saved_name(name): value for name, value in trained.state_dict().items()}
    shape: dict[str, Any] = {"embed_dim": WIDTH, "n_heads": HEADS, "n_layers": 2, "ffn_dim": 24}
    shape |= {"max_len": MAX_LEN, "dropout": 0.0}
    shape |= {"positions": "rotary" if trained.encoder.positions is None else "learned", "times": trained.times}
    shape |= {
        "input_norm": trained.encoder.input_norm,
        "kind": "bert4rec" if isinstance(trained, Bert4Rec) else "sasrec",
    }
    return make_network(tensors, shape, is_causal=trained.kind.is_causal)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Written]:
    @cache
    def write(kind: type[SequenceModel], **settings: Any) -> Written:
        network, folder, printed = network_of(model(kind, **settings)), tmp_path_factory.mktemp("program"), StringIO()
        program = Program(network, leaves_out_seen=LEAVING, prior=random_prior())
        save_pt2(folder / "program.pt2", program)
        with redirect_stdout(printed), redirect_stderr(printed):
            save_onnx(folder / "model.onnx", program)
        assert printed.getvalue() == ""
        return Written(network, program, folder)

    return write
