"""The kinds of sequence models, by model.kind."""

from bert4rec.models.bert4rec import Bert4Rec
from bert4rec.models.sasrec import SASRec
from bert4rec.models.sequence_model import SequenceModel

KINDS: dict[str, type[SequenceModel]] = {"bert4rec": Bert4Rec, "sasrec": SASRec}
