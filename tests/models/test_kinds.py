"""The kinds of models, and the settings that name them."""

from typing import get_args

from bert4rec.config.abilities import UNTRAINED
from bert4rec.config.tables import Model
from bert4rec.models.kinds import KINDS


def test_every_kind_can_be_set() -> None:
    assert set(get_args(Model.model_fields["kind"].annotation)) == {*KINDS, *UNTRAINED}
