"""What both clients do when they are made."""

from __future__ import annotations

import logging
import os

from gristmill.errors import UsageError


def at_least_one(batch_ids: tuple[str, ...]) -> tuple[str, ...]:
    if not batch_ids:
        raise UsageError("A handle is of one batch at least: give its id.")
    return batch_ids


def log_as_asked() -> None:
    """GRISTMILL_LOG=debug or info shows what is tried again, on stderr; never keys or bodies."""
    wanted = os.environ.get("GRISTMILL_LOG", "").upper()
    log = logging.getLogger("gristmill.client")
    if wanted not in ("DEBUG", "INFO") or log.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(wanted)
