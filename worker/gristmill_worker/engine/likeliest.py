"""The largest values of each row of a vocabulary, several times faster than by torch.topk alone."""

from __future__ import annotations

import torch

#: Columns whose maximum is looked at in place of themselves.
_STRETCH = 32


def likeliest(
    logits: torch.Tensor,  # [S, V] float32
    num: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # [S, num] each
    """The `num` largest values of each row, largest first, and their token ids.

    The stretches with the `num` largest maxima hold them: a value elsewhere has `num` others, those
    maxima, that are at least as large. Of equal values it is open which ones are found.
    """
    num_rows, vocab_size = logits.shape
    num_stretches = vocab_size // _STRETCH
    if num * 2 > num_stretches:
        values, ids = logits.topk(num, dim=-1)
        return values, ids
    edge = num_stretches * _STRETCH
    stretches = logits[:, :edge].view(num_rows, num_stretches, _STRETCH)
    places = stretches.amax(dim=-1).topk(num, dim=-1, sorted=False).indices  # [S, num]
    offsets = torch.arange(_STRETCH, device=logits.device)
    ids = (places[:, :, None] * _STRETCH + offsets).flatten(1)
    # Columns behind the last stretch are always looked at.
    rest = torch.arange(edge, vocab_size, device=logits.device).expand(num_rows, -1)
    ids = torch.cat((ids, rest), dim=-1)
    values, order = logits.gather(-1, ids).topk(num, dim=-1)
    return values, ids.gather(-1, order)
