"""Gristmill's light side: client, contract, requests, queues, stores, ledger, control tasks, CLI.

Importing this package stays fast and pulls in no torch, transformers, boto3, celery or sqlalchemy.
`Client`, `AsyncClient` and `verify_webhook` are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gristmill.client import AsyncClient, Client, verify_webhook

__all__ = ["AsyncClient", "Client", "verify_webhook"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'gristmill' has no attribute {name!r}")
    from gristmill import client

    found: object = getattr(client, name)
    globals()[name] = found  # from now on it is found without this function
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
