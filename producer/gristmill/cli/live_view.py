"""What `gristmill watch` draws: the state of a batch, its pace, and how its rows fail."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gristmill.cli.fleet_sight import FleetSight
from gristmill.cli.follow import state_facts
from gristmill.client.errors import APIStatusError, WaitTimeout
from gristmill.client.progress import Pace
from gristmill.values import format_duration

if TYPE_CHECKING:
    from rich.table import Table

    from gristmill.client import BatchState, Client

#: Rows that are read for one refresh, so that a huge batch costs no more than a small one.
_ROWS_A_LOOK = 200


@dataclass
class RowErrors:
    """Of rows that were read as they came, by code. The first ones, if many come."""

    counts: Counter[str] = field(default_factory=Counter)
    _cursors: dict[str, str] = field(default_factory=dict)

    def read_on(self, client: Client, batch_id: str) -> None:
        for line in client.batches.accepted(
            batch_id, after=self._cursors.get(batch_id), limit=_ROWS_A_LOOK
        ):
            self._cursors[batch_id] = line.cursor
            if line.error_code is not None:
                self.counts[line.error_code] += 1


def follow(
    client: Client, batch_ids: Sequence[str], *, interval_s: float, timeout_s: float | None
) -> BatchState:
    """Draw until the end, which is returned. Raises WaitTimeout."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    handle = client.handle(*batch_ids)
    pace, errors, fleet = Pace(), RowErrors(), FleetSight()
    give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
    printed: list[tuple[str, str]] = []
    is_live = console.is_terminal and not console.is_dumb_terminal
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            state = handle.status()
            pace.see(state)
            for part in state.parts:
                # One that was just deleted has no rows; its state says the rest.
                with suppress(APIStatusError):
                    errors.read_on(client, part.id)
            facts = view_facts(state, pace, errors)
            workers = fleet.told(client, (part.model for part in state.parts if part.model))
            if workers and not state.has_ended:
                facts.append(("workers", workers))
            if is_live:
                live.update(_table(facts), refresh=True)
            elif facts != printed:
                for name, text in facts:
                    print(f"{name:<9} {text}", flush=True)
                print(flush=True)
            printed = facts
            if state.has_ended:
                return state
            if give_up_at is not None and time.monotonic() >= give_up_at:
                raise WaitTimeout(f"The batch is {state.status} after {timeout_s:g} s. It goes on.")
            time.sleep(interval_s)


def view_facts(state: BatchState, pace: Pace, errors: RowErrors) -> list[tuple[str, str]]:
    facts = state_facts(state)
    share = state.done / state.total if state.total else 0.0
    facts.insert(2, ("progress", f"{_bar(share)} {share:.1%}"))
    speeds = [part.progress.tokens_per_second for part in state.parts if part.progress]
    speed = sum(one for one in speeds if one) or pace.tokens_per_s
    if not state.has_ended and (speed or pace.rows_per_s):
        facts.append(("speed", f"{speed:,.1f} tokens/s, {pace.rows_per_s:,.1f} rows/s"))
        eta_s = pace.eta_s(state)
        if eta_s:
            facts.append(("left", format_duration(eta_s)))
    if errors.counts:
        told = ", ".join(f"{count:,} {code}" for code, count in errors.counts.most_common(5))
        facts.append(("errors", told))
    return facts


def _bar(share: float, width: int = 30) -> str:
    full = round(share * width)
    encoding = (sys.stdout.encoding or "ascii").lower()
    solid, empty = ("█", "░") if encoding.startswith("utf") else ("#", ".")
    return solid * full + empty * (width - full)


def _table(facts: list[tuple[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, text in facts:
        table.add_row(Text(name, style="bold"), Text(text))
    return table
