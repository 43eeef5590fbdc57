"""Log-probabilities of tokens in the model's own distribution, for the rows that ask.

They are read from the logits as the model gave them, before penalties, logit_bias, temperature and
limits, so that a value means the same whatever the row's parameters are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gristmill.types import SamplingParams, TokenLogprob
from gristmill_worker.engine.likeliest import likeliest
from gristmill_worker.models.row_kernels import RowKernels
from gristmill_worker.upload import upload

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
        self._num_rows = len(params)
        self._row_kernels = row_kernels
        self._asking = [i for i, p in enumerate(params) if p.logprobs is not None]
        self._num_top = [params[i].logprobs or 0 for i in self._asking]
        self._row_idx = upload(torch.tensor(self._asking, dtype=torch.long), logits.device)
        # Copies, and no view: the memory of the logits is wanted for those of the next step.
        self._logits = logits.index_select(0, self._row_idx)

    @torch.inference_mode()
    def report(
        self,
        token_ids: torch.Tensor,  # [S] int64, sampled; one below 0 is none
    ) -> Report:
        """Of the rows that ask. The host does not wait for it."""
        if not self._asking:
            return Report((), ())
        sampled = token_ids.index_select(0, self._row_idx).clamp_(min=0)
        return _report(self._logits, sampled, self._num_top, self._row_kernels)

    def logprobs(self, token_ids: Sequence[int]) -> list[TokenLogprob | None]:
        """What is to be reported of each row, whose sampled token is given; None: nothing."""
        report = self.report(upload(torch.tensor(token_ids), self._logits.device))
        return self.of_rows(report.seen(report.tensors))

    def of_rows(self, found: Sequence[TokenLogprob]) -> list[TokenLogprob | None]:
        """What was `found` for those that ask, as one entry for each row."""
        of_rows: list[TokenLogprob | None] = [None] * self._num_rows
        for i, one in zip(self._asking, found, strict=True):
            of_rows[i] = one
        return of_rows


@dataclass(frozen=True, slots=True)
class Report:
    """Log-probabilities where the logits are, in portions of rows with three tensors each: of the
    sampled tokens [R], of the likeliest ones [R, K], and which these are."""

    num_top: Sequence[int]
    tensors: Sequence[torch.Tensor]

    def seen(self, tensors: Sequence[torch.Tensor]) -> list[TokenLogprob]:
        """One for each row, from the report's tensors, where the host can read them."""
        found: list[TokenLogprob] = []
        for begin in range(0, len(tensors), 3):
            columns = (tensor.tolist() for tensor in tensors[begin : begin + 3])
            for value, row_values, row_ids in zip(*columns, strict=True):
                num = self.num_top[len(found)]
                top = zip(row_ids[:num], row_values[:num], strict=True)
                seen = tuple(pair for pair in top if pair[1] > float("-inf"))
                found.append(TokenLogprob(value, seen))
        return found


def report(
    logits: torch.Tensor,  # [R, vocab_size] float32
    token_ids: Sequence[int],
    num_top: Sequence[int],
    row_kernels: RowKernels | None = None,
) -> list[TokenLogprob]:
    """The log-probability of one token in each row, with as many of the likeliest ones as asked."""
    given = upload(torch.tensor(token_ids, dtype=torch.long), logits.device)
    found = _report(logits, given, num_top, row_kernels)
    return found.seen(found.tensors)


def _report(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    num_top: Sequence[int],
    row_kernels: RowKernels | None,
) -> Report:
    at_once = _ROWS_AT_ONCE.get(logits.device.type, 32)
    tensors: list[torch.Tensor] = []
    for begin in range(0, len(num_top), at_once):
        some = slice(begin, begin + at_once)
        tensors += _portion(logits[some], token_ids[some], max(num_top[some]), row_kernels)
    return Report(num_top, tensors)


def _portion(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int, row_kernels: RowKernels | None
) -> Iterator[torch.Tensor]:
    log_total = _log_total(logits, row_kernels)
    yield (logits.gather(-1, token_ids[:, None]) - log_total).float().squeeze(-1)
    if num_top:
        values, ids = likeliest(logits, min(num_top, logits.shape[-1]))
        yield (values - log_total).float()
    else:
        ids = token_ids[:, None][:, :0]
        yield log_total[:, :0]
    yield ids


def _log_total(
    logits: torch.Tensor, row_kernels: RowKernels | None
) -> torch.Tensor:  # [R, 1] float64
    """The logarithm of the sum of e^logit."""
    if row_kernels is not None:
        return row_kernels.log_sum_exp(logits)[:, None]
    largest = logits.amax(dim=-1, keepdim=True).double()
    # In float64 and rounded at the end, so that the order of the sum does not show.
    return (logits - largest).exp_().sum(dim=-1, keepdim=True).log() + largest
