"""The kinds of models, and the settings that name them."""

from typing import get_args

from bert4rec.config.abilities import CAUSAL, UNTRAINED
from bert4rec.config.tables import Model
from bert4rec.models.kinds import KINDS
from bert4rec.models.sequence_model import SequenceModel


def test_every_kind_can_be_set() -> None:
    assert set(get_args(Model.model_fields["kind"].annotation)) == {*KINDS, *UNTRAINED}


def test_what_is_known_of_a_kind_without_its_class_is_so() -> None:
    causal = {name for name, kind in KINDS.items() if issubclass(kind, SequenceModel) and kind.is_causal}
    assert causal == {*CAUSAL}
