"""How long the backlog takes: that of each Lane, and that of all Lanes of a model together.

Lanes are worked off at the same time, so their times do not add up. What is told is the time below
which it cannot be done: all of it by all workers, and what only some pools can do by these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gristmill.control.worker_speeds import WorkerSpeeds
from gristmill.ledger.size_classes import Kind
from gristmill.needs import features_in
from gristmill.pools import Fleet, Needs, is_able, is_of_model
from gristmill.queues.base import BULK_LANE

#: Lane and model.
Of = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Part:
    """Tokens that the pools of these Lanes can do; None: every worker of the model."""

    num_tokens: float
    lanes: frozenset[str] | None = None


class BacklogTimes:
    """`tokens` that are left, those that were not sent under the mixed Lane; `kinds` is what waits,
    where there are several Lanes. Times are in seconds, and never infinite: where nobody is who can
    do a part, it is as if one was."""

    def __init__(
        self, tokens: Mapping[Of, float], kinds: Iterable[Kind], fleet: Fleet, speeds: WorkerSpeeds
    ) -> None:
        self._tokens = tokens
        self._kinds = list(kinds)
        self._fleet = fleet
        self._speeds = speeds

    def of_one_s(self, lane: str, model: str) -> float:
        """What a single worker needs for a Lane."""
        return self._tokens[lane, model] / self._speeds.of_one(lane, model)

    def of_lane_s(self, lane: str, model: str) -> float:
        """What its workers need for it: all of the model for the mixed one."""
        if lane != BULK_LANE:
            return self.of_one_s(lane, model) / max(self._speeds.num_alive(lane, model), 1)
        return self._longest_s(model, self._mixed(model))

    def of_model_s(self, model: str) -> float:
        """Until all Lanes are empty."""
        parts = self._mixed(model)
        for (lane, name), num_tokens in self._tokens.items():
            if name == model and lane != BULK_LANE:
                # What was sent to a pool that is gone goes elsewhere.
                has_workers = self._speeds.num_alive(lane, model) > 0
                parts.append(_Part(num_tokens, frozenset({lane}) if has_workers else None))
        return self._longest_s(model, parts)

    def _mixed(self, model: str) -> list[_Part]:
        """What is on the mixed Lane or was not sent."""
        limited = [
            _Part(kind.num_waiting_tokens, lanes)
            for kind in self._kinds
            if kind.model.name == model and (lanes := self._lanes_of(kind)) is not None
        ]
        num_tokens = self._tokens.get((BULK_LANE, model), 0.0)
        rest = max(num_tokens - sum(part.num_tokens for part in limited), 0.0)
        return [_Part(rest), *limited]

    def _lanes_of(self, kind: Kind) -> frozenset[str] | None:
        """Of the pools that take its shortest rows; None if all do that have the model."""
        needs = Needs(kind.model, features=features_in(kind.size_class))
        pools = [pool for pool in self._fleet.pools if is_of_model(pool.pool, kind.model)]
        able = frozenset(
            pool.lane
            for pool in pools
            if is_able(pool.pool, needs) and pool.max_row_tokens >= kind.min_row_tokens
        )
        return None if len(able) == len(pools) else able

    def _longest_s(self, model: str, parts: Iterable[_Part]) -> float:
        found = list(parts)
        num_all = max(self._speeds.num_alive(BULK_LANE, model), 1)
        of_one = self._speeds.of_one(BULK_LANE, model)
        times = [sum(part.num_tokens for part in found) / (num_all * of_one)]
        for lanes in {part.lanes for part in found if part.lanes is not None}:
            num_tokens = sum(
                part.num_tokens
                for part in found
                if part.lanes == lanes or (part.lanes and part.lanes < lanes)
            )
            rate = sum(
                self._speeds.num_alive(lane, model) * self._speeds.of_one(lane, model)
                for lane in lanes
            )
            times.append(num_tokens / (rate or of_one))
        return max(times)
