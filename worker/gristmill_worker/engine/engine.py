"""The Engine: schedule, launch, take in. One call of `step` is one iteration.

With `asynchronous` the step that is launched stays under way, and the one before it is taken in
while the device works. A row goes on with a token that only the device knows; if it turns out to
have ended with it, or to have been cancelled, what was computed behind it is dropped. All steps
run on one stream, in their order: so a Block can be given on as soon as its Sequence has ended,
although a step under way still writes to it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gristmill.types import Job, RowError, TokenLogprob
from gristmill_worker.attention.base import AttentionBackend
from gristmill_worker.attention.reference import ReferenceAttention
from gristmill_worker.engine.answer import answer, generated
from gristmill_worker.engine.base import NOTHING, Finished, Generated, StepOutput
from gristmill_worker.engine.block_manager import BlockManager
from gristmill_worker.engine.decoding import Decoding
from gristmill_worker.engine.grammar import Grammars
from gristmill_worker.engine.kv_cache import KVCache, num_blocks_in
from gristmill_worker.engine.launch import Launcher, Result, StepUnderWay
from gristmill_worker.engine.model_runner import ModelRunner
from gristmill_worker.engine.plan import Scheduled, SchedulerOutput
from gristmill_worker.engine.row_errors import invalid_output, refusal, row_fault
from gristmill_worker.engine.sampler import Unsampled
from gristmill_worker.engine.scheduler import Drafting, Scheduler
from gristmill_worker.engine.sequence import Sequence
from gristmill_worker.engine.token_bytes import TokenBytes
from gristmill_worker.models.loader import LoadedModel


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of the Engine.

    `kv_cache_bytes` is what the caller found free for the KV cache. `expected_output_tokens` is
    what admission expects of a row until rows have finished and it has learned better.
    `decode_graphs` holds decode steps as CUDA graphs, where model and attention allow it.
    `draft_fixed_tokens` is what a step costs beyond its tokens, in the time of one token, and so
    says when draft tokens pay (drafter.py); 0 turns drafts off. `asynchronous` plans and launches a
    step while the device works on the one before: of use where the device is not the host.
    """

    kv_cache_bytes: int
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    prefix_caching: bool = True
    expected_output_tokens: float = 128.0
    decode_graphs: bool = False
    draft_fixed_tokens: int = 0
    asynchronous: bool = False


@dataclass(slots=True)
class _Taken:
    """What the steps gave that were taken in."""

    ended: list[Sequence] = field(default_factory=list)
    advanced: list[str] = field(default_factory=list)
    num_rows: int = 0
    num_known_tokens: int = 0
    num_decoding: int = 0
    num_first: int = 0


class ContinuousBatchingEngine:
    """See base.Engine. All memory of the KV cache is reserved here, at the start.

    Raises OutOfMemory when not even one Block fits into `kv_cache_bytes`.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        *,
        attention: AttentionBackend | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_blocks = num_blocks_in(
            config.kv_cache_bytes,
            loaded,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
        )
        #: Longest prompt plus output: what the model knows and the cache holds for one row alone.
        self.max_model_len = min(loaded.max_model_len, self.num_blocks * config.block_size)
        self._loaded = loaded
        self._config = config
        self._clock = clock
        self.block_manager = BlockManager(
            self.num_blocks, config.block_size, prefix_caching=config.prefix_caching
        )
        self.scheduler = Scheduler(
            self.block_manager,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            expected_output_tokens=config.expected_output_tokens,
            drafting=Drafting(config.draft_fixed_tokens, self.max_model_len)
            if config.draft_fixed_tokens
            else None,
            foresees_up_to=self.max_model_len if config.asynchronous else None,
        )
        parameter = next(loaded.model.parameters())
        kv_cache = KVCache(
            loaded.layers,
            self.num_blocks,
            config.block_size,
            dtype=parameter.dtype,
            device=parameter.device,
        )
        self._runner = ModelRunner(
            loaded.model,
            kv_cache,
            attention or ReferenceAttention(),
            loaded.row_kernels,
            loaded.adapters,
        )
        if config.decode_graphs:
            self._runner.capture_decode(
                max_num_seqs=config.max_num_seqs, max_model_len=self.max_model_len
            )
        self._token_bytes = TokenBytes(loaded.tokenizer)
        self._grammars = Grammars(
            loaded.tokenizer, vocab_size=loaded.vocab_size, eos_token_ids=loaded.eos_token_ids
        )
        self._launcher = Launcher(
            self._runner,
            self._grammars,
            loaded.row_kernels,
            block_size=config.block_size,
            may_wait=not config.asynchronous,
        )
        self._under_way: StepUnderWay | None = None
        self._live: dict[str, Sequence] = {}
        self._decoding: dict[str, Decoding] = {}
        self._ended_at_add: list[Sequence] = []
        self._num_arrivals = 0

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def max_num_seqs(self) -> int:
        return self._config.max_num_seqs

    def add(self, seq_id: str, job: Job, resume: Generated = NOTHING) -> None:
        assert seq_id not in self._live, f"{seq_id} is live already"
        self._num_arrivals += 1
        seq = Sequence(seq_id, job, self._num_arrivals, resume)
        self._live[seq_id] = seq
        decoding = Decoding(
            seq,
            self._loaded.tokenizer,
            self._loaded.eos_token_ids,
            now=self._clock(),
            grammar=self._grammars.state(
                seq.params.grammar, num_prompt_tokens=seq.num_prompt_tokens
            ),
        )
        self._decoding[seq_id] = decoding
        if seq.finish_reason is None and resume.token_ids:
            self._look_for_the_end(seq)  # what had ended needs no room for one token more
        seq.error = seq.error or refusal(
            seq,
            self._loaded,
            max_model_len=self.max_model_len,
            num_kv_tokens=self.num_blocks * self._config.block_size,
            makes_vectors=seq.embedding is None or self._runner.makes_vectors,
        )
        if seq.has_ended:
            self._ended_at_add.append(seq)
        else:
            self.scheduler.add(seq)

    def cancel(self, seq_id: str) -> None:
        if seq_id in self._live:
            seq = self._live[seq_id]
            if seq in self._ended_at_add:
                self._ended_at_add.remove(seq)
            else:
                self.scheduler.finish([seq])
            self._forget(seq)

    def generated(self, seq_id: str) -> Generated:
        return generated(self._live[seq_id])

    def step(self) -> StepOutput:
        plan = self.scheduler.schedule()
        under_way = [] if self._under_way is None else [self._under_way]
        if plan.scheduled:
            under_way.append(self._launch(plan))
        stays = self._config.asynchronous and plan.scheduled and not under_way[-1].is_read_at_once
        self._under_way = under_way.pop() if stays else None
        if self._under_way is not None:
            self.scheduler.begin(plan)
        taken = _Taken()
        for step in under_way:
            self._take_in(step, taken)
        ended, self._ended_at_add = self._ended_at_add, []
        return StepOutput(
            finished=[self._finished(seq) for seq in (*ended, *taken.ended)],
            num_prefill_tokens=taken.num_known_tokens - taken.num_decoding,
            num_decode_tokens=len(taken.advanced) - taken.num_first,
            num_preempted=plan.num_preempted,
            num_rows=taken.num_rows,
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            kv_used_tokens=self._config.block_size * self.block_manager.num_used_blocks,
            advanced=taken.advanced,
        )

    def _launch(self, plan: SchedulerOutput) -> StepUnderWay:
        unseen = None if self._under_way is None else self._under_way.unseen
        try:
            return self._launcher.launch(plan, self._decoding, unseen=unseen, now=self._clock())
        except Exception:
            self.scheduler.forget_forks(plan)
            raise

    def _take_in(self, step: StepUnderWay, taken: _Taken) -> None:
        """Give each Sequence its next token, and more as far as its drafts were picked too.

        What the step computed of a Sequence that had ended by then, or was preempted or cancelled
        after it was planned, is dropped.
        """
        scheduled = [item for item in step.plan.scheduled if not item.is_void]
        self.scheduler.advance(step.plan)
        results = iter(step.results())
        now = self._clock()
        for item in step.ending:
            of_item = list(itertools.islice(results, item.num_logits))
            if item.is_void:
                continue
            seq = item.seq
            before = seq.num_generated_tokens
            self._take_in_row(item, of_item, now)
            num_new = seq.num_generated_tokens - before
            taken.advanced += [seq.seq_id] * num_new
            taken.num_decoding += before > 0
            taken.num_first += before == 0 and num_new > 0
        self._note_times(scheduled, step.began_s)
        taken.num_rows += len(scheduled)
        taken.num_known_tokens += sum(item.num_known_tokens for item in scheduled)
        ended = [item.seq for item in scheduled if item.seq.has_ended]
        self.scheduler.finish(ended)
        taken.ended += ended

    def _take_in_row(self, item: Scheduled, results: list[Result], now: float) -> None:
        num_accepted = 0
        for result, draft in zip(results, (*item.drafts, None), strict=True):
            if result.was_undecided:
                self.scheduler.make_void(item.seq)
            self._append(item.seq, result.picked, result.logprob, now)
            if item.seq.error or item.seq.finish_reason or result.picked != draft:
                break
            num_accepted += 1
        if item.drafts:
            self.scheduler.accept_drafts(item, num_accepted)

    def _append(
        self,
        seq: Sequence,
        picked: int | Unsampled | RowError,
        logprob: TokenLogprob | None,
        now: float,
    ) -> None:
        if seq.error is not None:
            return
        if isinstance(picked, RowError):
            seq.error = picked
            return
        decoding = self._decoding[seq.seq_id]
        if isinstance(picked, Unsampled):
            seq.error = invalid_output(decoding.problem(picked), at=seq.num_tokens)
            return
        seq.token_ids.append(picked)
        seq.times_ms.append(round((now - decoding.started_s) * 1000))
        if logprob is not None:
            seq.logprobs.append(logprob)
        self._look_for_the_end(seq)

    def _look_for_the_end(self, seq: Sequence) -> None:
        try:
            seq.finish_reason = self._decoding[seq.seq_id].finish_reason(self.max_model_len)
        except Exception as error:  # its grammar or tokenizer: code that is not ours
            seq.error = row_fault(error)

    def _note_times(self, scheduled: Iterable[Scheduled], began_s: float) -> None:
        now = self._clock()
        for item in scheduled:
            seq, stretches = item.seq, self._decoding[item.seq.seq_id].stretches
            if stretches.are_over:
                continue
            stretches.begin(began_s)
            if seq.num_generated_tokens or seq.has_ended:
                stretches.end_prefill(now)

    def _finished(self, seq: Sequence) -> Finished:
        decoding = self._decoding[seq.seq_id]
        self._forget(seq)
        if seq.error is not None:
            return Finished(seq.seq_id, error=seq.error)
        try:
            return answer(seq, decoding, self._token_bytes)
        except Exception as error:  # as above
            return Finished(seq.seq_id, error=row_fault(error))

    def _forget(self, seq: Sequence) -> None:
        del self._live[seq.seq_id], self._decoding[seq.seq_id]
