"""What the Engine keeps of a live Sequence beside its ids: how it is sampled, and when it ends.

All of it but the clock is a function of the token ids, so nothing here has to be saved.
"""

from __future__ import annotations

from gristmill.types import FinishReason
from gristmill_worker.engine.detokenizer import (
    Decoder,
    StopStrings,
    WithSpecialTokens,
    echoed,
    final_text,
    text_offsets,
)
from gristmill_worker.engine.grammar import GrammarState
from gristmill_worker.engine.penalties import TokenCounts
from gristmill_worker.engine.pooling import Pooler
from gristmill_worker.engine.sampler import SamplingRow, Unsampled
from gristmill_worker.engine.sequence import Sequence


class Decoding:
    """`now` is when the row enters the engine; `started_s` as if a resumed one had never left."""

    def __init__(
        self,
        seq: Sequence,
        decoder: Decoder,
        eos_token_ids: frozenset[int],
        *,
        now: float,
        grammar: GrammarState | None = None,
    ) -> None:
        self._seq = seq
        self._decoder = decoder if seq.params.skip_special_tokens else WithSpecialTokens(decoder)
        self.started_s = now - (seq.times_ms[-1] / 1000 if seq.times_ms else 0)
        self.stretches = Stretches(now, knows_prefill=not seq.times_ms)
        self.pooler = None if seq.embedding is None else Pooler(seq.embedding)
        self.grammar = grammar
        params = seq.params
        eos = frozenset[int]() if params.ignore_eos else eos_token_ids
        #: Tokens that end the row.
        self._end_ids = eos.union(params.stop_token_ids)
        self._counts = TokenCounts(seq.num_prompt_tokens) if params.has_penalties else None
        self._stops = (
            StopStrings(self._decoder, params.stop, params.min_tokens) if params.stop else None
        )

    def sampling_row(self, ahead: int = 0) -> SamplingRow:
        """How to pick the next token, or the one `ahead` of it: behind one that nobody has seen
        yet, or behind so many drafts if all of these are right.

        Penalties depend on what these are, so rows that have any do not look ahead.
        """
        seq = self._seq
        num_generated = seq.num_generated_tokens + ahead
        if self._counts is not None:
            self._counts.take(seq.token_ids)
        too_early = num_generated < seq.params.min_tokens
        forbidden_ids: list[int] = []
        allowed = None
        if self.grammar is not None:
            allowed = self.grammar.allowed(sorted(self._end_ids), may_end=not too_early)
        elif too_early:
            forbidden_ids = sorted(self._end_ids)
        return SamplingRow(seq.params, num_generated, self._counts, forbidden_ids, allowed)

    def problem(self, unsampled: Unsampled) -> str:
        """Why the row could have no token, for its error."""
        if self.grammar is not None and unsampled is Unsampled.NOTHING_LEFT:
            reason = self.grammar.error or "nothing can follow that is also likely enough"
            return f"The grammar of this row allows no token ({reason})"
        return unsampled.value

    def finish_reason(self, max_model_len: int) -> FinishReason | None:
        """Why the row ends with its newest token, if it does. The end wins over the limit."""
        seq = self._seq
        if self._ended_by_token():
            return FinishReason.STOP
        if self.grammar is not None and self.grammar.take(seq.token_ids):
            return FinishReason.STOP
        if self._stops is not None and self._stops.feed(seq.generated_ids):
            return FinishReason.STOP
        at_limit = seq.num_generated_tokens >= seq.params.max_tokens
        return FinishReason.LENGTH if at_limit or seq.num_tokens >= max_model_len else None

    def text(self) -> str:
        """The answer. A token that ended the row is part of it only when the row asks for that."""
        params, ids = self._seq.params, self._seq.generated_ids
        if self._ended_by_token() and not params.include_stop_str_in_output:
            ids = ids[:-1]
        answer = final_text(
            self._decoder,
            ids,
            params.stop,
            min_tokens=params.min_tokens,
            include_stop=params.include_stop_str_in_output,
        )
        if not params.echo:
            return answer
        return echoed(
            self._decoder, self._seq.token_ids[: self._seq.num_prompt_tokens], ids, answer
        )

    def text_offsets(self, text: str) -> list[int]:
        """Where in `text` each generated token begins, in characters; with `echo`, each token."""
        ids = self._seq.token_ids if self._seq.params.echo else self._seq.generated_ids
        return [min(offset, len(text)) for offset in text_offsets(self._decoder, ids)]

    def _ended_by_token(self) -> bool:
        seq = self._seq
        return (
            seq.num_generated_tokens > seq.params.min_tokens and seq.token_ids[-1] in self._end_ids
        )


class Stretches:
    """How long a row waits in the engine, and how long its prompt takes, in seconds."""

    def __init__(self, now: float, *, knows_prefill: bool) -> None:
        self._added_s = now
        self._knows_prefill = knows_prefill
        self._began_s: float | None = None
        self._prefilled_s: float | None = None

    @property
    def are_over(self) -> bool:
        return self._prefilled_s is not None

    def begin(self, now: float) -> None:
        """The first step that computes anything of the row begins."""
        if self._began_s is None:
            self._began_s = now

    def end_prefill(self, now: float) -> None:
        """The first token is there, or the end of a prompt that gets none."""
        if self._prefilled_s is None:
            self._prefilled_s = now

    @property
    def queue_s(self) -> float:
        return 0.0 if self._began_s is None else self._began_s - self._added_s

    @property
    def prefill_s(self) -> float | None:
        """None where an earlier Attempt had the first token, or nothing was computed."""
        if self._began_s is None or self._prefilled_s is None or not self._knows_prefill:
            return None
        return self._prefilled_s - self._began_s
