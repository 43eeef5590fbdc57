"""The tree of errors. Each message says what was wrong, the value seen, and the way out.

GristmillError
├── UsageError            wrong arguments, settings, files: the caller can mend it   exit 2
├── BatchInvalid          the input file fails validation as a whole                 exit 3
├── RowRefused            one row's body or prompt is refused; others run
├── DataInvalid           a data set, or a row of it, cannot be read or used as asked   exit 2
├── WorkFolderMismatch    the work folder belongs to another input or model          exit 2
├── ModelUnsupported      the engine cannot run this model exactly                   exit 1
├── ModelNotFound         no such folder, file, name or cached hub model             exit 2
├── OutOfMemory           the machine cannot hold the model or one sequence          exit 1
├── StoreError ── KeyNotFound, StoreRefused                                          exit 1
├── QueueError ── QueueRefused                                                       exit 1
├── CorruptDocument       a stored or sent document is damaged
└── UnsupportedFormat     a document of another version of Gristmill
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class GristmillError(Exception):
    """Base of all errors that Gristmill raises on purpose."""

    #: Whether the same call may succeed later without anybody changing anything.
    retryable = False
    #: Exit code of the command line when this error ends it.
    exit_code = 1


class UsageError(GristmillError):
    """The call itself is wrong; the message says how to put it right."""

    exit_code = 2


class DataInvalid(UsageError):
    """A data set, or a row of it, cannot be read or used as it was asked to.

    The message names the file, the row or line (from 1) and the column, as far as they are known.
    """


class WorkFolderMismatch(UsageError):
    """The work folder holds a run of another input, model or endpoint."""


class ModelNotFound(UsageError):
    """The model's name leads to nothing on this machine."""


class ModelUnsupported(GristmillError):
    """The engine cannot run this model exactly, so it refuses to load it."""


class OutOfMemory(GristmillError):
    """The machine has not the memory that this needs."""


class StoreError(GristmillError):
    """The store could not do what was asked; usually a matter of time."""

    retryable = True


class KeyNotFound(StoreError):
    """There is no object under this key."""

    retryable = False


class StoreRefused(StoreError):
    """The store says no and will say it again: no bucket, no permission, a bad key."""

    retryable = False


class QueueError(GristmillError):
    """The queue could not do what was asked; usually a matter of time."""

    retryable = True


class QueueRefused(QueueError):
    """The queue says no and will say it again: no permission, a bad Lane, a server that evicts."""

    retryable = False


class CorruptDocument(GristmillError):
    """A stored or sent document is damaged or of another kind."""


class UnsupportedFormat(GristmillError):
    """A document was written by another version of Gristmill."""


@dataclass(frozen=True, slots=True)
class LineError:
    """One reason why a batch fails validation. `line` is the physical line, from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchInvalid(GristmillError):
    """The input file as a whole is refused before anything runs.

    `errors` names the first bad lines (up to a stated number), `num_errors` counts them all.
    """

    exit_code = 3

    def __init__(self, errors: Sequence[LineError], num_errors: int) -> None:
        self.errors = tuple(errors)
        self.num_errors = num_errors
        first = self.errors[0]
        where = f"line {first.line}: " if first.line is not None else ""
        super().__init__(
            f"The input fails validation ({num_errors} errors). {where}{first.message}"
        )


class RowRefused(GristmillError):
    """The body of one row is refused. The row gets an error line, all others run."""

    def __init__(
        self, message: str, *, param: str | None, code: str = "invalid_request", status: int = 400
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status_code = status
