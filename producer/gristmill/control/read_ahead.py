"""Takes the next chunk of a stream in a thread, while the one before it is being used."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor


def read_ahead(chunks: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """The same chunks; no more than one waits. What `chunks` raises is raised here, in its place.

    Reading, hashing and writing let other threads run, so that they need not wait for each other.
    """
    with ThreadPoolExecutor(1, "read-ahead") as reader:
        try:
            following = reader.submit(next, chunks, None)
            while (chunk := following.result()) is not None:
                following = reader.submit(next, chunks, None)
                yield chunk
        finally:
            reader.submit(chunks.close)
