"""Commands that need more than the light installation say so in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gristmill.errors import UsageError


@contextmanager
def server_needed() -> Iterator[None]:
    """What cannot be imported in the block is a UsageError that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"This command needs the package {error.name}: pip install 'gristmill[server]'."
        ) from error
