"""The Engine: schedule, run, sample, take in. One call of `step` is one iteration."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gristmill.types import Job, RowError, TokenLogprob, Usage
from gristmill_worker.attention.base import AttentionBackend
from gristmill_worker.attention.reference import ReferenceAttention
from gristmill_worker.engine.base import NOTHING, Finished, Generated, StepOutput
from gristmill_worker.engine.block_manager import BlockManager
from gristmill_worker.engine.decoding import Decoding
from gristmill_worker.engine.forward_batch import build_forward_batch
from gristmill_worker.engine.grammar import Grammars
from gristmill_worker.engine.kv_cache import KVCache, num_blocks_in
from gristmill_worker.engine.logprobs import ModelDistribution
from gristmill_worker.engine.model_runner import ModelRunner
from gristmill_worker.engine.pooling import NOT_FINITE
from gristmill_worker.engine.prompt_values import take_scores, take_states
from gristmill_worker.engine.row_errors import invalid_output, refusal, row_fault, sample_apart
from gristmill_worker.engine.sampler import NO_WISHES, SamplingRow, Unsampled
from gristmill_worker.engine.scheduler import Drafting, Scheduled, Scheduler
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
    says when draft tokens pay (drafter.py); 0 turns drafts off.
    """

    kv_cache_bytes: int
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    prefix_caching: bool = True
    expected_output_tokens: float = 128.0
    decode_graphs: bool = False
    draft_fixed_tokens: int = 0


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
            loaded.model, kv_cache, attention or ReferenceAttention(), loaded.row_kernels
        )
        if config.decode_graphs:
            self._runner.capture_decode(
                max_num_seqs=config.max_num_seqs, max_model_len=self.max_model_len
            )
        self._token_bytes = TokenBytes(loaded.tokenizer)
        self._grammars = Grammars(
            loaded.tokenizer, vocab_size=loaded.vocab_size, eos_token_ids=loaded.eos_token_ids
        )
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
        seq.error = refusal(
            seq,
            self._loaded,
            max_model_len=self.max_model_len,
            num_kv_tokens=self.num_blocks * self._config.block_size,
            makes_vectors=seq.embedding is None or self._runner.makes_vectors,
        )
        if seq.error is None and seq.finish_reason is None and resume.token_ids:
            self._look_for_the_end(seq)
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
        return _generated(self._live[seq_id])

    def step(self) -> StepOutput:
        ended, self._ended_at_add = self._ended_at_add, []
        plan = self.scheduler.schedule()
        advanced: list[str] = []
        num_known_tokens = sum(item.num_known_tokens for item in plan.scheduled)
        num_decoding = num_first = 0
        if plan.scheduled:
            began_s = self._clock()
            batch = build_forward_batch(
                plan.scheduled, self._config.block_size, self._runner.device
            )
            ending = [item for item in plan.scheduled if item.reaches_end]
            grammars = [self._decoding[item.seq.seq_id].grammar for item in ending]
            with self._grammars.masks_for(grammars):
                logits = self._runner.run(batch)
            if batch.is_pooled:
                poolers = [self._decoding[item.seq.seq_id].pooler for item in plan.scheduled]
                take_states(plan.scheduled, poolers, self._runner.hidden_states())
            take_scores(plan.scheduled, self._runner.score(batch))
            rows = [
                self._sampling_row(item.seq, ahead)
                for item in ending
                for ahead in range(1 + len(item.drafts))
            ]
            self.scheduler.advance(plan)
            # Read before the Sampler changes the logits.
            distribution = ModelDistribution(
                logits, [row.params for row in rows], self._loaded.row_kernels
            )
            before = [item.seq.num_generated_tokens for item in ending]
            picked = sample_apart(logits, rows, compute_again=lambda: self._runner.run(batch))
            self._take_in(ending, picked, distribution)
            num_decoding = sum(1 for num in before if num)
            for item, num in zip(ending, before, strict=True):
                num_new = item.seq.num_generated_tokens - num
                advanced += [item.seq.seq_id] * num_new
                num_first += num == 0 and num_new > 0
            in_step = [item.seq for item in plan.scheduled if item.seq.has_ended]
            self._note_times(plan.scheduled, began_s)
            self.scheduler.finish(in_step)
            ended += in_step
        return StepOutput(
            finished=[self._finished(seq) for seq in ended],
            num_prefill_tokens=num_known_tokens - num_decoding,
            num_decode_tokens=len(advanced) - num_first,
            num_preempted=plan.num_preempted,
            num_rows=len(plan.scheduled),
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            kv_used_tokens=self._config.block_size * self.block_manager.num_used_blocks,
            advanced=advanced,
        )

    def _take_in(
        self,
        ending: list[Scheduled],
        picked: list[int | Unsampled | RowError],
        distribution: ModelDistribution,
    ) -> None:
        """Give each Sequence its next token, and more as far as its drafts were picked too."""
        now = self._clock()
        logprobs = distribution.logprobs([i if isinstance(i, int) else 0 for i in picked])
        results = iter(zip(picked, logprobs, strict=True))
        for item in ending:
            num_accepted = 0
            of_item = list(itertools.islice(results, 1 + len(item.drafts)))
            for (token_id, logprob), draft in zip(of_item, (*item.drafts, None), strict=True):
                self._append(item.seq, token_id, logprob, now)
                if item.seq.error or item.seq.finish_reason or token_id != draft:
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
        decoding = self._decoding[seq.seq_id]
        if seq.error is not None:
            return
        if isinstance(picked, RowError):
            seq.error = picked
            return
        if isinstance(picked, Unsampled):
            seq.error = invalid_output(decoding.problem(picked), at=seq.num_tokens)
            return
        seq.token_ids.append(picked)
        seq.times_ms.append(round((now - decoding.started_s) * 1000))
        if logprob is not None:
            seq.logprobs.append(logprob)
        self._look_for_the_end(seq)

    def _sampling_row(self, seq: Sequence, ahead: int) -> SamplingRow:
        try:
            return self._decoding[seq.seq_id].sampling_row(ahead)
        except Exception as error:  # its grammar or tokenizer: code that is not ours
            seq.error = row_fault(error)
            return NO_WISHES

    def _look_for_the_end(self, seq: Sequence) -> None:
        try:
            seq.finish_reason = self._decoding[seq.seq_id].finish_reason(self.max_model_len)
        except Exception as error:  # as above
            seq.error = row_fault(error)

    def _note_times(self, scheduled: Iterable[Scheduled], began_s: float) -> None:
        now = self._clock()
        for item in scheduled:
            stretches = self._decoding[item.seq.seq_id].stretches
            stretches.begin(began_s)
            if item.seq.num_generated_tokens or item.seq.has_ended:
                stretches.end_prefill(now)

    def _finished(self, seq: Sequence) -> Finished:
        decoding = self._decoding[seq.seq_id]
        self._forget(seq)
        if seq.error is not None:
            return Finished(seq.seq_id, error=seq.error)
        try:
            return self._answer(seq, decoding)
        except Exception as error:  # as above
            return Finished(seq.seq_id, error=row_fault(error))

    def _answer(self, seq: Sequence, decoding: Decoding) -> Finished:
        vector = decoding.pooler and decoding.pooler.vector(seq.num_prompt_tokens)
        if decoding.pooler is not None and vector is None:
            return Finished(seq.seq_id, error=NOT_FINITE)
        text = decoding.text()
        return Finished(
            seq.seq_id,
            usage=Usage(
                seq.num_prompt_tokens, seq.num_generated_tokens, seq.num_cached_tokens or 0
            ),
            generated=_generated(seq),
            text=text,
            finish_reason=seq.finish_reason,
            text_offsets=decoding.text_offsets(text) if seq.params.logprobs is not None else (),
            token_bytes=self._bytes_of(seq),
            scored=tuple(seq.scored),
            embedding=vector or (),
            queue_s=decoding.stretches.queue_s,
            prefill_s=decoding.stretches.prefill_s,
        )

    def _bytes_of(self, seq: Sequence) -> dict[int, bytes]:
        """The bytes of all tokens that the row's log-probabilities name."""
        if seq.params.logprobs is None:
            return {}
        first = seq.num_prompt_tokens if seq.scored_from is None else seq.scored_from
        named = seq.token_ids[0 if seq.params.echo else first :]
        ids = {i for token in (*seq.scored, *seq.logprobs) for i, _ in token.top}
        return {i: self._token_bytes.of(i) for i in sorted(ids.union(named))}

    def _forget(self, seq: Sequence) -> None:
        del self._live[seq.seq_id], self._decoding[seq.seq_id]


def _generated(seq: Sequence) -> Generated:
    return Generated(tuple(seq.generated_ids), tuple(seq.times_ms), tuple(seq.logprobs))
