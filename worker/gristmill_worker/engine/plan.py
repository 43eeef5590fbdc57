"""What one step computes: the decision of the Scheduler, which stays as it is while it is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gristmill_worker.engine.sequence import Sequence


class Scheduled(NamedTuple):  # made in a third of the time of a frozen dataclass
    """One Sequence computes its tokens [begin, begin + num_tokens), the last of which are `drafts`.

    `reaches_end`: its last token is among them, so that they yield its next one.
    """

    seq: Sequence
    begin: int
    num_tokens: int
    reaches_end: bool
    #: `seq.life` when this was planned.
    life: int
    drafts: tuple[int, ...] = ()
    #: Block to be copied first into the one that these tokens begin in.
    forked_from: int | None = None

    @classmethod
    def next_of(cls, seq: Sequence, num_tokens: int, forked_from: int | None = None) -> Scheduled:
        """The next `num_tokens` tokens of a Sequence, behind those that steps under way compute."""
        begin = seq.num_computed_tokens + seq.num_tokens_under_way
        is_last = begin + num_tokens == len(seq.token_ids) + seq.num_foreseen_tokens
        reaches_end = is_last and seq.finish_reason is None
        return cls(seq, begin, num_tokens, reaches_end, seq.life, (), forked_from)

    @property
    def num_known_tokens(self) -> int:
        return self.num_tokens - len(self.drafts)

    @property
    def end(self) -> int:
        """Behind its last token that is no draft."""
        return self.begin + self.num_tokens - len(self.drafts)

    @property
    def newly_scored(self) -> range:
        """Positions of the prompt's tokens whose log-probability this finds: each is predicted by
        the token before it."""
        seq = self.seq
        first = seq.num_prompt_tokens - seq.num_unscored_tokens
        end = min(self.begin + self.num_tokens + 1, seq.num_prompt_tokens)
        return range(first, max(first, end))

    @property
    def num_logits(self) -> int:
        """Rows of logits that are wanted: of the last token and of each draft behind it."""
        return 1 + len(self.drafts) if self.reaches_end else 0

    @property
    def is_void(self) -> bool:
        """Whether what it finds is worthless: the Sequence has ended, or begins anew."""
        return self.life != self.seq.life


@dataclass(frozen=True, slots=True, eq=False)
class SchedulerOutput:
    scheduled: tuple[Scheduled, ...]
    num_preempted: int

    @property
    def num_tokens(self) -> int:
        return sum(item.num_tokens for item in self.scheduled)
