"""What reaches the tables in a whole run: training, validation, test and examples."""

from typing import Any

import pytest
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from bert4rec.dataset.schema import FIRST_ITEM_ID
from bert4rec.models.tables.table import Table
from bert4rec.training.run import run
from tests.runs import Make

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of the libraries about themselves
]


@pytest.mark.parametrize(
    ("kind", "loss", "mode"),
    [("bert4rec", "softmax", "dmp"), ("bert4rec", "gbce", "ddp"), ("sasrec", "sampled_softmax", "dmp")],
)
def test_neither_padding_nor_the_mask_token_and_every_id_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, kind: str, loss: str, mode: str
) -> None:
    lookups: list[list[int]] = []
    find = Table._find

    def recorded(self: Table, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        lookups.extend(features[name].values().tolist() for name in features.keys())  # noqa: SIM118  # it is no dict
        return find(self, features)

    monkeypatch.setattr(Table, "_find", recorded)
    settings: dict[str, Any] = {"model.kind": kind, "training.loss": loss, "parallelism.mode": mode}
    run(make(**settings, **{"training.n_epochs": 1, "training.n_train_negatives": 20}))
    assert sum(map(len, lookups)) > 1000
    assert min(map(min, filter(None, lookups))) == FIRST_ITEM_ID
    assert all(len(ids) == len({*ids}) for ids in lookups)
