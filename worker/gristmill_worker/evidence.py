"""What the marks of earlier Attempts prove: that one lives, that a row kills whoever runs it.

Nothing here rests on how often a message was delivered. An Attempt that opened and never closed
has died, unless its newest mark is fresh. Two that died without any progress: the Shard is run one
row at a time. A row that died alone twice or more without a newer checkpoint is condemned, and the
rest of the Shard runs together again.

How many deaths it takes, the Shard itself tells. Machines that are taken away kill whatever row
happens to run, so they kill its neighbours, too; a row that is poison dies where its neighbours
live. Rows that died alone run last, so that all the others have had their turn by then.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gristmill.marks import Mark

#: (job_idx, choice_idx): one Choice of one Job of a Shard.
Place = tuple[int, int]

#: A mark younger than this share of a Lease shows that its Attempt lives. Attempts show themselves
#: every PRESENCE of a Lease; a dead one's message comes back after three quarters at the earliest.
FRESH = 0.7
PRESENCE = 0.4
#: So many deaths are evidence: of Attempts without progress, and, at least, of a row alone.
DEATHS = 2
#: So many deaths of one row alone are evidence whatever became of the others.
MOST_DEATHS = 12
#: Of so many Shards in which machines were taken away from rows alone, one may lose a row to it.
SHARDS_PER_ERROR = 1000
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
    #: Jobs that died alone since their newest checkpoint, and how often. They run last, the least
    #: suspected first, and each step of theirs is worth a checkpoint.
    suspected: Mapping[int, int] = field(default_factory=dict)


def find_live(traces: Iterable[Trace], *, now: float, lease_s: float) -> Trace | None:
    """An Attempt that somebody works on right now.

    A mark from the future, by a clock that is wrong, proves nothing: two at the same work cost
    time, and waiting for a dead one costs more.
    """
    for trace in traces:
        if trace.mark.closed is None and abs(now - trace.mark.written_at) < FRESH * lease_s:
            return trace
    return None


def judge(traces: Iterable[Trace], *, num_jobs: int, num_deaths: int = DEATHS) -> Verdict:
    """What follows from Attempts of which none lives, given in the order of their marks.

    `num_jobs` is how many the Shard has; `num_deaths` is the least that counts as evidence.
    """
    longest: dict[Place, int] = {}
    alone_and_dead: Counter[int] = Counter()
    condemned: set[int] = set()
    finished: set[int] = set()
    num_silent, is_isolated = 0, False
    # Of rows that ran alone: how often one got further, and the deaths of those that did later.
    num_survived, num_innocent = 0, 0
    for trace in traces:
        grown = {at[0] for at, length in trace.lengths.items() if length > longest.get(at, 0)}
        longest |= {at: max(n, longest.get(at, 0)) for at, n in trace.lengths.items()}
        finished |= trace.finished
        alone, advanced = trace.mark.alone, trace.finished | grown
        is_isolated = alone is not None
        if advanced:
            num_silent = 0
        num_survived += len(advanced) if is_isolated else 0
        num_innocent += sum(alone_and_dead.pop(job_idx, 0) for job_idx in advanced)
        if trace.mark.closed is not None:
            continue
        if alone is None:
            num_silent += not advanced
            is_isolated = num_silent >= num_deaths
        elif alone not in finished and alone not in advanced:
            alone_and_dead[alone] += 1
            # Another that is suspected may be poison as well: its deaths count as one.
            num_others = num_innocent + len(alone_and_dead.keys() - {alone})
            enough = max(num_deaths, deaths_that_prove(num_survived, num_others, num_jobs))
            if alone_and_dead[alone] >= enough:
                condemned.add(alone)
                del alone_and_dead[alone]
                num_silent, is_isolated = 0, False
    return Verdict(is_isolated, frozenset(condemned - finished), dict(alone_and_dead))


def deaths_that_prove(num_survived: int, num_died: int, num_jobs: int) -> int:
    """How many deaths of one row alone are more than bad luck.

    `num_survived` times a row of the Shard that ran alone got further, `num_died` times another
    one died. From these follows, by Laplace's rule of succession, how likely a row alone is to be
    hit by what has nothing to do with it; to that power for each death in a row, times the rows
    that it may befall, is what must be less than one in SHARDS_PER_ERROR.
    """
    odds = (num_survived + num_died + 2) / (num_died + 1)
    deaths = math.ceil(math.log(SHARDS_PER_ERROR * max(num_jobs, 1)) / math.log(odds))
    return min(deaths, MOST_DEATHS)
