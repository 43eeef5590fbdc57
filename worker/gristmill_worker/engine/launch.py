"""One step on its way: tells the device all that a plan asks for, and reads what it found later.

Telling takes the host much less time than doing takes a GPU. So a step whose results nobody needs
at once is left under way while the host plans and launches the next one; what it picks goes into
that one without having been on the host. On a CPU host and device are the same, and all is there
when `launch` returns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from gristmill.types import RowError, TokenLogprob
from gristmill_worker.engine.decoding import Decoding
from gristmill_worker.engine.forward_batch import Unseen, build_forward_batch
from gristmill_worker.engine.grammar import Grammars
from gristmill_worker.engine.logprobs import ModelDistribution, Report
from gristmill_worker.engine.model_runner import ModelRunner
from gristmill_worker.engine.plan import Scheduled, SchedulerOutput
from gristmill_worker.engine.prompt_values import take_scores, take_states
from gristmill_worker.engine.row_errors import pick_apart, row_fault
from gristmill_worker.engine.sampler import NO_WISHES, Picks, SamplingRow, Unsampled
from gristmill_worker.models.row_kernels import RowKernels
from gristmill_worker.upload import Fetch, fetch


class Result(NamedTuple):
    """What a step found for one row of logits.

    `was_undecided`: the device did not know the token, so that what it computed behind it is wrong.
    """

    picked: int | Unsampled | RowError
    logprob: TokenLogprob | None
    was_undecided: bool


@dataclass(frozen=True, slots=True, eq=False)
class StepUnderWay:
    """A step that the device has been told. `results` waits until it is done."""

    plan: SchedulerOutput
    began_s: float
    #: Those that yield tokens, and what was picked: one entry for each of their rows of logits.
    ending: Sequence[Scheduled]
    picks: Picks
    errors: Mapping[int, RowError]
    distribution: ModelDistribution
    report: Report
    fetched: Callable[[], list[torch.Tensor]]
    #: It finds what the host has to look at before anything else can be planned.
    is_read_at_once: bool

    @property
    def unseen(self) -> Unseen:
        """The tokens that it picks, for the step behind it."""
        first = itertools.accumulate((item.num_logits for item in self.ending), initial=0)
        places = {item.seq.seq_id: i for item, i in zip(self.ending, first, strict=False)}
        return Unseen(self.picks.token_ids, places)

    def results(self) -> list[Result]:
        token_ids, *reported = self.fetched()
        codes: list[int] = token_ids.tolist()
        decided = self.picks.decided(codes)
        picked: list[int | Unsampled | RowError] = [*self.picks.seen(codes)]
        if decided:
            for i, token_id in decided.items():
                picked[i] = token_id
            sampled = [i if isinstance(i, int) else 0 for i in picked]
            logprobs = self.distribution.logprobs(sampled)
        else:
            logprobs = self.distribution.of_rows(self.report.seen(reported))
        for i, error in self.errors.items():
            picked[i] = error
        return [
            Result(one, logprob, i in decided)
            for i, (one, logprob) in enumerate(zip(picked, logprobs, strict=True))
        ]


class Launcher:
    """Without `may_wait` the host waits for the device nowhere in `launch`, but for what the
    prompts of scored rows give, and at the masks of grammars for its own threads."""

    def __init__(
        self,
        runner: ModelRunner,
        grammars: Grammars,
        row_kernels: RowKernels | None,
        *,
        block_size: int,
        may_wait: bool,
    ) -> None:
        self._runner = runner
        self._grammars = grammars
        self._row_kernels = row_kernels
        self._block_size = block_size
        self._may_wait = may_wait
        self.fetch: Fetch = fetch

    def launch(
        self,
        plan: SchedulerOutput,
        decodings: Mapping[str, Decoding],
        *,
        unseen: Unseen | None,
        now: float,
    ) -> StepUnderWay:
        """`unseen` are the tokens of the step before, where that is still under way."""
        scheduled = plan.scheduled
        batch = build_forward_batch(scheduled, self._block_size, self._runner.device, unseen)
        ending = [item for item in scheduled if item.reaches_end]
        with self._grammars.masks_for([decodings[item.seq.seq_id].grammar for item in ending]):
            logits = self._runner.run(batch)
        if batch.is_pooled:
            poolers = [decodings[item.seq.seq_id].pooler for item in scheduled]
            take_states(scheduled, poolers, self._runner.hidden_states())
        scores = self._runner.score(batch)
        if scores:
            take_scores(scheduled, scores)
        rows = [
            _sampling_row(item, decodings[item.seq.seq_id], draft)
            for item in ending
            for draft in range(item.num_logits)
        ]
        # Read before the Sampler changes the logits.
        distribution = ModelDistribution(logits, [row.params for row in rows], self._row_kernels)
        picks, errors = pick_apart(
            logits,
            rows,
            may_wait=self._may_wait,
            # What was copied may have been written over since.
            compute_again=lambda: self._runner.run(replace(batch, copies=None)),
        )
        report = distribution.report(picks.token_ids)
        return StepUnderWay(
            plan,
            now,
            ending,
            picks,
            errors,
            distribution,
            report,
            self.fetch(picks.token_ids, *report.tensors),
            is_read_at_once=batch.scored is not None or batch.is_pooled,
        )


def _sampling_row(item: Scheduled, decoding: Decoding, draft: int) -> SamplingRow:
    """How to pick what follows the last token of `item`, or the n-th of its drafts."""
    try:
        return decoding.sampling_row(item.end - item.seq.num_tokens + draft)
    except Exception as error:  # its grammar or tokenizer: code that is not ours
        item.seq.error = row_fault(error)
        return NO_WISHES
