"""The kinds of models, by model.kind."""

from bert4rec.models.bert4rec import Bert4Rec
from bert4rec.models.matrix_factorization import MatrixFactorization
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.sasrec import SASRec

KINDS: dict[str, type[RankingModel]] = {
    "bert4rec": Bert4Rec,
    "sasrec": SASRec,
    "matrix_factorization": MatrixFactorization,
}
