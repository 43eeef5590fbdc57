"""A Job inside the Engine: its token ids so far, how many are computed, and where their KV lies."""

from __future__ import annotations

from enum import Enum

from gristmill.types import FinishReason, Job, JobKind, RowError, TokenLogprob
from gristmill_worker.engine.base import Generated
from gristmill_worker.engine.drafter import Drafter


class SequenceStatus(Enum):
    """Only the Scheduler changes it."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """State of one Job, which has one prompt, from `Engine.add` to its end.

    `token_ids` is the prompt followed by what was generated. `num_computed_tokens` of them have
    their keys and values in the KV cache, where others may find them; block_table[i] is the Block
    of tokens [i * block_size, (i + 1) * block_size).
    """

    def __init__(self, seq_id: str, job: Job, arrival: int, resume: Generated) -> None:
        self.seq_id = seq_id
        self.params = job.params
        self.arrival = arrival
        self.num_prompt_tokens = len(job.prompt_ids)
        self.scored_from = job.prompt.scored_from
        #: Identity of the LoRA adapter that it runs with; empty: the model itself.
        self.adapter = job.adapter
        #: How its vector is made, if the Job asks for one.
        self.embedding = job.embedding
        #: One for each of the prompt's tokens from `scored_from` on, as far as they are computed.
        self.scored: list[TokenLogprob] = []
        self.token_ids: list[int] = [*job.prompt_ids, *resume.token_ids]
        self.times_ms: list[int] = list(resume.times_ms)
        #: One for each generated token, if the Job asks for them.
        self.logprobs: list[TokenLogprob] = list(resume.logprobs)
        self.status = SequenceStatus.WAITING
        self.num_computed_tokens = 0
        #: Tokens behind them that are computed by steps whose results nobody has seen yet.
        self.num_tokens_under_way = 0
        #: Tokens behind `token_ids` that such steps pick, where what follows them is computed
        #: before anybody has seen them.
        self.num_foreseen_tokens = 0
        #: Grows when what is under way has become worthless.
        self.life = 0
        self.block_table: list[int] = []
        #: Hash chain over the full Blocks of token_ids, grown on demand by the BlockManager.
        self.block_hashes: list[int] = []
        #: Prompt tokens that the first admission found in the prefix cache; None before it.
        self.num_cached_tokens: int | None = None
        self.num_preemptions = 0
        self.drafter = Drafter()
        #: None as long as tokens are to be decoded; where none is wanted, known from the start.
        self.finish_reason: FinishReason | None = (
            None if job.kind is JobKind.GENERATE else FinishReason.LENGTH
        )
        self.error: RowError | None = None

    @property
    def may_look_ahead(self) -> bool:
        """Whether a later token can be sampled before those between are known."""
        return not self.params.has_penalties and self.params.grammar is None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens that must be computed before the next one is known, or the end is reached.

        Where none is to be decoded, nobody asks what follows the last token of the prompt.
        """
        if self.finish_reason is None or self.embedding is not None:
            return len(self.token_ids)
        return self.num_prompt_tokens - 1

    @property
    def num_uncomputed_tokens(self) -> int:
        num_behind = self.num_tokens_to_compute - self.num_computed_tokens
        return num_behind + self.num_foreseen_tokens - self.num_tokens_under_way

    @property
    def num_unscored_tokens(self) -> int:
        """Tokens of the prompt whose log-probability is wanted and not known yet."""
        if self.scored_from is None:
            return 0
        return self.num_prompt_tokens - self.scored_from - len(self.scored)

    @property
    def max_cached_tokens(self) -> int:
        """Tokens that may come from the prefix cache: all before the first whose successor must be
        found."""
        if self.num_unscored_tokens:
            return self.num_prompt_tokens - self.num_unscored_tokens - 1
        if self.embedding is not None and self.embedding.pools_all_tokens:
            return 0
        return self.num_tokens - 1

    @property
    def has_ended(self) -> bool:
        if self.finish_reason is None or self.error is not None:
            return self.error is not None
        is_pooled = self.embedding is None or not self.num_uncomputed_tokens
        return is_pooled and not self.num_unscored_tokens

    @property
    def generated_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]
