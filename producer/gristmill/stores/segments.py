"""The one reader of Segments: what a worker skips as damaged, accept and finalize skip too."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from gristmill.errors import CorruptDocument, KeyNotFound, UnsupportedFormat
from gristmill.stores.base import Store
from gristmill.stores.keys import parse_segment_key, segment_key, segments_prefix
from gristmill.types import Bell, Segment
from gristmill.wire import decode_segment

log = logging.getLogger(__name__)


def read_segment(store: Store, bell: Bell) -> Segment | None:
    """The Segment that a Bell tells of; None when it is not there or cannot be believed."""
    key = segment_key(bell)
    try:
        segment = decode_segment(store.get(key))
    except KeyNotFound:
        return None
    except (CorruptDocument, UnsupportedFormat) as error:
        log.warning("segment skipped key=%s reason=%s", key, error)
        return None
    if bell_of(segment) != bell:
        log.warning("segment skipped key=%s reason=it belongs under another key", key)
        return None
    return segment


def list_segments(
    store: Store, tenant_id: str, batch_id: str, run_id: str, n: int | None = None
) -> Iterator[Bell]:
    """The Bells of all Segments of a run, or of one Shard: by Shard, Attempt and seq."""
    for key in store.list(segments_prefix(tenant_id, batch_id, run_id, n)):
        yield parse_segment_key(key)


def bell_of(segment: Segment) -> Bell:
    """The Bell that tells of a Segment."""
    return Bell(
        segment.tenant_id,
        segment.batch_id,
        segment.run_id,
        segment.shard_n,
        segment.attempt_id,
        segment.seq,
    )
