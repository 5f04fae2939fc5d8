"""The prior of a program: rows of equal lengths, whose sums need no operation that an exported program cannot have."""

import torch
from torch import Tensor, nn

from bert4rec.models.prior import Prior, Source, factors_of


class PaddedPrior(nn.Module):
    """A prior of all items, for torch.export and ONNX."""

    def __init__(self, prior: Prior) -> None:
        super().__init__()
        self.n_last = prior.n_last
        self.sources = nn.ModuleList(
            PaddedSource(prior.sources[name], weights, prior.items.stop) for name, weights in prior.weights.items()
        )

    def forward(self, last: Tensor) -> Tensor:
        """Return what is added to the scores [B, V] after the `last` items [B, n_last], as `Prior.add` has it."""
        return torch.stack([source(last) for source in self.sources]).sum(0)


class PaddedSource(nn.Module):
    """A source of all `n_items`, with its `weights`."""

    ids: Tensor
    values: Tensor
    masses: Tensor | None
    bias: Tensor | None

    def __init__(self, source: Source, weights: list[float], n_items: int) -> None:
        super().__init__()
        self._kind, self._weights, self._n_items = source.kind, weights, n_items
        ids, values = source.padded()
        for name, tensor in (("ids", ids), ("values", values), ("masses", source.masses), ("bias", source.bias)):
            self.register_buffer(name, tensor)

    def forward(self, last: Tensor) -> Tensor:
        """Return the scores [B, V] after the `last` items [B, n], the newest first."""
        last = last[:, : self._kind.n_last]
        rows = last.clamp(min=0)
        values = self.values[rows] * factors_of(self._kind, last, self._weights, self.masses)[:, :, None]
        nothing = values.new_zeros(last.shape[0], self._n_items + 1)  # the last column takes the fill
        sums = nothing.scatter_add(1, self.ids[rows].long().flatten(1), values.flatten(1))[:, : self._n_items]
        if not self._kind.is_log:
            return sums
        scores = sums.log1p() if self.bias is None else sums.log1p() + self.bias
        return self._weights[0] * scores
