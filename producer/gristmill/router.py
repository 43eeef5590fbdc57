"""Chooses the Lane of a Shard by expected finish time, from what it needs and who is alive.

Pure functions: the fleet, what lies ahead and the time are arguments, so that dispatch and the
simulator decide by the same code. Reads no queue and no Ledger.

**Who can.** A row needs a machine of its model that has its features and takes its prompt with the
whole answer that it may have, so that its result does not depend on the route. A row that may have
more than any machine of its model takes runs on those that take the most, and on no other, and its
answer ends there (row_limits.py); what counts are those that were heard of within a day, and what
the operator says. While nobody is known, or one loads that may take more, that is not yet certain.

**Where.** While all workers are alike, or nobody has said what he is, all goes to BULK_LANE. Where
not every listener of that Lane can run a Shard, it goes to the Lane of a pool that can. Where all
can, it goes to a pool's Lane only if it is done sooner there by a good part of what it takes: the
mixed Lane leaves no worker idle, and a Lane of their own keeps long prompts from slow machines.

**When.** A Lane whose window is full stands in for the turn that a Shard would wait for: it is
chosen, and the Shard stays in the Ledger, only if that is sooner than all Lanes that have room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gristmill.expected_work import ExpectedWork, Load
from gristmill.fleet import SMALLEST_ROW_CLASS
from gristmill.loading import NO_LIMIT, Loading
from gristmill.pools import Fleet, KnownPool, Needs, PoolNow, fleet_of, is_able, is_of_model
from gristmill.queues.base import BULK_LANE
from gristmill.types import ModelPin

__all__ = [
    "Fleet",
    "KnownPool",
    "Load",
    "Needs",
    "Never",
    "PoolNow",
    "Rank",
    "Route",
    "ToLane",
    "Waits",
    "find_certain",
    "find_limits",
    "find_never",
    "fleet_of",
    "is_able",
    "is_anybody_known",
    "is_of_model",
    "is_served",
    "route",
    "taken_row_tokens",
]

#: Of the Shards of a batch for a Lane the one with the lowest goes first.
Rank = tuple[bool, float]

#: A pool's own Lane must be sooner than the mixed one by this share of what the Shard takes there.
PAYS = 0.25


@dataclass(frozen=True, slots=True)
class ToLane:
    """The Lane on which a Shard is expected to be done first.

    `finish_at` is in the unit of `now`, seconds. Of the Shards of a batch for a Lane the one with
    the lowest `rank` goes first: what is not left to a pool that runs short, and of that the
    shortest rows, so that most rows wait least. `row_tokens`: what a worker must take to run it;
    0 if nobody knows. Only a Lane that is not in `Load.full` may be sent to now.
    """

    lane: str
    finish_at: float
    rank: Rank = (False, 0.0)
    row_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Waits:
    """No machine that takes work just now can run it; one that could is known, or may be yet."""

    reason: str


@dataclass(frozen=True, slots=True)
class Never:
    """No machine known for the model can ever run it, alive or not; `code` as in an error line."""

    code: str
    reason: str


Route = ToLane | Waits | Never


def find_never(needs: Needs, fleet: Fleet) -> Never | None:
    """Why no machine known for the model can ever run this, whatever is alive.

    None also while one loads, whose abilities are not known yet, and, unless the operator has said
    what his machines take, while none is known at all.
    """
    of_model = [known for known in fleet.known if is_of_model(known.pool, needs.model)]
    if _loading(needs.model, fleet) or not (of_model or fleet.max_row_tokens):
        return None
    able = [known for known in of_model if is_able(known.pool, needs)]
    if of_model and not able:
        wanted = ", ".join(sorted(needs.features))
        return Never(
            "unsupported_feature",
            f"This row needs a machine that can do {wanted}, and no machine of the model "
            f"{needs.model.name} can do all of that. Ask for less, or start a worker that can.",
        )
    reach = _reach(needs, fleet)
    if needs.least_row_tokens <= reach:
        return None
    return Never(
        "context_length_exceeded",
        f"This row needs {needs.least_row_tokens:,} tokens, and the machines of the model "
        f"{needs.model.name} take {reach:,} for prompt and answer together. Shorten the prompt, "
        "or start a worker with a higher --max-model-len; GRISTMILL_FLEET_MAX_ROW_TOKENS lets such "
        "rows wait for it.",
    )


def route(needs: Needs, fleet: Fleet, load: Load, *, now: float) -> Route:
    """Where a Shard is expected to be done first. The same arguments, the same answer."""
    never = find_never(needs, fleet)
    if never is not None:
        return never
    row_tokens = taken_row_tokens(needs, fleet)
    if not fleet.pools:
        return ToLane(BULK_LANE, now, row_tokens=row_tokens)
    able = _able(needs, fleet, row_tokens)
    if not able:
        return Waits(_why_waits(needs, fleet, row_tokens, now=now))
    work = ExpectedWork(needs, fleet, load)
    finish = {pool.lane: work.finish_s(pool) for pool in able if pool.takes_own}
    handicap = dict.fromkeys(finish, 0.0)
    everybody_can = all(pool.can_run(needs, row_tokens) for pool in work.listeners)
    if work.listeners and (everybody_can or not finish):
        if len(fleet.pools) == 1:
            finish.clear()
        finish[BULK_LANE] = work.finish_of_bulk_s()
        handicap[BULK_LANE] = -PAYS * work.least_time_s
    if not finish:
        return Waits(_why_waits(needs, fleet, row_tokens, now=now))
    lane = min(finish, key=lambda name: (finish[name] + handicap[name], name != BULK_LANE, name))
    # Where machines are alike the order of the file stays: the last of it would end no sooner.
    rank = _rank(needs, lane, able, load) if work.is_mixed else (False, 0.0)
    return ToLane(lane, now + work.bulk_wait_s + finish[lane], rank, row_tokens)


def taken_row_tokens(needs: Needs, fleet: Fleet) -> int:
    """What a worker must take to run it: its longest row, or the most that anybody takes, if that
    is less, certain, and its prompts fit. It is not certain while nobody is known or told of by the
    operator, nor while one loads that may take more: the first that is ready may be the smallest.
    """
    reach = _reach_for_certain(needs, fleet)
    if not reach or reach < _reach(needs, fleet):
        return needs.max_row_tokens
    return max(min(needs.max_row_tokens, reach), needs.least_row_tokens)


def find_limits(needs: Needs, fleet: Fleet) -> tuple[int, int]:
    """Up to which `max_row_tokens` and `least_row_tokens` Shards of this model and these features
    find a machine now."""
    if not fleet.pools:
        return NO_LIMIT, NO_LIMIT
    able = (pool.max_row_tokens for pool in fleet.pools if is_able(pool.pool, needs))
    most = max(able, default=0)
    # What takes the most of all takes longer ones too, and ends their answers.
    taken = taken_row_tokens(replace(needs, max_row_tokens=NO_LIMIT), fleet)
    return NO_LIMIT if taken <= most else most, most


def find_certain(needs: Needs, fleet: Fleet) -> int:
    """Up to which `max_row_tokens` it is sure, while nobody takes work, that those that come will:
    what somebody took within a day, and what nearly any machine does. NO_LIMIT where longer rows
    end at their limit."""
    if fleet.pools or taken_row_tokens(replace(needs, max_row_tokens=NO_LIMIT), fleet) < NO_LIMIT:
        return NO_LIMIT
    return max(_reach_for_certain(needs, fleet), SMALLEST_ROW_CLASS)


def is_anybody_known(model: ModelPin, fleet: Fleet) -> bool:
    """Whether anything tells what machines of the model take, or will."""
    of_model = any(is_of_model(known.pool, model) for known in fleet.known)
    return of_model or fleet.max_row_tokens > 0 or bool(_loading(model, fleet))


def is_served(needs: Needs, fleet: Fleet, lane: str) -> bool:
    """Whether what was sent to a Lane need not go elsewhere: somebody takes it from there who can
    run it. From the mixed Lane all can, or there is no other; those that cannot hold it up."""
    if not fleet.pools:
        return lane == BULK_LANE
    row_tokens = taken_row_tokens(needs, fleet)
    if lane != BULK_LANE:
        able = [p for p in fleet.pools if is_able(p.pool, needs) and p.max_row_tokens >= row_tokens]
        return any(pool.takes_own and pool.lane == lane for pool in able)
    able = _able(needs, fleet, row_tokens)
    everybody_can = all(p.can_run(needs, row_tokens) for p in fleet.pools if p.takes_bulk)
    return any(p.takes_bulk for p in able) and (everybody_can or not any(p.takes_own for p in able))


def _able(needs: Needs, fleet: Fleet, row_tokens: int) -> list[PoolNow]:
    """Pools of which each worker can; if there are none, those of which one or the other can, and
    the others give it back."""
    return [pool for pool in fleet.pools if pool.can_run(needs, row_tokens)] or [
        p for p in fleet.pools if is_able(p.pool, needs) and p.max_row_tokens >= row_tokens
    ]


def _rank(needs: Needs, lane: str, able: list[PoolNow], load: Load) -> Rank:
    """As ToLane has it."""
    is_left = any(pool.lane in load.short and pool.lane != lane for pool in able)
    return is_left, needs.num_expected_tokens / max(needs.num_jobs, 1)


def _reach(needs: Needs, fleet: Fleet) -> int:
    """The most that a machine takes, or may take when it has loaded; 0 if there is none."""
    loading = (one.max_row_tokens for one in _loading(needs.model, fleet))
    return max([_reach_for_certain(needs, fleet), *loading])


def _reach_for_certain(needs: Needs, fleet: Fleet) -> int:
    """The most that a machine takes which has the model and the features, or is told of by the
    operator; 0 if there is none."""
    known = (known.max_row_tokens for known in fleet.known if is_able(known.pool, needs))
    return max([fleet.max_row_tokens, *known])


def _loading(model: ModelPin, fleet: Fleet) -> list[Loading]:
    """Workers of the model, of which nobody knows yet what they can."""
    return [one for one in fleet.loading if is_of_model(one.model, model)]


def _why_not_ready(loading: list[Loading]) -> str:
    num_died = sum(one.num_died for one in loading)
    if num_died:
        return f"one is loading, and {num_died} before it died while they did"
    if all(one.max_row_tokens == NO_LIMIT for one in loading):
        return "one was heard of just now for the first time, and a larger one may follow"
    return "one is loading"


def _why_waits(needs: Needs, fleet: Fleet, row_tokens: int, *, now: float) -> str:
    """What it waits for, for people."""
    name = needs.model.name
    alive = [pool for pool in fleet.pools if is_of_model(pool.pool, needs.model)]
    able = [known for known in fleet.known if is_able(known.pool, needs)]
    enough = [known.heard_at for known in able if known.max_row_tokens >= row_tokens]
    loading = _loading(needs.model, fleet)
    if loading:
        last = _why_not_ready(loading)
    elif enough:
        last = f"one was last heard of {max(now - max(enough), 0):.0f} s ago"
    elif row_tokens <= fleet.max_row_tokens:
        last = "the operator says that there are such machines, and none was heard of lately"
    else:
        last = "none was heard of lately"
    if not alive:
        return f"It waits for a machine of the model {name}: {last}."
    with_features = [pool for pool in alive if is_able(pool.pool, needs)]
    if not with_features:
        wanted = ", ".join(sorted(needs.features))
        return f"It waits for a machine of the model {name} that can do {wanted}: {last}."
    most = max(pool.max_row_tokens for pool in with_features)
    return (
        f"It waits for a machine of the model {name} that takes rows of {row_tokens:,} tokens: "
        f"{last}, and those that work now take {most:,}."
    )
