"""Estimates: a file is read and tokenised as ingest does it, and no batch is made of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, BinaryIO

from gristmill.control.base import Control
from gristmill.control.forecast import forecast
from gristmill.control.room import max_rows_of
from gristmill.errors import BatchInvalid, GristmillError, KeyNotFound
from gristmill.ledger import estimates
from gristmill.ledger.estimates import Estimate, EstimateStatus, Problem
from gristmill.models import Model
from gristmill.requests.first_model import first_model_name
from gristmill.requests.prepare import Cursor, Window, prepare
from gristmill.requests.tokenise import Tokeniser
from gristmill.settings import Settings
from gristmill.stores.keys import file_key
from gristmill.types import JobKind

log = logging.getLogger(__name__)

#: An estimate can be looked at for so long.
LIFETIME_S = 7 * 86400
#: Whoever has said nothing for so long is dead, and another process reads on.
_CLAIM_S = 120


def list_due(control: Control) -> list[Estimate]:
    """Those that nobody reads just now, the oldest first."""
    with control.ledger.read() as conn:
        return estimates.list_due(conn, now=control.now)


def estimate_slice(
    control: Control,
    estimate: Estimate,
    catalogue: Iterable[Model],
    tokeniser_of: Callable[[Model], Tokeniser],
    *,
    should_pause: Callable[[], bool],
) -> bool:
    """Read on until the end or a pause (asked after each window).

    False when another process reads it, or it is for a model of another one. Raises StoreError.
    """
    key = file_key(estimate.tenant_id, estimate.input_file_id)

    def open_file() -> BinaryIO:
        return control.store.open(key)

    try:
        model = _model_of(control, estimate, catalogue, open_file)
        if model is None:
            return False
        claimed = replace(estimate, due_at=control.now + _CLAIM_S)
        if not _replace(control, estimate, claimed):
            return False
        estimate = claimed
        _read(control, estimate, model, tokeniser_of(model), open_file, should_pause=should_pause)
    except KeyNotFound:
        gone = Problem("batch", "input_modified", "The input file is gone.", None, "input_file_id")
        _fail(control, estimate, gone)
    except GristmillError:
        raise
    except Exception:  # a fault of ours in one file must not keep all others waiting
        log.exception("estimate cannot be made estimate=%s", estimate.id)
        what = "This is a fault in the service. Its log has more, under the id of this estimate."
        _fail(control, estimate, Problem("batch", "internal_error", what, None, None))
    return True


def _read(
    control: Control,
    estimate: Estimate,
    model: Model,
    tokeniser: Tokeniser,
    open_file: Callable[[], BinaryIO],
    *,
    should_pause: Callable[[], bool],
) -> None:
    settings = control.settings.model_copy(
        update={"max_rows": max_rows_of(control, estimate.tenant_id)}
    )
    try:
        with open_file() as source:
            for window in prepare(
                source,
                model=model,
                tokeniser=tokeniser,
                settings=settings,
                batch_seed=estimate.id,
                endpoint=estimate.endpoint,
                start=Cursor(estimate.byte_offset, estimate.line_no, estimate.num_rows),
            ):
                before = estimate
                estimate = _counted(before, window, model, settings)
                pauses = should_pause()
                due_at = control.now + (0 if pauses else _CLAIM_S)
                estimate = replace(estimate, due_at=due_at)
                if not _replace(control, before, estimate) or pauses:
                    return
        problems: tuple[Problem, ...] = ()
        num_problems = 0
    except BatchInvalid as invalid:
        num_problems = invalid.num_errors
        problems = tuple(
            Problem("batch", e.code, e.message, e.line, e.param) for e in invalid.errors
        )
    # What fails the batch comes first: it hides all that the rows would say.
    found = (*problems, *estimate.problems)[: settings.max_errors_shown]
    ended = replace(
        estimate,
        status=EstimateStatus.COMPLETED,
        model_name=model.name,
        problems=found,
        num_problems=estimate.num_problems + num_problems,
        completed_at=control.now,
    )
    if not num_problems:
        ended = replace(ended, forecast=forecast(control, ended, model))
    _replace(control, estimate, ended)


def _counted(before: Estimate, window: Window, model: Model, settings: Settings) -> Estimate:
    """The estimate with one more window in it."""
    refused = [
        Problem("row", r.error.code, r.error.message, r.line_no, r.error.param)
        for r in window.refused
    ]
    max_output = sum(
        len(job.rows) * len(job.prompts) * job.params.n * job.params.max_tokens
        for job in window.jobs
        if job.kind is JobKind.GENERATE
    )
    return replace(
        before,
        status=EstimateStatus.RUNNING,
        model_name=model.name,
        byte_offset=window.cursor.byte_offset,
        line_no=window.cursor.line_no,
        num_rows=window.cursor.row_idx,
        num_refused=before.num_refused + len(refused),
        prompt_tokens=before.prompt_tokens + window.prompt_tokens,
        max_output_tokens=before.max_output_tokens + max_output,
        problems=(*before.problems, *refused)[: settings.max_errors_shown],
        num_problems=before.num_problems + len(refused),
    )


def _model_of(
    control: Control,
    estimate: Estimate,
    catalogue: Iterable[Model],
    open_file: Callable[[], BinaryIO],
) -> Model | None:
    """What the file asks for, by its first line."""
    known = list(catalogue)
    if estimate.model_name:
        return next((model for model in known if model.name == estimate.model_name), None)
    with open_file() as file:
        name = first_model_name(file, max_bytes=control.settings.max_line_bytes)
    # With none that fits, the checks of the lines say so, line by line.
    return next((model for model in known if model.serves(name)), known[0])


def _fail(control: Control, estimate: Estimate, problem: Problem) -> None:
    with control.ledger.read() as conn:
        current = estimates.get(conn, estimate.tenant_id, estimate.id, now=control.now)
    if current is not None:
        ended: dict[str, Any] = {
            "status": EstimateStatus.FAILED,
            "problems": (problem,),
            "num_problems": 1,
            "completed_at": control.now,
        }
        _replace(control, current, replace(current, **ended))


def _replace(control: Control, before: Estimate, now: Estimate) -> bool:
    with control.ledger.write() as conn:
        return estimates.replace(conn, before, now)
