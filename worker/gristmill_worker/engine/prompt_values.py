"""What a step finds out about the tokens of prompts, handed to the Sequences that asked for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import torch

from gristmill.types import TokenLogprob
from gristmill_worker.engine.plan import Scheduled
from gristmill_worker.engine.pooling import Pooler
from gristmill_worker.engine.row_errors import invalid_output
from gristmill_worker.engine.sampler import Unsampled


def take_states(
    scheduled: Iterable[Scheduled],
    poolers: Sequence[Pooler | None],
    states: torch.Tensor,  # [T, hidden_size]
) -> None:
    """Hand the last hidden states of a step to the rows that pool them."""
    start = 0
    for item, pooler in zip(scheduled, poolers, strict=True):
        if pooler is not None:
            of_item = states[start : start + item.num_tokens]
            pooler.take(of_item, begin=item.begin)
        start += item.num_tokens


def take_scores(scheduled: Iterable[Scheduled], scores: Iterable[TokenLogprob]) -> None:
    """Hand the log-probabilities that a step found to the Sequences whose prompts they are of."""
    found = iter(scores)
    for item in scheduled:
        of_item = list(itertools.islice(found, len(item.newly_scored)))
        item.seq.scored += of_item
        if any(math.isnan(one.logprob) for one in of_item):
            item.seq.error = invalid_output(Unsampled.NOT_FINITE.value, at=item.begin)
