"""`client.score` of both clients: a data set scored by the service."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.client.client import Client
    from gristmill.client.options import Options
    from gristmill.data.rows import Source
    from gristmill.score import Report, Task


def score_by(
    client: Client,
    data: Source,
    task: Task,
    *,
    model: str,
    output: str | Path,
    stop: threading.Event | None = None,
    **options: Any,
) -> Report:
    """`stop` ends the waiting; the batches go on."""
    from gristmill.score import Remote, score

    remote = (
        Remote(model, client) if stop is None else Remote(model, client, should_stop=stop.is_set)
    )
    return score(data, task, remote, output=output, **options)


async def score_in_thread(
    options: Options, data: Source, task: Task, *, model: str, output: str | Path, **more: Any
) -> Report:
    """In a thread with a client of its own; to be cancelled ends its waiting, too."""
    from gristmill.client.client import Client

    stop = threading.Event()

    def run() -> Report:
        with Client._with(options) as client:
            return score_by(client, data, task, model=model, output=output, stop=stop, **more)

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        stop.set()
        raise
