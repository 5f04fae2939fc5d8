"""What reaches the tables in a whole run: training, validation, test and examples."""

from collections.abc import Mapping
from typing import Any

import pytest

from bert4rec.feed.batch import Lookup
from bert4rec.models.tables import Table
from bert4rec.training.run import run
from tests.runs import Make

pytestmark = pytest.mark.usefixtures("alone")


def test_neither_padding_nor_the_mask_token_and_every_id_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[int]] = []
    find = Table._find

    def recorded(self: Table, lookups: Mapping[str, Lookup]) -> Any:
        found.extend(lookup.ids.tolist() for lookup in lookups.values())
        return find(self, lookups)

    monkeypatch.setattr(Table, "_find", recorded)
    run(make(**{"training.loss": "gbce", "training.n_epochs": 1, "training.n_train_negatives": 20}))
    assert sum(map(len, found)) > 1000
    assert min(map(min, filter(None, found))) == 0
    assert all(len(ids) == len({*ids}) for ids in found)
