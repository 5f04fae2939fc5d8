"""The kinds of models, and the settings that name them."""

from typing import get_args

import pytest

from bert4rec.config.abilities import UNTRAINED
from bert4rec.config.tables import Model
from bert4rec.models.bert4rec import Bert4Rec
from bert4rec.models.kinds import KINDS, check_kinds
from bert4rec.models.matrix_factorization import MatrixFactorization
from bert4rec.models.sasrec import SASRec


def test_every_kind_can_be_set() -> None:
    assert set(get_args(Model.model_fields["kind"].annotation)) == {*KINDS, *UNTRAINED}


def test_what_is_known_of_a_kind_without_its_class_is_so() -> None:
    check_kinds(KINDS)
    for kinds in ({"new": SASRec}, {"sasrec": Bert4Rec}, {"bert4rec": SASRec}, {"sasrec": MatrixFactorization}):
        with pytest.raises(
            TypeError, match=rf'in config/abilities.py says otherwise; (add|remove) "{next(iter(kinds))}"'
        ):
            check_kinds(kinds)
