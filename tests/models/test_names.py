"""The names are those that models give their weights."""

from bert4rec.models.bert4rec import Bert4Rec
from bert4rec.models.names import ENCODER, HEAD, HEAD_BIAS, MASK, TABLE
from bert4rec.models.sasrec import SASRec
from bert4rec.models.sequence_model import SequenceModel
from bert4rec.models.tables.table import saved_name
from tests.models.networks import model


def test_all_weights_have_these_names() -> None:
    def names(kind: type[SequenceModel], head: str) -> set[str]:
        saved = map(saved_name, model(kind, head=head).state_dict())
        return {name for name in saved if not name.startswith(ENCODER)}

    assert names(Bert4Rec, "tied") == {TABLE, MASK}
    assert names(SASRec, "linear") == {TABLE, HEAD, HEAD_BIAS}
