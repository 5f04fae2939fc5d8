"""The kinds of models, by model.kind."""

from bert4rec.config.abilities import CAUSAL, TRANSFORMERS
from bert4rec.models.matrix_factorization import MatrixFactorization
from bert4rec.models.ranking_model import RankingModel
from bert4rec.models.sequence_model import Bert4Rec, SASRec, SequenceModel

KINDS: dict[str, type[RankingModel]] = {
    "bert4rec": Bert4Rec,
    "sasrec": SASRec,
    "matrix_factorization": MatrixFactorization,
}


def check_kinds(kinds: dict[str, type[RankingModel]]) -> None:
    """Raise `TypeError` for a kind of which `config/abilities.py`, which knows no torch, says something else."""
    for name, kind in kinds.items():
        is_transformer = issubclass(kind, SequenceModel)
        is_causal = issubclass(kind, SequenceModel) and kind.is_causal
        for table, tuple_name, is_so in ((TRANSFORMERS, "TRANSFORMERS", is_transformer), (CAUSAL, "CAUSAL", is_causal)):
            if (name in table) != is_so:
                advice = f'{"add" if is_so else "remove"} "{name}"'
                raise TypeError(f"{kind.__name__}: {tuple_name} in config/abilities.py says otherwise; {advice} there")


check_kinds(KINDS)
