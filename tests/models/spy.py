"""Sees the logits that each token of an Engine's rows was picked from."""

from __future__ import annotations

from typing import Any

import torch

from gristmill_worker.engine.engine import ContinuousBatchingEngine


class LogitsSpy:
    """`logits[seq_id][n]` are those of the token after n tokens of the row (prompt included).

    A row that is preempted computes its tokens again, but picks each token once. What was computed
    behind a wrong draft is replaced when the right token is known, but for what lies behind the
    row's end.
    """

    def __init__(self, engine: ContinuousBatchingEngine) -> None:
        self.logits: dict[str, dict[int, torch.Tensor]] = {}
        schedule, run = engine.scheduler.schedule, engine._runner.run
        plans: list[Any] = []

        def watched_schedule() -> Any:
            plans.append(schedule())
            return plans[-1]

        def watched_run(batch: Any) -> torch.Tensor:
            logits = run(batch)
            places = [
                (item, ahead) for item in plans[-1].scheduled for ahead in range(item.num_logits)
            ]
            for (item, ahead), row in zip(places, logits, strict=True):
                self.logits.setdefault(item.seq.seq_id, {})[item.end + ahead] = row.clone()
            return logits

        engine.scheduler.schedule = watched_schedule  # type: ignore[method-assign]
        engine._runner.run = watched_run  # type: ignore[method-assign]
