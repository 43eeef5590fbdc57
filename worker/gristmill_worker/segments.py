"""What an Attempt appends to the Store, and what it reads of the Attempts before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gristmill.histogram import Histogram
from gristmill.marks import Mark
from gristmill.stores.base import Store
from gristmill.stores.segments import list_segments, read_segment
from gristmill.types import Bell, Checkpoint, RowResult, Segment, ShardPointer
from gristmill_worker.engine.base import Generated
from gristmill_worker.evidence import Place, Trace
from gristmill_worker.versions import engine_version


class SegmentWriter:
    """Makes the Segments of one Attempt, each to be stored before the next is made."""

    def __init__(self, pointer: ShardPointer, attempt_id: str) -> None:
        self._pointer = pointer
        self._attempt_id = attempt_id
        self._seq = 0
        #: How many tokens of each Choice under way lie in earlier Segments.
        self._num_written: dict[Place, int] = {}

    def next(
        self, results: Iterable[RowResult], running: Mapping[Place, Generated], mark: Mark
    ) -> Segment:
        """Rows that have finished, and all that the Jobs under way have generated so far."""
        results = tuple(results)
        ttft, itl = _durations(results)
        segment = Segment(
            tenant_id=self._pointer.tenant_id,
            batch_id=self._pointer.batch_id,
            run_id=self._pointer.run_id,
            shard_n=self._pointer.n,
            attempt_id=self._attempt_id,
            seq=self._seq,
            results=results,
            checkpoints=self._checkpoints(running),
            ttft=ttft,
            itl=itl,
            mark=mark,
            engine_version=engine_version(),
        )
        self._seq += 1
        self._num_written = {place: len(g.token_ids) for place, g in running.items()}
        return segment

    def _checkpoints(self, running: Mapping[Place, Generated]) -> tuple[Checkpoint, ...]:
        checkpoints = []
        for place, generated in running.items():
            start = self._num_written.get(place, 0)
            if len(generated.token_ids) > start:
                checkpoints.append(
                    Checkpoint(
                        *place,
                        start,
                        tuple(generated.token_ids[start:]),
                        tuple(generated.times_ms[start:]),
                        tuple(generated.logprobs[start:]),
                    )
                )
        return tuple(checkpoints)


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """What earlier Attempts left of a Shard: finished Jobs, and the most of each other Choice."""

    finished: frozenset[int]
    generated: Mapping[Place, Generated]
    #: One for each Segment that can be read, for those whose own Bell was lost.
    bells: tuple[Bell, ...]
    #: In the order of their marks.
    traces: tuple[Trace, ...] = ()


def read_shard_progress(store: Store, pointer: ShardPointer) -> ShardProgress:
    """Reads all Segments of a Shard; those that cannot be believed count for nothing."""
    finished: set[int] = set()
    longest: dict[Place, Generated] = {}
    bells: list[Bell] = []
    traces: list[Trace] = []
    chains: dict[Place, Generated] = {}
    listed = list_segments(store, pointer.tenant_id, pointer.batch_id, pointer.run_id, pointer.n)
    for bell in listed:
        segment = read_segment(store, bell)
        if segment is None:
            continue
        if not traces or bell.attempt_id != traces[-1].attempt_id:
            traces.append(Trace(bell.attempt_id))
            chains = {}
        trace = traces[-1]
        trace.mark = segment.mark
        of_segment = {result.job_idx for result in segment.results}
        trace.finished |= of_segment
        finished |= of_segment
        bells.append(bell)
        for checkpoint in segment.checkpoints:
            place = checkpoint.job_idx, checkpoint.choice_idx
            chain = chains[place] = _extended(chains.get(place, Generated()), checkpoint)
            trace.lengths[place] = len(chain.token_ids)
            known = longest.get(place, Generated())
            if len(chain.token_ids) > len(known.token_ids):
                longest[place] = chain
    traces.sort(key=lambda trace: (trace.mark.order, trace.attempt_id))
    return ShardProgress(
        finished=frozenset(finished),
        generated={at: chain for at, chain in longest.items() if at[0] not in finished},
        bells=tuple(bells),
        traces=tuple(traces),
    )


def _extended(chain: Generated, checkpoint: Checkpoint) -> Generated:
    """A delta that does not begin where the chain ends follows a lost one, and is lost too."""
    if checkpoint.start != len(chain.token_ids):
        return chain
    return Generated(
        (*chain.token_ids, *checkpoint.token_ids),
        (*chain.times_ms, *checkpoint.times_ms),
        (*chain.logprobs, *checkpoint.logprobs),
    )


def _durations(results: Iterable[RowResult]) -> tuple[Histogram, Histogram]:
    """Times to the first token, and mean times between tokens, of the Jobs that have an answer."""
    ttft, itl = Histogram(), Histogram()
    for result in results:
        num_tokens = max((len(choice.token_ids) for choice in result.choices), default=0)
        if num_tokens:
            ttft.add(result.ttft_s)
        if num_tokens > 1:
            itl.add(result.itl_s)
    return ttft, itl
