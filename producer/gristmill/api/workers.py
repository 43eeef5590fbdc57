"""/v1/workers: the machines that answer, as they announce themselves. Nothing of any tenant,
and for operators alone: machines are the same for all, and tell how much there is to do."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from gristmill.api.context import Operator, UseApi, is_id
from gristmill.api.failures import not_found
from gristmill.api.objects import ListObject, list_object
from gristmill.fleet import PREFILL_LENGTHS, KnownWorker, WorkerCard, WorkerState
from gristmill.ledger import workers

router = APIRouter(prefix="/v1/workers", tags=["Workers"])


class WorkerObject(BaseModel):
    """What a Worker is and how it was when it was last heard of."""

    id: str
    object: Literal["worker"] = "worker"
    #: `lost` is one that was not heard of for 45 seconds.
    state: WorkerState
    model: str
    revision: str
    dtype: str
    host: str
    device: str
    version: str
    first_seen_at: int
    last_seen_at: int
    #: The Lanes that it listens to, the first one first; empty while it loads.
    lanes: list[str]
    features: list[str]
    #: LoRA adapters, each as NAME@IDENTITY.
    adapters: list[str]
    max_row_tokens: int
    max_rows: int
    #: Free on its device once the model was loaded.
    memory_bytes: int
    #: Null where the model needs no KV cache, or is not loaded.
    kv_tokens: int | None
    kv_used_tokens: int
    #: By the longest prompt of a class, in tokens; only what was measured.
    prefill_tokens_per_second: dict[int, float]
    decode_tokens_per_second: float | None
    #: Of as many rows as run there at once, by the tokens that each has; as its steps took.
    decode_tokens_per_second_by_length: dict[int, float]
    #: Prompts and answers, since the beat before.
    tokens_per_second: float
    shards: int
    shards_ahead: int
    rows: int
    rows_waiting: int
    #: Since it began.
    prefill_tokens: int
    generated_tokens: int
    preemptions: int
    lease_losses: int


@router.get("")
def list_workers(
    api: UseApi,
    caller: Operator,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    include_ended: bool = False,
) -> ListObject[WorkerObject]:
    """By id. Those that have ended are forgotten after a day, as are those that are lost."""
    with api.ledger.read() as conn:
        if after is not None and not (is_id(after) and workers.is_known(conn, after)):
            raise not_found("worker", after, param="after")
        found = workers.list_workers(
            conn, limit=limit + 1, after_id=after or "", with_ended=include_ended
        )
    objects = [_worker_object(known, api.clock()) for known in found[:limit]]
    return list_object(objects, [one.id for one in objects], has_more=len(found) > limit)


def _worker_object(known: KnownWorker, now: float) -> WorkerObject:
    card, beat = known.card, known.beat
    return WorkerObject(
        id=card.worker_id,
        state=known.state_at(now),
        model=card.model.name,
        revision=card.model.revision,
        dtype=card.model.dtype,
        host=card.host,
        device=card.device,
        version=card.version,
        first_seen_at=int(known.first_heard_at),
        last_seen_at=int(known.heard_at),
        lanes=list(card.lanes),
        features=list(card.features),
        adapters=list(card.adapters),
        max_row_tokens=card.max_row_tokens,
        max_rows=card.max_num_seqs,
        memory_bytes=card.memory_bytes,
        kv_tokens=card.kv_tokens,
        kv_used_tokens=beat.kv_used_tokens,
        prefill_tokens_per_second=dict(card.prefill_tokens_per_s),
        decode_tokens_per_second=card.decode_tokens_per_s,
        decode_tokens_per_second_by_length=_decode_by_length(card),
        tokens_per_second=beat.tokens_per_s,
        shards=beat.num_shards,
        shards_ahead=beat.num_shards_ahead,
        rows=beat.num_rows,
        rows_waiting=beat.num_waiting,
        prefill_tokens=beat.num_prefill_tokens,
        generated_tokens=beat.num_generated_tokens,
        preemptions=beat.num_preempted,
        lease_losses=beat.num_lease_losses,
    )


def _decode_by_length(card: WorkerCard) -> dict[int, float]:
    """Empty before its steps were measured, and for what it does not take."""
    step = card.step_time
    if step is None:
        return {}
    found: dict[int, float] = {}
    for length in PREFILL_LENGTHS:
        fits = card.max_num_seqs if card.kv_tokens is None else card.kv_tokens // length
        num_rows = min(card.max_num_seqs, fits)
        if num_rows < 1 or length > card.max_row_tokens:
            break
        step_s = step.of(num_rows, num_rows * length)
        if step_s > 0:
            found[length] = round(num_rows / step_s, 1)
    return found
