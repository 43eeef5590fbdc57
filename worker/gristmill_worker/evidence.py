"""What the marks of earlier Attempts prove: that one lives, that a row kills whoever runs it.

Nothing here rests on how often a message was delivered. An Attempt that opened and never closed
has died, unless its newest mark is fresh. Two that died without any progress: the Shard is run one
row at a time. A row that died alone twice without a newer checkpoint is condemned, and the rest of
the Shard runs together again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gristmill.marks import Mark

#: (job_idx, choice_idx): one Choice of one Job of a Shard.
Place = tuple[int, int]

#: A mark younger than this share of a Lease shows that its Attempt lives. Attempts show themselves
#: every PRESENCE of a Lease; a dead one's message comes back after three quarters at the earliest.
FRESH = 0.7
PRESENCE = 0.4
#: So many deaths are evidence: of Attempts without progress, and of a row that ran alone.
DEATHS = 2
#: Where a person starts a single process again and again, most deaths are that person's doing.
DEATHS_IN_ONE_PROCESS = 4


@dataclass(slots=True)
class Trace:
    """What one Attempt left in the Store, as far as it can be read."""

    attempt_id: str
    #: Its newest one.
    mark: Mark = field(default_factory=Mark)
    finished: set[int] = field(default_factory=set)
    #: Tokens of each Choice that its checkpoints hold.
    lengths: dict[Place, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the next Attempt has to go about a Shard."""

    #: One row at a time.
    is_isolated: bool = False
    #: Jobs that get an error instead of another try.
    condemned: frozenset[int] = frozenset()
    #: Jobs that died alone since their newest checkpoint: each step of theirs is worth one.
    suspected: frozenset[int] = frozenset()


def find_live(traces: Iterable[Trace], *, now: float, lease_s: float) -> Trace | None:
    """An Attempt that somebody works on right now.

    A mark from the future, by a clock that is wrong, proves nothing: two at the same work cost
    time, and waiting for a dead one costs more.
    """
    for trace in traces:
        if trace.mark.closed is None and abs(now - trace.mark.written_at) < FRESH * lease_s:
            return trace
    return None


def judge(traces: Iterable[Trace], *, num_deaths: int = DEATHS) -> Verdict:
    """What follows from Attempts of which none lives, given in the order of their marks."""
    longest: dict[Place, int] = {}
    lone_deaths: Counter[int] = Counter()
    condemned: set[int] = set()
    finished: set[int] = set()
    num_silent, is_isolated = 0, False
    for trace in traces:
        grown = {at[0] for at, length in trace.lengths.items() if length > longest.get(at, 0)}
        longest |= {at: max(n, longest.get(at, 0)) for at, n in trace.lengths.items()}
        finished |= trace.finished
        alone = trace.mark.alone
        is_isolated = alone is not None
        if trace.finished or grown:
            num_silent = 0
        if trace.mark.closed is not None:
            continue
        if alone is None:
            num_silent += not (trace.finished or grown)
            is_isolated = num_silent >= num_deaths
        elif alone not in finished:
            lone_deaths[alone] = 0 if alone in grown else lone_deaths[alone] + 1
            if lone_deaths[alone] >= num_deaths:
                condemned.add(alone)
                num_silent, is_isolated = 0, False
    return Verdict(
        is_isolated,
        frozenset(condemned - finished),
        frozenset(job_idx for job_idx, count in lone_deaths.items() if count),
    )
