"""The phases of a local run, by the functions that the service uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from typing import Literal

from gristmill.compute import BuildWorker, WorkerStats, find_worker, worker_config
from gristmill.control.accept import accept_unheard
from gristmill.control.base import read_batch
from gristmill.control.dispatch import recall
from gristmill.control.finalize import finalize, freeze
from gristmill.control.ingest import create_batch, ingest_slice
from gristmill.control.lines import derived_id
from gristmill.control.loop import ControlLoop
from gristmill.ledger import batches
from gristmill.ledger.batch import Batch
from gristmill.ledger.status import BatchStatus, FreezeReason
from gristmill.local.input_file import InputFile
from gristmill.local.result_files import publish
from gristmill.local.values import Phase, Progress, RunConfig, Summary
from gristmill.local.where import hear_only_of, open_control, remove_from_store, remove_lane
from gristmill.local.work_folder import TENANT_ID, WorkFolder, check_same_run
from gristmill.local.worker_thread import WorkerThread
from gristmill.local_model import Catalogue, find_catalogue
from gristmill.requests.first_model import first_model_name

#: The worker is idle at the end of each run, and only then.
_IDLE_WAIT_S = 0.05


def run(
    config: RunConfig,
    *,
    on_progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
    build_worker: BuildWorker | None = None,
) -> Summary:
    """Answer every line of the input, going on where an earlier start of the same run stopped.

    Without a fleet the Worker is what `build_worker` makes, by default that which is installed.
    Raises UsageError (the work folder is in use, the input is missing), WorkFolderMismatch and
    whatever loading the model raises. A file that fails validation is a Summary with `errors`.
    """
    catalogue = find_catalogue(
        *([config.model_name], config.adapters),
        settings=config.settings,
        revision=config.revision,
        served_names=config.served_names,
    )
    build = None if config.fleet else build_worker or find_worker()
    input_file = InputFile(config.input_path)
    with WorkFolder(config.work_dir) as folder:
        run = _Run(
            config,
            folder,
            input_file,
            catalogue,
            on_progress=on_progress,
            should_stop=should_stop,
        )
        answer = run.answer_elsewhere if build is None else partial(run.answer, build)
        has_ended = run.read() and answer() and run.write()
        summary = run.summary(has_ended=has_ended)
        if summary.status != "interrupted":
            run.hang_up()
            if not config.keep_work:
                run.remove()
                folder.remove()
    return summary


class _Run:
    """One start of a run. Each phase returns whether it came to its end, and can be repeated."""

    def __init__(
        self,
        config: RunConfig,
        folder: WorkFolder,
        input_file: InputFile,
        catalogue: Catalogue,
        *,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self._began = time.monotonic()
        self._config = config
        self._catalogue = catalogue
        with input_file.open() as file:
            name = first_model_name(file, max_bytes=config.settings.max_line_bytes)
        self._model = catalogue.asked_for(name)
        self._on_progress = on_progress
        self._should_stop = should_stop
        self._input = input_file
        self._control = open_control(config, folder)
        self._batch = self._find_or_create()
        self._control = hear_only_of(self._control, self._batch)
        self._loop = ControlLoop(self._control)
        self._resumed = self._batch
        self._stats = WorkerStats()
        self._equipment = ""
        self._running_began = self._running_ended = self._began

    def _find_or_create(self) -> Batch:
        control, model = self._control, self._model
        fingerprint = self._input.fingerprint()
        options = {
            "max_rows": control.settings.max_rows,
            "max_line_bytes": control.settings.max_line_bytes,
            "max_model_len": model.max_model_len,
            "served_names": list(model.served_names),
        }
        with control.ledger.read() as conn:
            found = batches.list_newest(conn, TENANT_ID, limit=1)
        if not found:
            return create_batch(
                control,
                TENANT_ID,
                derived_id("batch_", fingerprint, *astuple(model.pin)),
                model=model.pin,
                seed=fingerprint,
                input_fingerprint=fingerprint,
                options=options,
            )
        (batch,) = found
        check_same_run(
            self._config.work_dir,
            batch,
            input_fingerprint=fingerprint,
            model=model.pin,
            options=options,
        )
        if self._config.fleet is None:
            recall(control, batch)  # the queue of this start is new
        # Bells of the last start may have been lost.
        accept_unheard(control, batch)
        return read_batch(control, TENANT_ID, batch.id)

    def read(self) -> bool:
        """Ingest. A file that fails validation ends the run here, too."""

        def should_pause() -> bool:
            self._refresh()
            self._report("reading")
            return self._should_stop()

        self._report("reading")
        is_read = ingest_slice(
            self._control,
            TENANT_ID,
            self._batch.id,
            self._input.open,
            self._model,
            should_pause=should_pause,
        )
        self._refresh()
        if is_read:
            self._input.check_unchanged()
        return is_read

    def answer(self, build_worker: BuildWorker) -> bool:
        """Let a Worker run in a thread of its own until each row has its result."""
        if self._batch.status is not BatchStatus.IN_PROGRESS or self._is_answered():
            return True
        self._report("loading")
        config = worker_config(
            self._config.settings,
            model_path=self._model.path,
            pin=self._catalogue.base.pin,
            max_model_len=self._model.max_model_len,
            device=self._catalogue.device,
            adapters=tuple(
                adapter
                for adapter in self._catalogue.adapters
                if adapter.identity == self._model.pin.adapter
            ),
            idle_wait_s=_IDLE_WAIT_S,
            is_sole=True,
        )
        worker = build_worker(config, self._control.queue, self._control.store)
        self._equipment = worker.equipment
        self._running_began = time.monotonic()
        with WorkerThread(worker) as thread:
            while not self._is_answered() and not self._should_stop() and thread.is_alive:
                self._loop.turn()
                self._stats = worker.stats
                self._refresh()
                self._report("running")
        self._loop.take_remaining_bells()
        self._stats = worker.stats
        self._running_ended = time.monotonic()
        self._refresh()
        thread.raise_error()
        return self._is_answered()

    def answer_elsewhere(self) -> bool:
        """Let the workers on the queue run until each row has its result."""
        if self._batch.status is not BatchStatus.IN_PROGRESS:
            return True
        self._equipment = "workers of their own"
        self._running_began = time.monotonic()
        while not self._is_answered() and not self._should_stop():
            self._loop.turn_patiently()
            self._refresh()
            num_tokens = self._batch.usage.completion_tokens
            self._stats = WorkerStats(
                num_generated_tokens=num_tokens - self._resumed.usage.completion_tokens
            )
            self._report("running")
        self._running_ended = time.monotonic()
        return self._is_answered()

    def hang_up(self) -> None:
        """Take the Lane away on which workers rang for this run alone."""
        if self._config.fleet is not None:
            remove_lane(self._control)
            self._control.queue.close()

    def remove(self) -> None:
        """What the run has left in a store that it shares with others."""
        if self._config.fleet is not None:
            remove_from_store(self._control.store, self._batch)

    def write(self) -> bool:
        """Finalize, and put the result files where the caller wants them."""

        def should_pause() -> bool:
            self._report("writing")
            return self._should_stop()

        if self._batch.status is BatchStatus.FAILED:
            return True
        self._report("writing")
        freeze(self._control, self._batch, FreezeReason.COMPLETE)
        if not finalize(self._control, TENANT_ID, self._batch.id, should_pause=should_pause):
            return False
        self._refresh()
        publish(self._control.store, self._batch, self._config)
        return True

    def summary(self, *, has_ended: bool) -> Summary:
        batch, stats = self._batch, self._stats
        status: Literal["completed", "failed", "interrupted"] = "interrupted"
        if has_ended:
            status = "failed" if batch.status is BatchStatus.FAILED else "completed"
        completed = status == "completed"
        usage = batch.usage
        return Summary(
            batch_id=batch.id,
            status=status,
            total=batch.total,
            completed=batch.completed,
            failed=batch.failed,
            usage=usage,
            cached_fraction=usage.cached_tokens / max(usage.prompt_tokens, 1),
            elapsed_s=time.monotonic() - self._began,
            generated_tokens=stats.num_generated_tokens,
            tokens_per_s=self._tokens_per_s(self._running_ended),
            ttft_p50_s=batch.ttft.quantile(0.5),
            ttft_p95_s=batch.ttft.quantile(0.95),
            itl_p50_s=batch.itl.quantile(0.5),
            itl_p95_s=batch.itl.quantile(0.95),
            rows_resumed=self._resumed.completed + self._resumed.failed,
            tokens_resumed=self._resumed.usage.completion_tokens + stats.num_resumed_tokens,
            output_path=self._config.output_path if completed else None,
            errors_path=self._config.errors_path if completed and batch.failed else None,
            equipment=self._equipment,
            errors=batch.errors,
            num_errors=batch.num_errors,
        )

    def _refresh(self) -> None:
        self._batch = read_batch(self._control, TENANT_ID, self._batch.id)

    def _is_answered(self) -> bool:
        return self._batch.completed + self._batch.failed == self._batch.total

    def _tokens_per_s(self, until: float) -> float:
        return self._stats.num_generated_tokens / max(until - self._running_began, 1e-9)

    def _report(self, phase: Phase) -> None:
        batch, now = self._batch, time.monotonic()
        is_running = phase == "running"
        num_done = batch.completed + batch.failed
        num_here = num_done - self._resumed.completed - self._resumed.failed
        eta_s = None
        if is_running and num_here > 0:
            eta_s = (now - self._running_began) / num_here * (batch.total - num_done)
        self._on_progress(
            Progress(
                phase=phase,
                total=batch.total,
                completed=batch.completed,
                failed=batch.failed,
                generated_tokens=self._stats.num_generated_tokens,
                tokens_per_s=self._tokens_per_s(now) if is_running else 0.0,
                eta_s=eta_s,
                bytes_read=batch.ingest_byte_offset,
                bytes_total=self._input.num_bytes,
                equipment=self._equipment,
            )
        )
