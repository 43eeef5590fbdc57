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
    """GRISTMILL_LOG=info shows what is tried again, debug every call; never keys or bodies."""
    wanted = os.environ.get("GRISTMILL_LOG", "").upper()
    if wanted in ("DEBUG", "INFO"):
        log_at(wanted)


def log_at(level: str) -> None:
    """To stderr, once."""
    log = logging.getLogger("gristmill.client")
    log.setLevel(level)
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        log.addHandler(handler)
