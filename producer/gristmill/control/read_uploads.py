"""Ingest as a task: reads the uploaded files of all batches that wait, a slice of each in turn."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from gristmill.control import estimate
from gristmill.control.base import Control
from gristmill.control.budget import budget_options
from gristmill.control.ending import remove_work_at
from gristmill.control.ingest import ingest_slice
from gristmill.control.observed import tell_refused
from gristmill.control.retried_rows import open_rows
from gristmill.control.room import max_rows_of
from gristmill.errors import BatchInvalid, GristmillError, KeyNotFound, LineError
from gristmill.ledger import batches, models, submissions
from gristmill.ledger.batch import Batch
from gristmill.ledger.estimates import Estimate
from gristmill.ledger.models import ServedModel
from gristmill.models import Model
from gristmill.requests.first_model import first_model_name
from gristmill.requests.tokenise import Tokeniser
from gristmill.requests.word_cost import tokens_per_word

log = logging.getLogger(__name__)

#: A batch is read for so long before it is the next one's turn.
SLICE_S = 30.0
#: Batches wait no longer for an estimate.
_ESTIMATE_SLICE_S = 5.0
#: How soon a batch is seen that nobody told of.
_LOOK_EVERY_S = 0.5
TELL_MODELS_EVERY_S = 60.0
#: A file that could not be read is left alone for so long.
_PUT_OFF_S = 30.0


class ReadUploads:
    """One thread calls `run` or `turn`, or several call `read_slice`.

    Several processes at once are harmless.
    """

    def __init__(
        self,
        control: Control,
        catalogue: Iterable[Model],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control = control
        self._catalogue = tuple(catalogue)
        self._monotonic = monotonic
        self._tell_models_at = monotonic()
        self._put_off: dict[str, float] = {}
        #: They take seconds to load, and adapters have that of their base.
        self._tokenisers: dict[Path, Tokeniser] = {}
        self._word_costs: dict[str, dict[str, float]] = {}
        self._wake = threading.Event()
        #: Why the last turn failed, for people.
        self.trouble = ""

    def wake(self) -> None:
        """There is a new batch. May be called from any thread."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Turn until `stop` is set, which takes effect between two windows of a file.

        Raises what loading a tokenizer raises.
        """
        self.load()
        while not stop.is_set():
            self._wake.clear()
            try:
                was_busy = self.turn(stop.is_set)
                self.trouble = ""
            except GristmillError as error:
                was_busy = False
                if str(error) != self.trouble:
                    log.warning("ingest waits reason=%s", error)
                self.trouble = str(error)
            if not was_busy:
                self._wake.wait(_LOOK_EVERY_S)

    def load(self) -> None:
        """Load the tokenizers, so that the first batch need not wait for them."""
        for model in self._catalogue:
            self._word_costs[model.name] = tokens_per_word(self._tokeniser(model))

    def turn(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """A slice of each batch that waits to be read; whether any was read."""
        control, now = self._control, self._monotonic()
        if now >= self._tell_models_at:
            self.tell_models()
            self._tell_models_at = now + TELL_MODELS_EVERY_S
        with control.ledger.read() as conn:
            waiting = submissions.list_to_read(conn)
        was_busy = False
        for batch in waiting:
            if should_stop():
                break
            if self._put_off.get(batch.id, now) > now:
                continue
            with self._troubles_of_one("batch", batch.id, now):
                was_busy |= self.read_slice(batch, should_stop)
        for waiting_estimate in estimate.list_due(control):
            if should_stop():
                break
            if self._put_off.get(waiting_estimate.id, now) > now:
                continue
            with self._troubles_of_one("estimate", waiting_estimate.id, now):
                was_busy |= self.estimate_slice(
                    waiting_estimate,
                    lambda: should_stop() or self._wake.is_set(),  # a batch may have come
                    slice_s=_ESTIMATE_SLICE_S,
                )
        return was_busy

    @contextmanager
    def _troubles_of_one(self, what: str, found_id: str, now: float) -> Iterator[None]:
        """What is wrong with one file must not keep all others waiting; an outage passes."""
        try:
            yield
        except GristmillError as error:
            if error.retryable:
                raise
            log.error("%s cannot be read id=%s reason=%s", what, found_id, error)
            self._put_off[found_id] = now + _PUT_OFF_S
        except Exception:  # a fault of ours
            log.exception("%s cannot be read id=%s", what, found_id)
            self._put_off[found_id] = now + _PUT_OFF_S

    def estimate_slice(
        self, waiting: Estimate, should_stop: Callable[[], bool], *, slice_s: float = SLICE_S
    ) -> bool:
        """Read on in the file of an estimate. False when another process does, or has to.

        Any thread may call it.
        """
        slice_clock = _SliceClock(self._monotonic, slice_s)
        return estimate.estimate_slice(
            self._control,
            waiting,
            self._catalogue,
            self._tokeniser,
            should_pause=lambda: slice_clock.is_over() or should_stop(),
        )

    def read_slice(
        self, batch: Batch, should_stop: Callable[[], bool], *, slice_s: float = SLICE_S
    ) -> bool:
        """Read on in the file of a batch. False when it is for a model of another process.

        Any thread may call it.
        """

        def open_file() -> BinaryIO:
            return open_rows(self._control.store, batch)

        slice_clock = _SliceClock(self._monotonic, slice_s)
        try:
            model = self._model_of(batch, open_file)
            if model is None:
                return False
            ingest_slice(
                self._control,
                batch.tenant_id,
                batch.id,
                open_file,
                model,
                tokeniser=self._tokeniser(model),
                should_pause=lambda: slice_clock.is_over() or should_stop(),
            )
        except KeyNotFound:
            self._fail(batch, LineError("input_modified", "The input file is no longer there."))
        except BatchInvalid as invalid:  # known before ingest has begun
            self._fail(batch, invalid.errors[0])
        return True

    def _tokeniser(self, model: Model) -> Tokeniser:
        if model.path not in self._tokenisers:
            self._tokenisers[model.path] = Tokeniser(model)
        return self._tokenisers[model.path]

    def _model_of(self, batch: Batch, open_file: Callable[[], BinaryIO]) -> Model | None:
        """What the batch runs on: decided by its first line, once."""
        pinned = next((m for m in self._catalogue if m.pin == batch.model), None)
        if pinned is not None or batch.model.name:
            return pinned
        with open_file() as file:
            name = first_model_name(file, max_bytes=self._control.settings.max_line_bytes)
        # With none that fits, the checks of the lines say so, line by line.
        model = next((m for m in self._catalogue if m.serves(name)), self._catalogue[0])
        options = {
            "max_rows": max_rows_of(self._control, batch.tenant_id),
            "max_line_bytes": self._control.settings.max_line_bytes,
            "max_model_len": model.max_model_len,
            "served_names": list(model.served_names),
            **budget_options(
                self._control.prices,
                batch,
                model.name,
                shard_max_tokens=self._control.settings.shard_max_tokens,
            ),
        }
        with self._control.ledger.write() as conn:
            batches.pin_model(conn, batch, model=model.pin, options=options)
            current = batches.get(conn, batch.tenant_id, batch.id)
        return model if current and current.model == model.pin else None

    def _fail(self, batch: Batch, error: LineError) -> None:
        error = replace(error, param=error.param or "input_file_id")
        with self._control.ledger.write() as conn:
            batches.fail_validation(
                conn,
                batch.tenant_id,
                batch.id,
                errors=(error,),
                num_errors=1,
                now=self._control.now,
                remove_work_at=remove_work_at(self._control, batch),
            )
        tell_refused(self._control)

    def tell_models(self) -> None:
        """What can be asked for, to all who read the Ledger."""
        now = self._control.now
        with self._control.ledger.write() as conn:
            for model in self._catalogue:
                models.tell(
                    conn,
                    ServedModel(
                        name=model.name,
                        revision=model.pin.revision,
                        served_names=model.served_names,
                        max_model_len=model.max_model_len,
                        created_at=now,
                        seen_at=now,
                        tokens_per_word=self._word_costs.get(model.name),
                    ),
                )


class _SliceClock:
    """Asked after each window of a slice, the first of which is always read.

    A slice finds its place by reading all lines before it, whose ids it must know. Where that takes
    long, the slice goes on for as long as it took, or for `slice_s`: else the slices of a large
    file would end with the first window each, and do little but find their places.
    """

    def __init__(self, monotonic: Callable[[], float], slice_s: float) -> None:
        self._monotonic = monotonic
        self._slice_s = slice_s
        self._began_at = monotonic()
        self._ends_at: float | None = None

    def is_over(self) -> bool:
        now = self._monotonic()
        if self._ends_at is None:
            found_in_s = now - self._began_at
            self._ends_at = max(
                self._began_at + self._slice_s, now + min(found_in_s, self._slice_s)
            )
        return now >= self._ends_at
