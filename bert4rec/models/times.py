"""Time embeddings of a transformer, in plain torch: lengths of gaps, and instants of prediction."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GAPS_PER_OCTAVE = 2  # kinds of gaps between a time and its double
N_GAPS = 64  # the last kind is of more than a century
BETWEEN_DATES = 122 * 86_400  # seconds; a third of a year
N_DATES = 400  # from 1970 to 2103


def kind_of_gap(seconds: Tensor) -> Tensor:
    """Return the bucket of gaps [...] int64, of `N_GAPS`, each √2 times as long as the one before.

    >>> kind_of_gap(torch.tensor([0, 1, 2, 60, 86_400])).tolist()
    [0, 2, 3, 11, 32]
    """
    octaves = torch.log2(1.0 + seconds.clamp(min=0))
    return (GAPS_PER_OCTAVE * octaves).long().clamp(max=N_GAPS - 1)


class Dates(nn.Module):
    """A vector [d] for every instant, which moves in straight lines between those of dates a third of a year apart.

    Added to a hidden state it makes what is popular at the time count for more, by products with the items' vectors.
    Around instants that training has not seen the vectors stay zero.
    """

    def __init__(self, embed_dim: int, device: torch.device | str = "meta") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(N_DATES, embed_dim, device=device))

    def forward(self, instants: Tensor) -> Tensor:
        """Return vectors [..., d] of `instants` [...] int64, in seconds since 1970."""
        before = (instants // BETWEEN_DATES).clamp(0, N_DATES - 2)
        since = (instants - before * BETWEEN_DATES).clamp(0, BETWEEN_DATES)  # limits above 2**31 go wrong in ONNX
        share = since.to(self.weight.dtype)[..., None] / BETWEEN_DATES
        return torch.lerp(F.embedding(before, self.weight), F.embedding(before + 1, self.weight), share)
