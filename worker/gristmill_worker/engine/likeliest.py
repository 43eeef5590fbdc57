"""The largest values of each row of a vocabulary, several times faster than by torch alone."""

from __future__ import annotations

import torch

#: Columns whose maximum is looked at in place of themselves.
_STRETCH = 32
#: The same where only one value is wanted.
_LONG_STRETCH = 512


def likeliest_of_all(
    logits: torch.Tensor,  # [S, V] float32
) -> tuple[torch.Tensor, torch.Tensor]:  # [S] each
    """What `logits.max(dim=-1)` gives: NaN where a row holds any, the lowest id among equals.

    On a CPU torch finds a maximum ten times faster than its place.
    """
    num_rows, vocab_size = logits.shape
    num_stretches = vocab_size // _LONG_STRETCH
    if logits.device.type != "cpu" or not num_stretches:
        values, ids = logits.max(dim=-1)
        return values, ids
    edge = num_stretches * _LONG_STRETCH
    stretches = logits[:, :edge].view(num_rows, num_stretches, _LONG_STRETCH)
    values, places = stretches.amax(dim=-1).max(dim=-1)
    offsets = stretches[torch.arange(num_rows), places].argmax(dim=-1)
    ids = places * _LONG_STRETCH + offsets
    if edge < vocab_size:
        rest, rest_ids = logits[:, edge:].max(dim=-1)
        is_larger = (rest > values) | (rest.isnan() & ~values.isnan())
        values = torch.where(is_larger, rest, values)
        ids = torch.where(is_larger, rest_ids + edge, ids)
    return values, ids


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
