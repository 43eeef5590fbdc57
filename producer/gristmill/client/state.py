"""How far one batch is, or several that belong together, as one; and waiting for their end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.client.errors import WaitTimeout
from gristmill.client.objects import Batch
from gristmill.client.result_files import FIRST_POLL_S
from gristmill.client.steps import Sleep, Steps

if TYPE_CHECKING:
    from gristmill.client.batches import BatchCalls

_MAX_POLL_S = 5.0
#: Of parts that ended differently, what the whole is called: the worst. Of open ones, the latest.
_ENDS = ("failed", "expired", "cancelled", "completed")
_OPEN = ("cancelling", "validating", "in_progress", "finalizing")


@dataclass(frozen=True, slots=True)
class BatchState:
    """All parts together. `status` is one of those that a batch has."""

    status: str
    total: int
    completed: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    parts: tuple[Batch, ...]

    @property
    def has_ended(self) -> bool:
        return all(part.has_ended for part in self.parts)

    @property
    def done(self) -> int:
        return self.completed + self.failed


def state_of(parts: tuple[Batch, ...]) -> BatchState:
    found = {part.status for part in parts}
    words = _ENDS if all(part.has_ended for part in parts) else _OPEN
    status = next((word for word in words if word in found), parts[-1].status)
    counts = [part.request_counts for part in parts]
    return BatchState(
        status=status,
        total=sum(one.total for one in counts),
        completed=sum(one.completed for one in counts),
        failed=sum(one.failed for one in counts),
        input_tokens=sum(part.usage.input_tokens for part in parts),
        cached_tokens=sum(part.usage.input_tokens_details.cached_tokens for part in parts),
        output_tokens=sum(part.usage.output_tokens for part in parts),
        parts=parts,
    )


def look(
    calls: BatchCalls, batch_ids: list[str], known: tuple[Batch, ...] = ()
) -> Steps[BatchState]:
    """How far they are now. Parts that are known to have ended are not asked for again."""
    ended = {part.id: part for part in known if part.has_ended}
    parts = []
    for batch_id in batch_ids:
        part = ended.get(batch_id)
        parts.append((yield from calls.retrieve(batch_id, {})) if part is None else part)
    return state_of(tuple(parts))


def wait(
    calls: BatchCalls,
    batch_ids: list[str],
    *,
    timeout: float | None,
    poll_interval: float | None,
    on_state: Callable[[BatchState], None],
    clock: Callable[[], float] = time.monotonic,
) -> Steps[BatchState]:
    """The state at the end. Raises WaitTimeout after `timeout` seconds; the batch goes on."""
    give_up_at = None if timeout is None else clock() + timeout
    poll_s = poll_interval or FIRST_POLL_S
    known: tuple[Batch, ...] = ()
    while True:
        state = yield from look(calls, batch_ids, known)
        on_state(state)
        if state.has_ended:
            return state
        known = state.parts
        if give_up_at is not None:
            left_s = give_up_at - clock()
            if left_s <= 0:
                raise WaitTimeout(
                    f"{', '.join(batch_ids)} is {state.status} after {timeout:g} s "
                    f"({state.done:,} of {state.total:,} rows). It goes on; wait again."
                )
            yield Sleep(min(poll_s, left_s))
        else:
            yield Sleep(poll_s)
        if poll_interval is None:
            poll_s = min(poll_s * 1.5, _MAX_POLL_S)
