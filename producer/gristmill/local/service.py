"""The whole service in one process: API, ingest, control loop and worker, each in its threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from pydantic import SecretStr

from gristmill.api.access import Access, Scope
from gristmill.api.app import create_app
from gristmill.api.context import Api
from gristmill.api.server import HttpServer
from gristmill.compute import BuildWorker, ComputeWorker, worker_config
from gristmill.control.accept import accept_unheard
from gristmill.control.base import Control
from gristmill.control.dispatch import recall
from gristmill.control.fleet_view import FleetView
from gristmill.control.gauges import LedgerGauges
from gristmill.control.loop import ControlLoop
from gristmill.control.read_uploads import ReadUploads
from gristmill.control.sweep import open_batches
from gristmill.control.webhook_vault import seal_all
from gristmill.control.webhooks import WebhookLoop
from gristmill.errors import GristmillError
from gristmill.ledger import tenants
from gristmill.local.data_folder import DataFolder
from gristmill.local.worker_thread import WorkerThread
from gristmill.local_model import Catalogue
from gristmill.prices import read_prices
from gristmill.process.health import Health
from gristmill.process.loop_thread import LoopThread
from gristmill.process.worker import end_hanging
from gristmill.queues.memory import MemoryQueue
from gristmill.settings import Settings
from gristmill.telemetry import NO_TELEMETRY, Telemetry

log = logging.getLogger(__name__)

#: Whose things they are, where nobody has made other tenants.
TENANT_ID = "default"
#: How soon it is seen that a thread has died.
_LOOK_EVERY_S = 0.2


class Service:
    """One start of the service. `serve` runs it; everything that counts lies in the folder."""

    def __init__(
        self,
        folder: DataFolder,
        settings: Settings,
        catalogue: Catalogue,
        *,
        host: str,
        port: int,
        telemetry: Telemetry = NO_TELEMETRY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises UsageError when nothing can listen on host and port."""
        # The secrets of webhooks are sealed under the folder's own, too.
        pepper = SecretStr(folder.pepper.decode())
        settings = settings.model_copy(update={"key_pepper": pepper})
        self._settings = settings
        self._catalogue = catalogue
        self._worker: ComputeWorker | None = None
        self._is_stopping = False
        queue = MemoryQueue(settings.lease_s)
        prices = read_prices(settings.prices)
        self.control = Control(
            *(folder.ledger, folder.store, queue, clock, settings),
            prices=prices,
            telemetry=telemetry,
            fleet_view=FleetView(is_sole=True),
        )
        telemetry.metrics.on_look(LedgerGauges(self.control, telemetry.metrics).put)
        self._loop = ControlLoop(self.control)
        self._uploads = ReadUploads(self.control, catalogue.models)
        self._webhooks = WebhookLoop(self.control, is_sole=True)
        self.access = Access(folder.ledger, pepper=folder.pepper, clock=clock)
        api = Api(
            ledger=folder.ledger,
            store=folder.store,
            settings=settings,
            clock=clock,
            access=self.access,
            read_health=self.health,
            on_submitted=self._uploads.wake,
            prices=prices,
            telemetry=telemetry,
        )
        self._server = HttpServer(create_app(api), host=host, port=port)

    @property
    def url(self) -> str:
        """Where the API is, without a path."""
        return self._server.url

    def make_first_key(self) -> str | None:
        """A key that may everything, if there is none yet."""
        with self.control.ledger.read() as conn:
            if tenants.any_key(conn):
                return None
        text, _ = self.access.make_key(TENANT_ID, name="first", scopes=tuple(Scope))
        return str(text)

    def health(self) -> Health:
        """May be read from any thread."""
        if self._is_stopping or self._worker is None:
            state = "draining" if self._is_stopping else "loading"
            return Health(live=True, ready=False, state=state)
        worker = self._worker.health
        loops = (self._loop, self._uploads, self._webhooks)
        troubles = filter(None, (*worker.troubles, *(loop.trouble for loop in loops)))
        return Health(live=worker.is_live, ready=True, state="running", troubles=tuple(troubles))

    def serve(
        self,
        stop: threading.Event,
        build_worker: BuildWorker,
        *,
        on_ready: Callable[[str], None] = lambda equipment: None,
    ) -> None:
        """Answer requests at once, and rows as soon as the model is loaded, until `stop` is set.

        Raises what loading the model raises, and what ended the worker.
        """
        self._take_up()
        with ExitStack() as stack:
            stack.enter_context(self._server)
            stack.callback(LoopThread(self._loop.run, stop, name="control").join)
            stack.callback(LoopThread(self._uploads.run, stop, name="ingest").join)
            stack.callback(LoopThread(self._webhooks.run, stop, name="webhooks").join)
            stack.callback(self._begin_stop, stop)
            worker = self._load(build_worker)
            on_ready(worker.equipment)
            with WorkerThread(worker, on_hang=end_hanging) as thread:
                self._worker = worker
                while not stop.wait(_LOOK_EVERY_S) and thread.is_alive and self._server.is_alive:
                    pass
                self._is_stopping = True
            thread.raise_error()
        self._loop.take_remaining_bells()

    def _load(self, build_worker: BuildWorker) -> ComputeWorker:
        catalogue, model = self._catalogue, self._catalogue.base
        config = worker_config(
            self._settings,
            model_path=model.path,
            pin=model.pin,
            max_model_len=model.max_model_len,
            device=catalogue.device,
            adapters=catalogue.adapters,
            patience_s=self._settings.outage_patience_s,
            is_sole=True,
        )
        worker = build_worker(config, self.control.queue, self.control.store)
        worker.watch(self.control.telemetry)
        return worker

    def _take_up(self) -> None:
        """What the last start has left under way. The queue of this one is new."""
        self._uploads.tell_models()
        seal_all(self.control.ledger, self.control.vault)
        self.control.store.remove_unfinished(0.0)  # nobody else writes here
        for batch in open_batches(self.control):
            try:
                recall(self.control, batch)
                accept_unheard(self.control, batch)
            except GristmillError as error:
                log.warning("batch not taken up yet batch=%s reason=%s", batch.id, error)

    def _begin_stop(self, stop: threading.Event) -> None:
        self._is_stopping = True
        stop.set()
        self._uploads.wake()
