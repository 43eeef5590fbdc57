"""Log-probabilities of tokens in the model's own distribution, for the rows that ask.

They are read from the logits as the model gave them, before penalties, logit_bias, temperature and
limits, so that a value means the same whatever the row's parameters are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gristmill.types import SamplingParams, TokenLogprob
from gristmill_worker.engine.likeliest import likeliest
from gristmill_worker.models.row_kernels import RowKernels

#: Rows at a time: so that their vocabularies stay in the caches of a CPU, or take little of a GPU.
_ROWS_AT_ONCE = {"cpu": 16, "cuda": 32}


class ModelDistribution:
    """Remembers the logits of the rows that ask for log-probabilities; others cost nothing."""

    @torch.inference_mode()
    def __init__(
        self,
        logits: torch.Tensor,  # [S, vocab_size] float32, may be changed afterwards
        params: Sequence[SamplingParams],
        row_kernels: RowKernels | None = None,
    ) -> None:
        self._params = params
        self._row_kernels = row_kernels
        self._asking = [i for i, p in enumerate(params) if p.logprobs is not None]
        self._logits = logits[self._asking] if self._asking else logits[:0]

    @torch.inference_mode()
    def logprobs(self, token_ids: Sequence[int]) -> list[TokenLogprob | None]:
        """What is to be reported of each row, whose sampled token is given; None: nothing."""
        reports: list[TokenLogprob | None] = [None] * len(self._params)
        found = report(
            self._logits,
            [token_ids[i] for i in self._asking],
            [self._params[i].logprobs or 0 for i in self._asking],
            self._row_kernels,
        )
        for i, of_row in zip(self._asking, found, strict=True):
            reports[i] = of_row
        return reports


def report(
    logits: torch.Tensor,  # [R, vocab_size] float32
    token_ids: Sequence[int],
    num_top: Sequence[int],
    row_kernels: RowKernels | None = None,
) -> list[TokenLogprob]:
    """The log-probability of one token in each row, with as many of the likeliest ones as asked."""
    at_once = _ROWS_AT_ONCE.get(logits.device.type, 32)
    reports: list[TokenLogprob] = []
    for begin in range(0, len(token_ids), at_once):
        some = slice(begin, begin + at_once)
        reports += _report(logits[some], token_ids[some], num_top[some], row_kernels)
    return reports


def _report(
    logits: torch.Tensor,
    token_ids: Sequence[int],
    num_top: Sequence[int],
    row_kernels: RowKernels | None,
) -> list[TokenLogprob]:
    log_total = _log_total(logits, row_kernels)
    sampled = torch.tensor(token_ids, device=logits.device)[:, None]
    of_sampled = (logits.gather(-1, sampled) - log_total).float().squeeze(-1).tolist()
    if not max(num_top):
        return [TokenLogprob(value) for value in of_sampled]
    values, ids = likeliest(logits, min(max(num_top), logits.shape[-1]))
    of_top = (values - log_total).float().tolist()
    reports = []
    for value, row_ids, row_values, num in zip(
        of_sampled, ids.tolist(), of_top, num_top, strict=True
    ):
        top = zip(row_ids[:num], row_values[:num], strict=True)
        reports.append(TokenLogprob(value, tuple(pair for pair in top if pair[1] > float("-inf"))))
    return reports


def _log_total(
    logits: torch.Tensor, row_kernels: RowKernels | None
) -> torch.Tensor:  # [R, 1] float64
    """The logarithm of the sum of e^logit."""
    if row_kernels is not None:
        return row_kernels.log_sum_exp(logits)[:, None]
    largest = logits.amax(dim=-1, keepdim=True).double()
    # In float64 and rounded at the end, so that the order of the sum does not show.
    return (logits - largest).exp_().sum(dim=-1, keepdim=True).log() + largest
