"""Several answers to one Job: what the Engine computes for them, and their sum as one result.

The Engine knows nothing of it: each Choice is a Sequence of its own with one prompt and a seed of
its own, and the prefix cache sees to it that what prompts share is computed once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gristmill.grammar import violation
from gristmill.types import Choice, FinishReason, Job, JobKind, RowError, RowResult, Times, Usage
from gristmill_worker.engine.base import Finished, Generated


def computed_choices(job: Job) -> range:
    """The Choices that take a Sequence each: those of one prompt that are equal, since nothing is
    drawn, take one together."""
    n = job.params.n
    are_equal = job.params.greedy or job.kind is not JobKind.GENERATE
    return range(0, len(job.prompts) * n, n if are_equal else 1)


def of_choice(job: Job, choice_idx: int) -> Job:
    """The Job of one Choice alone: one prompt, one answer, which ends at its row limit."""
    if len(job.prompts) == job.params.n == 1:
        return _within_limit(job)
    prompt = job.prompts[choice_idx // job.params.n]
    seed = choice_seed(job.params.seed, choice_idx)
    return _within_limit(
        replace(job, prompts=(prompt,), params=replace(job.params, n=1, seed=seed))
    )


def _within_limit(job: Job) -> Job:
    num_left = job.row_limit - len(job.prompt_ids)
    if not job.row_limit or job.params.max_tokens <= num_left:
        return job
    return replace(job, params=replace(job.params, max_tokens=num_left))


def cut(resume: Generated, job: Job) -> Generated:
    """What the Job of one Choice goes on from, where its limit was lowered since that was made."""
    most = job.params.max_tokens
    if len(resume.token_ids) <= most:
        return resume
    return Generated(resume.token_ids[:most], resume.times_ms[:most], resume.logprobs[:most])


def choice_seed(seed: int, choice_idx: int) -> int:
    """64 bits that depend on the row's seed and the Choice alone; the first one has the row's."""
    if choice_idx == 0:
        return seed
    digest = hashlib.sha256(f"choice {seed}/{choice_idx}".encode()).digest()
    return int.from_bytes(digest[:8])


def assemble(job_idx: int, job: Job, ended: Mapping[int, Finished], *, at: int) -> RowResult:
    """The result of a Job whose Choices have all ended, or one of which has failed."""
    error = next((end.error for end in ended.values() if end.error), None)
    error = error or _violation(job, ended.values())
    if error is not None:
        return RowResult(job_idx, job.rows, error=error, finished_at=at)
    ends = [ended[i] for i in computed_choices(job)]
    copies = len(job.prompts) * job.params.n // len(ends)
    firsts = ends[:: job.params.n // copies]  # of each prompt the one that counts it
    times = [end.generated.times_ms for end in ends if end.generated.times_ms]
    num_gaps = sum(len(times_ms) - 1 for times_ms in times)
    return RowResult(
        job_idx=job_idx,
        rows=job.rows,
        usage=Usage(
            sum(end.usage.prompt_tokens for end in firsts),
            copies * sum(end.usage.completion_tokens for end in ends),
            sum(end.usage.cached_tokens for end in firsts),
        ),
        choices=tuple(choice for end in ends for choice in [_choice(end)] * copies),
        finished_at=at,
        ttft_s=min((times_ms[0] for times_ms in times), default=0) / 1000,
        times=_times(ends),
        itl_s=sum(times_ms[-1] - times_ms[0] for times_ms in times) / 1000 / max(num_gaps, 1),
    )


def _times(ends: Sequence[Finished]) -> Times:
    """Of each stretch the longest of any Choice."""
    decoded = [end.generated.times_ms for end in ends if end.generated.times_ms]
    prefills = [end.prefill_s for end in ends]
    return Times(
        queue_s=max(end.queue_s for end in ends),
        prefill_s=max((s for s in prefills if s is not None), default=None),
        decode_s=max((times_ms[-1] - times_ms[0] for times_ms in decoded), default=0) / 1000,
    )


def _violation(job: Job, ends: Iterable[Finished]) -> RowError | None:
    """A finished document that a strict schema does not allow. Where one was cut, its
    finish_reason says so."""
    if job.params.grammar is None:
        return None
    for end in ends:
        if end.finish_reason is FinishReason.STOP:
            problem = violation(job.params.grammar, end.text)
            if problem is not None:
                return RowError(
                    "model_output_invalid",
                    f"The answer does not satisfy its strict schema: {problem}. A stop string may "
                    "have cut it; else leave `strict` out and check it yourself.",
                    status_code=500,
                    type="server_error",
                )
    return None


def _choice(end: Finished) -> Choice:
    assert end.finish_reason is not None, "an answer says why it ended"
    return Choice(
        tuple(end.generated.token_ids),
        end.text,
        end.finish_reason,
        tuple(end.generated.logprobs),
        tuple(end.text_offsets),
        end.token_bytes,
        tuple(end.scored),
        tuple(end.embedding),
    )
