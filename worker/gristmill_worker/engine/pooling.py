"""From the last hidden states of a prompt to its vector, with the same bits however it is cut.

The states come chunk by chunk. A mean is summed in float64, token by token, so that neither the
chunks nor the other rows of a step change its bits (on a CPU).
"""

from __future__ import annotations

import torch

from gristmill.embedding import EmbeddingParams, Pooling
from gristmill.types import RowError

#: The error of a row whose vector cannot be told.
NOT_FINITE = RowError(
    "model_output_invalid",
    "The model's hidden states for this input hold NaN, or make a vector without a direction.",
    status_code=500,
    type="server_error",
)


class Pooler:
    """Takes the hidden states of one Sequence in the order of its tokens."""

    def __init__(self, params: EmbeddingParams) -> None:
        self._params = params
        self._pooled = torch.empty(0)

    @torch.inference_mode()
    def take(self, hidden: torch.Tensor, *, begin: int) -> None:
        """The states [n, hidden_size] of tokens `begin` and following. 0 begins anew."""
        match self._params.pooling:
            case Pooling.LAST:
                self._pooled = hidden[-1].double()
            case Pooling.CLS:
                if begin == 0:
                    self._pooled = hidden[0].double()
            case Pooling.MEAN:
                states = hidden.double()
                if begin > 0:
                    states = torch.cat([self._pooled[None], states])
                # A running sum adds one after the other, where sum() adds in any order it likes.
                self._pooled = states.cumsum(0)[-1]

    @torch.inference_mode()
    def vector(self, num_tokens: int) -> tuple[float, ...] | None:
        """The vector, in 32-bit floats; None when it holds NaN or has no direction to keep."""
        pooled = self._pooled
        if self._params.pooling is Pooling.MEAN:
            pooled = pooled / num_tokens
        pooled = pooled[: self._params.dimensions]
        if self._params.normalize:
            pooled = pooled / pooled.square().sum().sqrt()
        if not bool(pooled.isfinite().all()):
            return None
        return tuple(pooled.float().tolist())
