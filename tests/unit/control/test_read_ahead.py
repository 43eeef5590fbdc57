"""Chunks that a thread reads ahead are those of the stream, and so are its errors."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from gristmill.control.read_ahead import read_ahead
from gristmill.errors import StoreError


def test_chunks_come_in_their_order_and_from_another_thread() -> None:
    readers = set()

    def chunks() -> Generator[bytes, None, None]:
        for i in range(5):
            readers.add(threading.current_thread())
            yield bytes([i])

    assert b"".join(read_ahead(chunks())) == bytes(range(5))
    assert threading.current_thread() not in readers
    assert len(readers) == 1


def test_an_error_comes_behind_the_chunks_before_it() -> None:
    def chunks() -> Generator[bytes, None, None]:
        yield b"one"
        raise StoreError("The disk is gone.")

    ahead = read_ahead(chunks())

    assert next(ahead) == b"one"
    with pytest.raises(StoreError, match="The disk is gone"):
        next(ahead)


def test_who_stops_early_ends_the_thread_and_closes_the_stream() -> None:
    closed = []

    def chunks() -> Generator[bytes, None, None]:
        try:
            while True:
                yield b"more"
        finally:
            closed.append(threading.current_thread())

    ahead = read_ahead(chunks())
    next(ahead)
    ahead.close()

    assert len(closed) == 1
    assert not closed[0].is_alive()
