"""How the messages of a queue are written: plain JSON of a few hundred bytes, checked when read.

Whatever a message holds that this version does not know is passed over, so that newer senders may
say more. Documents of the Store are in wire.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any, TypeVar

import msgspec

from gristmill.errors import CorruptDocument, UnsupportedFormat
from gristmill.fleet import WorkerBeat, WorkerState
from gristmill.messages import Bell, ShardPointer

#: Version of everything that is stored or sent. A reader refuses what it does not know.
FORMAT_VERSION = 2
_SHARD, _BELL, _BEAT = "shard", "bell", "beat"
#: Larger numbers fit into no column of the Ledger.
_MAX_NUMBER = 2**53
_WORKER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_T = TypeVar("_T")


def encode_pointer(pointer: ShardPointer) -> bytes:
    return _encode(_SHARD, pointer)


def decode_pointer(message: bytes) -> ShardPointer:
    """Raises CorruptDocument or UnsupportedFormat."""
    return _decode(message, {_SHARD: ShardPointer})


def encode_bell(bell: Bell) -> bytes:
    return _encode(_BELL, bell)


def decode_bell(message: bytes) -> Bell:
    """Raises CorruptDocument or UnsupportedFormat."""
    return _decode(message, {_BELL: Bell})


def encode_beat(beat: WorkerBeat) -> bytes:
    return _encode(_BEAT, beat)


def decode_beat(message: bytes) -> WorkerBeat:
    """Raises CorruptDocument or UnsupportedFormat."""
    return _checked(_decode(message, {_BEAT: WorkerBeat}))


def decode_news(message: bytes) -> Bell | WorkerBeat:
    """What a Worker tells on the control lane. Raises CorruptDocument or UnsupportedFormat."""
    news: Bell | WorkerBeat = _decode(message, {_BELL: Bell, _BEAT: WorkerBeat})
    return _checked(news) if isinstance(news, WorkerBeat) else news


def _checked(beat: WorkerBeat) -> WorkerBeat:
    if not _WORKER_ID.fullmatch(beat.worker_id) or beat.state is WorkerState.LOST:
        raise CorruptDocument(
            f"No worker beats like this: worker {beat.worker_id[:80]!r}, state {beat.state}."
        )
    return beat


def _encode(kind: str, message: Any) -> bytes:
    body = {"v": FORMAT_VERSION, "kind": kind, **asdict(message)}
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def _decode(body: bytes, kinds: dict[str, type[_T]]) -> _T:
    """A message of one of these kinds."""
    try:
        fields = msgspec.json.decode(body)
        version, found = fields.pop("v"), fields.pop("kind")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptDocument(f"This is not a message of Gristmill: {body[:80]!r}.") from error
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(
            f"A message of format v{version} arrived, this version reads v{FORMAT_VERSION}. "
            "Run the same version of Gristmill on both sides."
        )
    if not isinstance(found, str) or found not in kinds:
        expected = " or ".join(kinds)
        raise CorruptDocument(f"A {expected} message was expected, a {found} message arrived.")
    try:
        _check_values(fields)
        return msgspec.convert(fields, type=kinds[found])
    except ValueError as error:
        raise CorruptDocument(
            f"A {found} message cannot be read: {error} {body[:80]!r}."
        ) from error


def _check_values(value: object) -> None:
    """Raises ValueError for what no Ledger could look for."""
    if isinstance(value, dict):
        for one in value.values():
            _check_values(one)
    elif isinstance(value, list):
        for one in value:
            _check_values(one)
    elif isinstance(value, str) and "\0" in value:
        raise ValueError(f"{value[:80]!r} holds a NUL.")
    elif isinstance(value, int | float) and not 0 <= value <= _MAX_NUMBER:
        raise ValueError(f"{value} is no such number.")
