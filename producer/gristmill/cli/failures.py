"""Turns what a command raises into one readable message on stderr and an exit code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

import typer

from gristmill.errors import BatchInvalid, GristmillError, LineError


class ExitCode(IntEnum):
    """What a process of ours ends with; documented in the README."""

    OK = 0
    ERROR = 1
    USAGE = 2
    BATCH_FAILED = 3
    ROWS_FAILED = 4
    NOT_ALLOWED = 5
    DIFFERS = 6
    HUNG = 70
    OUTAGE = 75
    UNSAVED = 76
    TIMEOUT = 124
    INTERRUPTED = 130


@contextmanager
def failures_reported(*, debug: bool) -> Iterator[None]:
    """Report an error of the block and exit; with `debug` let it through with its traceback."""
    try:
        yield
    except BatchInvalid as error:
        print_line_errors(error.errors, error.num_errors)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from interrupt
    except typer.Exit:
        raise
    except Exception as error:  # the edge of the program: a user sees a message, not a stack
        if debug:
            raise
        print_error(_message_of(error))
        exit_code = error.exit_code if isinstance(error, GristmillError) else ExitCode.ERROR
        raise typer.Exit(exit_code) from error


def print_error(message: str) -> None:
    """One error on stderr."""
    typer.echo(f"Error: {message}", err=True)


def print_line_errors(errors: Sequence[LineError], num_errors: int) -> None:
    """Every named line of an input that failed validation, and how many more there are."""
    print_error("the input fails validation, so nothing was run. Mend these and start again:")
    for error in errors:
        typer.echo(f"  {_place_of(error)}{error.code}: {error.message}", err=True)
    if num_errors > len(errors):
        typer.echo(f"  ... and {num_errors - len(errors):,} more", err=True)


def _place_of(error: LineError) -> str:
    return "" if error.line is None else f"line {error.line}: "


def _message_of(error: Exception) -> str:
    if isinstance(error, GristmillError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or 'no file named'}"
    return (
        f"unexpected {type(error).__name__}: {error}. This is a fault in Gristmill; "
        "the same command with --debug shows where it happened."
    )
