"""What was measured: tokens a second of the batches that ended lately, model by model."""

from __future__ import annotations

from sqlalchemy import Connection, select

from gristmill.ledger.schema import batches
from gristmill.ledger.status import BatchStatus

#: A shorter batch tells more of starting than of running.
_MIN_S = 5


def list_rates(conn: Connection, model_name: str, *, since: int, limit: int = 20) -> list[float]:
    """Prompt and output tokens a second, from the first Shard sent to the last row accepted.

    Of all tenants, the newest batches first: for control, never for a caller.
    """
    duration_s = batches.c.finalizing_at - batches.c.first_sent_at
    tokens = batches.c.prompt_tokens + batches.c.completion_tokens
    query = (
        select(tokens, duration_s)
        .where(
            batches.c.model_name == model_name,
            batches.c.status == BatchStatus.COMPLETED,
            batches.c.finalizing_at > since,
            duration_s >= _MIN_S,
            tokens > 0,
        )
        .order_by(batches.c.finalizing_at.desc())
        .limit(limit)
    )
    return [num_tokens / seconds for num_tokens, seconds in conn.execute(query)]
