"""Where the work of a local run lies: all here, or behind a queue and a store for workers."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace

from gristmill.control.accept import take_bells
from gristmill.control.base import Control
from gristmill.control.fleet_view import FleetView
from gristmill.errors import GristmillError, QueueError
from gristmill.ledger.batch import Batch
from gristmill.local.values import RunConfig
from gristmill.local.work_folder import TENANT_ID, WorkFolder
from gristmill.process.connect import connect
from gristmill.queues.memory import MemoryQueue
from gristmill.stores.base import Store
from gristmill.stores.keys import batch_key, batch_prefix, file_key

log = logging.getLogger(__name__)


def open_control(config: RunConfig, folder: WorkFolder) -> Control:
    """The control side over the work folder's Ledger. Raises what `connect` raises."""
    settings = config.settings
    if config.fleet is None:
        here = MemoryQueue(settings.lease_s)
        return Control(folder.ledger, folder.store, here, time.time, settings)
    queue, store = connect(config.fleet.queue_url, config.fleet.store_url, settings)
    # Workers ring for this run, and tell of themselves elsewhere.
    blind = FleetView(is_sole=True)
    return Control(folder.ledger, store, queue, time.time, settings, fleet_view=blind)


def hear_only_of(control: Control, batch: Batch) -> Control:
    """With a Lane of its own for Bells: other runs on the same queue hear of theirs."""
    own = replace(control, control_lane=batch.run_id)
    # Workers ring only where somebody listens. Should it fail, the first look for Bells does it.
    with suppress(GristmillError):
        take_bells(own)
    return own


def remove_lane(control: Control) -> None:
    """Take the Lane of `hear_only_of` off the queue. What cannot be removed costs nothing there."""
    try:
        control.queue.remove_lane(control.control_lane)
    except QueueError as error:
        log.warning("lane left behind lane=%s reason=%s", control.control_lane, error)


def remove_from_store(store: Store, batch: Batch) -> None:
    """Take a run that is over out of a store that it shares with others."""
    for file_id in (batch.output_file_id, batch.error_file_id):
        if file_id is not None:
            store.delete(file_key(TENANT_ID, file_id))
    for key in list(store.list(f"{batch_prefix(TENANT_ID, batch.id)}{batch.run_id}/")):
        store.delete(key)
    store.delete(batch_key(TENANT_ID, batch.id))
