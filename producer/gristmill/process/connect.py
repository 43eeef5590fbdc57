"""Reaches the queue and the store of a process at its start, and tries both."""

from __future__ import annotations

from gristmill.queues.base import Queue
from gristmill.queues.open import open_queue
from gristmill.settings import Settings
from gristmill.stores.base import Store
from gristmill.stores.open import open_store


def connect(queue_url: str, store_url: str, settings: Settings) -> tuple[Queue, Store]:
    """Raises UsageError for a URL that is wrong, StoreError and QueueError for what is not there.

    A start that fails for a while is the supervisor's to repeat: a wrong address looks the same.
    """
    store = open_store(store_url)
    store.probe()
    return open_queue(queue_url, settings.lease_s), store
