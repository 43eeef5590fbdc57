"""A body that comes too slowly is given up, so that its sender holds up no others."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import anyio

from gristmill.api.failures import ApiError

__all__ = ["PacedBody"]

#: So many bytes of a body have to come within so long; for the last of them there is as long.
_STRETCH_BYTES = 120_000
_STRETCH_S = 60.0


class PacedBody:
    """For one task of an event loop. Only time in which its sender is waited for counts."""

    def __init__(
        self,
        body: AsyncIterator[bytes],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._body = body
        self._monotonic = monotonic
        self._num_bytes, self._waited_s = 0, 0.0

    async def next_piece(self) -> bytes | None:
        """None at its end. Raises ApiError (408) when too little has come for too long."""
        began = self._monotonic()
        try:
            with anyio.fail_after(_STRETCH_S - self._waited_s):
                piece = await anext(self._body, None)
        except TimeoutError as error:
            raise self._too_slow() from error
        self._waited_s += self._monotonic() - began
        self._num_bytes += len(piece or b"")
        if self._num_bytes >= _STRETCH_BYTES:
            self._num_bytes, self._waited_s = 0, 0.0
        return piece

    def _too_slow(self) -> ApiError:
        return ApiError(
            408,
            f"Only {self._num_bytes} bytes of the body have come in the last {_STRETCH_S:g} s; "
            f"{_STRETCH_BYTES} are waited for that long. Send it again, over a faster connection "
            "or as smaller files.",
            code="request_timeout",
            headers={"connection": "close"},
        )
