"""The kinds of models: what each is and needs, so that no other code has to ask which kind it is. Imports no torch."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of model, `name` as model.kind has it. The defaults are those of a kind that only counts."""

    name: str
    title: str  # in reports
    model: str = ""  # the class, with its module; "" = nothing is trained, and models/baselines.py has a scorer
    is_transformer: bool = False  # over histories: it continues any; else it knows the users of its dataset only
    is_causal: bool = False  # whether a position attends only to earlier positions and itself
    has_mask_token: bool = False  # whether a mask token after the history predicts the next item
    settings: tuple[str, ...] = ()  # keys of [model] that are keywords of the class
    size_arguments: tuple[str, ...] = ("n_items",)  # its keywords that say how large its tables are
    dropout: tuple[tuple[int, float], ...] = ((0, 0.1),)  # from so many interactions an item on, on average
    smallest_batch: int = 64  # on all processes
    is_in_run_names: bool = True  # of those that the program gives

    @property
    def is_trained(self) -> bool:
        """Return whether it has weights; a kind without them counts the training split, and that is all."""
        return bool(self.model)

    @property
    def learns_pairs(self) -> bool:
        """Return whether it is trained on pairs of a user and an item, perhaps rated, and not on windows."""
        return self.is_trained and not self.is_transformer

    @property
    def sample_name(self) -> str:
        """Return what a batch counts."""
        return "window" if self.is_transformer else "pair"

    @property
    def examples(self) -> str:
        """Return what the speed of a training counts."""
        return "sequences" if self.is_transformer else "pairs"

    def has_products(self, form: str) -> bool:
        """Return whether its scores are products of two vectors, as the exact softmax wants them; `form` as model."""
        return self.is_transformer or form != "neural"


_transformer = partial(
    Kind,
    is_transformer=True,
    settings=(
        "embed_dim", "n_heads", "n_layers", "ffn_dim", "max_len", "dropout", "positions", "input_norm", "times",
        "head", "output_bias",
    ),
    dropout=((100, 0.1), (30, 0.3), (0, 0.5)),
    smallest_batch=16,
)  # fmt: skip

POPULARITY = "popularity"

KINDS = {
    kind.name: kind
    for kind in (
        _transformer(
            name="bert4rec",
            title="Bert4Rec",
            model="bert4rec.models.sequence_model.Bert4Rec",
            has_mask_token=True,
            dropout=((100, 0.1), (0, 0.2)),  # what is masked is dropped already (docs/results.md)
            smallest_batch=64,  # a fifth of its positions are predicted, not all
            is_in_run_names=False,
        ),
        _transformer(name="sasrec", title="SASRec", model="bert4rec.models.sequence_model.SASRec", is_causal=True),
        Kind(
            name="matrix_factorization",
            title="Matrix factorisation",
            model="bert4rec.models.matrix_factorization.MatrixFactorization",
            settings=("embed_dim", "form", "dropout"),
            size_arguments=("n_items", "n_users"),
        ),
        Kind(name=POPULARITY, title="popularity"),
        Kind(name="recent_popularity", title="recent popularity"),
        Kind(name="markov", title="Markov"),
        Kind(name="transition_graph", title="transition graph"),
    )
}
UNTRAINED = tuple(name for name, kind in KINDS.items() if not kind.is_trained)
BASELINES = tuple(name for name in UNTRAINED if name != POPULARITY)  # beside that one, which every report has

# Pydantic takes the valid names from the table, which a type checker cannot.
if TYPE_CHECKING:
    KindName: TypeAlias = str
    UntrainedName: TypeAlias = str
else:
    KindName, UntrainedName = Literal[tuple(KINDS)], Literal[UNTRAINED]
